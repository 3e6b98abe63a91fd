"""`longrm runs show`."""

import pytest
from click.testing import CliRunner

from longrm.cli.runs import command
from longrm.data import write
from longrm.errors import RunError
from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.worlds import WorldPlan, generate, words_tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "pairs.jsonl", generate(WorldPlan("records", 64), 4, words_tokenizer()))
    run_evaluation(Evaluation(model="simulated:0.2", bench=f"file:{folder / 'pairs.jsonl'}"), folder / "run")
    return folder / "run"


def show(*arguments):
    done = CliRunner().invoke(command, ["show", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_an_evaluation_shows_questions_orders_verdicts_answers_and_outcomes(run):
    shown = show(run, "--limit", 2)
    assert shown.count("Question:") >= 2
    for part in ("answered", "access code", "Order", "best", "gold", "[["):
        assert part in shown
    assert "2 more" in shown
    assert "more; show" not in show(run)


def test_one_comparison_is_shown_by_its_id(run):
    name = "records-64-2-s0-000001-0"
    shown = show(run, "--id", name)
    assert shown.startswith(f"{name}: ")
    assert "000002" not in shown
    with pytest.raises(RunError, match="other"):
        show(run, "--id", "other")
