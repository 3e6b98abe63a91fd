"""How `longrm evaluate` ends where something was not answered: one line that names it, and no zero."""

import json

import pytest
from click.testing import CliRunner

from longrm import reward_models
from longrm.cli.commands import cli
from longrm.data import write
from longrm.reward_models import RewardModel
from longrm.types import Judgment, Outcome, message_text
from longrm.worlds import WorldPlan, generate, words_tokenizer


class Reader(RewardModel):
    """Answers what is shorter than 2,000 characters, and fails as it is told at what is longer."""

    def __init__(self, outcome):
        self.name, self._outcome = "reader", outcome

    def judge(self, queries):
        return [self._one(len("".join(map(message_text, query.prompt)))) for query in queries]

    def _one(self, size):
        if size < 2000 or self._outcome is None:
            return Judgment(Outcome.ANSWERED, scores=(1.0, 0.0))
        return Judgment(self._outcome, detail=f"{size:,} > 2,000 tokens; judge.cut names what may be cut")


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """Runs the command with a reader and returns its status, what it printed, and the summary."""
    rows = [row for size in (64, 512) for row in generate(WorldPlan("records", size), 6, words_tokenizer())]
    write(tmp_path / "pairs.jsonl", rows)

    def run(outcome):
        monkeypatch.setattr(reward_models, "load", lambda name, **_: Reader(outcome))
        bench = f"file:{tmp_path / 'pairs.jsonl'}"
        command = ["evaluate", "--model", "reader", "--bench", bench, "--out", str(tmp_path / str(outcome))]
        result = CliRunner().invoke(cli, command)
        summary = json.loads((tmp_path / str(outcome) / "summary.json").read_text())
        return result, summary

    return run


def test_what_nothing_was_answered_at_is_an_incomplete_run(ended):
    result, summary = ended(Outcome.TOO_LONG)
    assert result.exit_code == 1
    line = str(result.exception) if not isinstance(result.exception, SystemExit) else result.output
    assert "the run is incomplete. No answer at 512 tokens: 6 of 6 too long: " in line
    assert "The same command will not change that; what may: of what is too long, --cut names" in line
    assert summary["complete"] is False
    assert summary["metrics"]["by_length"]["512"]["pair_accuracy"]["value"] is None
    assert summary["metrics"]["by_length"]["64"]["pair_accuracy"]["value"] is not None


def test_errors_are_tried_again_by_the_same_command(ended):
    result, _ = ended(Outcome.ERROR)
    line = str(result.exception) if not isinstance(result.exception, SystemExit) else result.output
    assert result.exit_code == 1
    assert "6 of 12 comparisons ended in errors" in line
    assert "the same command tries them again" in line
    assert "will not change that" not in line


def test_a_run_with_every_answer_ends_well(ended):
    result, summary = ended(None)
    assert result.exit_code == 0, result.output
    assert summary["complete"] is True
    assert summary["missing"] == {
        "by_length": {}, "by_depth": {}, "by_length_and_depth": {}, "by_task": {}, "by_subtype": {},
        "by_task_and_length": {},
    }  # fmt: skip
