"""`longrm runs`: lists, shows and removes runs, and prunes caches."""

import fcntl
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from longrm.benchmarks import Probe, ProbeCell
from longrm.cli.commands import cli
from longrm.cli.runs import listed_runs
from longrm.data import write
from longrm.errors import ConfigError, RunError
from longrm.evaluation.evaluate import Evaluation, evaluate, run_evaluation
from longrm.evaluation.trials import JudgingSettings
from longrm.reporting.formatting import FEW
from longrm.runs.folder import RunFolder
from longrm.runs.judgments import Judgments
from longrm.runs.logs import ROLLOUTS, Log
from longrm.runs.records import RolloutRecord
from longrm.training.settings import TrainingSettings
from longrm.types import Outcome
from longrm.worlds import WorldPlan, generate, words_tokenizer


@pytest.fixture
def runs(tmp_path):
    """Two evaluations, of which one is nested, one that was stopped, and one that is damaged."""
    top = tmp_path / "runs"
    for name, model in (
        ("a", "baseline:longest"),
        ("deep/b", "baseline:first"),
        ("stopped", "baseline:last"),
    ):
        probe = Probe(cells=(ProbeCell(lengths=(128, 256), groups=4, per_group=2),))
        settings = Evaluation(model=model, bench="probe", probe=probe, judging=JudgingSettings(resamples=100))
        run_evaluation(settings, top / name)
    (top / "stopped/summary.json").unlink()
    (top / "damaged").mkdir()
    (top / "damaged/manifest.json").write_text('{"schema_version": 1, "kind"')
    (top / "damaged/config.toml").write_text("")
    (top / "notes").mkdir()
    (top / "notes/manifest.json").write_text("{}")
    return top


def longrm(*arguments, width=200, answer=None):
    done = CliRunner().invoke(
        cli, [str(one) for one in arguments], env={"COLUMNS": str(width)}, input=answer, standalone_mode=False
    )
    if done.exception:
        raise done.exception
    return done.stdout


def listed(*arguments):
    return {Path(one["path"]).name: one for one in json.loads(longrm("runs", *arguments, "--json"))["runs"]}


def test_responses_are_exported_for_calibration(tmp_path):
    names = {"chosen_model": "mine", "rejected_model": "theirs"}
    rows = [
        {"id": f"{n}", "prompt": f"{n}?", "chosen": "yes, indeed", "rejected": "no"} | names for n in range(4)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    labels = [[1, 0], [0, 1], [0.5, 0.5], None]  # of people, who left one out
    lines = [json.dumps(row | {"scores": label}) for row, label in zip(rows, labels, strict=True)]
    (tmp_path / "people.jsonl").write_text("\n".join(lines))
    folder, out = tmp_path / "people", tmp_path / "cje.jsonl"
    given = [
        "--recorded",
        tmp_path / "people.jsonl",
        "--bench",
        f"file:{tmp_path / 'pairs.jsonl'}",
        "--out",
        folder,
    ]
    longrm("evaluate", *given, "--set", 'judging.self_names=["mine"]')
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["counts"]["outcomes"]["unparsed"] == 1
    assert summary["self_preference"]["gold"]["value"] == 1.0
    assert summary["self_preference"]["judge"]["value"] == 0.5
    longrm("runs", "export", folder, "--to", "cje", "--out", out)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["judge_score"] for row in found] == [1.0, 0.0, 0.0, 1.0, 0.5, 0.5]
    assert [row["oracle_label"] for row in found] == [1.0, 0.0] * 3
    assert [row["target_policy"] for row in found] == ["mine", "theirs"] * 3
    assert len({row["prompt_id"] for row in found}) == 3
    assert (found[0]["prompt"], found[1]["response"]) == ("0?", "no")


def test_every_run_is_listed_with_the_contents_of_its_files(runs):
    found = listed(runs)
    assert {name: one["state"] for name, one in found.items()} == {
        "a": "finished",
        "b": "finished",
        "damaged": "damaged",
        "stopped": "stopped",
    }
    summary = json.loads((runs / "a/summary.json").read_text())
    a = found["a"]
    assert (a["kind"], a["model"], a["bench"]) == ("evaluation", "baseline:longest", "probe")
    assert (a["metric"], a["result"]) == ("pair_accuracy", summary["metrics"]["overall"]["pair_accuracy"])
    assert a["size"] == sum(file.lstat().st_size for file in (runs / "a").rglob("*") if file.is_file())
    assert a["started"] == json.loads((runs / "a/manifest.json").read_text())["started"]
    assert (found["stopped"]["model"], found["stopped"]["result"]) == ("baseline:last", None)
    assert "not valid JSON" in found["damaged"]["problem"]


def test_a_run_of_trajectories_is_listed_with_its_main_metric(tmp_path):
    rows = [
        {"prompt": "1 + 1?", "completions": ["One and one.", text], "labels": [True, False]}
        for text in ("2.", "It is three.")
    ]
    run = evaluate("baseline:longest", rows, tmp_path / "steps", {"judging.resamples": 100})
    found = listed(tmp_path)["steps"]
    assert (found["kind"], found["metric"]) == ("step evaluation", "auc")
    assert found["result"]["value"] == run.summary.metrics["auc"].value


def test_a_locked_run_is_running(runs):
    with (runs / "stopped/.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert listed(runs)["stopped"]["state"] == "running"
    assert listed(runs)["stopped"]["state"] == "stopped"


def test_runs_are_filtered_and_sorted(runs):
    assert list(listed(runs, "--filter", "state=FINISHED", "--filter", "model=first")) == ["b"]
    sizes = [one["size"] for one in listed(runs, "--sort", "-size").values()]
    assert sizes == sorted(sizes, reverse=True)
    results = [one["result"]["value"] for one in list(listed(runs, "--sort", "result").values())[:2]]
    assert results == sorted(results)
    for wrong in ("--sort", "--filter"):
        with pytest.raises(ConfigError, match="'colour'"):
            longrm("runs", runs, wrong, "colour")


@pytest.mark.parametrize("width", [40, 80, 250])
def test_the_list_is_a_table_that_fits_its_terminal(runs, width):
    head, *lines = longrm("runs", runs, width=width).splitlines()
    table = {line.split()[0]: line for line in lines[:4]}
    assert table.keys() == {"a", "damaged", "deep/b", "stopped"}  # one line each
    for line in (head, *table.values()):
        assert len(line) <= width
    at = {name: head.index(name) for name in ("run", "state", "model")}
    for name, state in (("a", "finished"), ("stopped", "stopped"), ("damaged", "damaged")):
        assert table[name][at["state"] :].startswith(state)
    assert table["a"][at["model"] :].startswith("baseline:longest")
    assert ("result, %" in head) == (width >= 80)
    assert ("size" in head) == (width == 250)  # control: what has no room is named below the table
    assert any(line.startswith("Not shown") for line in lines) == (width < 250)
    # The mark of an interval from few groups is explained where it is shown.
    assert any(line.startswith(FEW) for line in lines) == (FEW in table["a"]) == (width >= 80)


def test_removing_asks_for_confirmation(runs):
    for answer in ("n\n", ""):
        with pytest.raises(RunError):
            longrm("runs", "rm", runs / "a", answer=answer)
        assert (runs / "a").exists()
    assert "Remove this run?" in longrm("runs", "rm", runs / "a", answer="y\n")
    assert not (runs / "a").exists()
    longrm("runs", "rm", runs / "deep/b", runs / "stopped", "--yes")
    assert [run["path"] for run in listed_runs(runs)] == [str(runs / "damaged")]
    with pytest.raises(RunError, match="manifest"):
        longrm("runs", "rm", runs, "--yes")
    assert (runs / "notes").exists()


def test_show_prints_questions_orders_verdicts_and_outcomes(tmp_path):
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64), 4, words_tokenizer()))
    run = tmp_path / "run"
    run_evaluation(Evaluation(model="simulated:0.2", bench=f"file:{tmp_path / 'pairs.jsonl'}"), run)
    shown = longrm("runs", "show", run, "--limit", 2)
    assert shown.count("\n  Question:") == 2
    for part in ("answered", "access code", "Order", "best", "gold", "[[", "2 more"):
        assert part in shown
    name = "records-64-2-s0-000001-0"
    one = longrm("runs", "show", run, "--id", name)
    assert one.startswith(f"{name}: ")
    assert "000002" not in one
    with pytest.raises(RunError, match="other"):
        longrm("runs", "show", run, "--id", "other")


def test_show_prints_why_an_answer_has_no_verdict_and_the_answer(tmp_path):
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64), 8, words_tokenizer()))
    run = tmp_path / "run"
    run_evaluation(Evaluation(model="simulated:misformat=0.5", bench=f"file:{tmp_path / 'pairs.jsonl'}"), run)
    found = next(one for one in Judgments(run) if one.trials[0].outcome is Outcome.UNPARSED)
    shown = longrm("runs", "show", run, "--id", found.id)
    assert found.trials[0].detail
    assert found.trials[0].detail in shown
    assert found.trials[0].explanation.splitlines()[0] in shown


def test_show_prints_the_last_judgments_of_a_training_by_reinforcement(tmp_path):
    run, settings = tmp_path / "run", {"objective": "grpo", "model": {"path": "x"}, "data": {"path": "y"}}
    with RunFolder(run, "training", TrainingSettings.model_validate(settings)):
        pass
    with pytest.raises(RunError, match="run is a training"):
        longrm("runs", "show", run)
    with Log(run / ROLLOUTS, RolloutRecord) as log:
        for step in range(1, 13):
            log.append(
                RolloutRecord(
                    step, f"pair-{step}", "A", 900, ((7,), (7, 8)), ("B wins\n[[B]]", "[[A]]\x1b[2J"),
                    ("answered",) * 2, (0.1, step / 10), (-1.0, 1.0), ({"correct": 0.0}, {"correct": 1.0}), (0.5, 0.5),
                )
            )  # fmt: skip
    shown = longrm("runs", "show", run, "--limit", 2)
    assert [line for line in shown.splitlines() if line.startswith("Step")] == [
        "Step 11, pair-11: gold A, 900 tokens",
        "Step 12, pair-12: gold A, 900 tokens",
    ]
    assert "Reward 1.20 (correct 1.00), answered, 2 tokens" in shown
    assert "    B wins\n    [[B]]\n" in shown
    assert "\x1b" not in shown
    assert "10 earlier" in shown
    assert longrm("runs", "show", run, "--id", "pair-3").startswith("Step 3, pair-3: ")
    with pytest.raises(RunError, match="other"):
        longrm("runs", "show", run, "--id", "other")


def test_runs_inside_a_run_are_listed_with_all(runs):
    (runs / "deep/b").rename(runs / "a/inner")
    assert listed(runs).keys() == {"a", "damaged", "stopped"}
    assert listed(runs, "--all").keys() == {"a", "inner", "damaged", "stopped"}


def test_cached_answers_are_shown_and_pruned(runs):
    for run in ("a", "stopped"):
        (runs / run / "completions.sqlite").write_bytes(b"x" * 7000)
    assert longrm("runs", "cache", runs).partition(": ")[2] == "1 entries, 7.0 kB\n"
    longrm("runs", "cache", runs, "--prune")
    assert not (runs / "a/completions.sqlite").exists()
    assert (runs / "stopped/completions.sqlite").exists()
