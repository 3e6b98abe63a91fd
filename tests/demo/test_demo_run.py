"""The demo: its tasks and their order, the summary, and the worker processes."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longrm import demo
from longrm.benchmarks import Probe, ProbeCell
from longrm.cli.demo import _print as print_demo
from longrm.demo import DemoSettings, DemoTask, run_tasks
from longrm.errors import RunError, TrainingError
from longrm.report.load import STAGES
from longrm.runs.folder import RunFolder
from longrm.runs.progress import no_progress
from longrm.runs.records import Estimate

ALL = DemoSettings(generative=True)


def shrunk(text):
    """A recipe of three steps on short contexts."""
    for key, value in (("steps", "3"), ("responses_per_step", "8"), ("lengths", "[140]")):
        text = re.sub(rf"^{key} =.*", f"{key} = {value}", text, flags=re.MULTILINE)
    return text


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory):
    """All tasks of the demo, with a few steps and short evaluations, in this process."""
    out = tmp_path_factory.mktemp("demo") / "out"
    recipes = tmp_path_factory.mktemp("recipes")
    for recipe in demo.RECIPES.glob("*.toml"):
        (recipes / recipe.name).write_text(shrunk(recipe.read_text()))
    cell = ProbeCell(lengths=(160, 200), groups=4, per_group=2)
    judged = Probe(seed=1, cells=(ProbeCell(lengths=(160, 200), groups=2, per_group=1),))
    probes = {
        (False, "pairs"): Probe(seed=1, cells=(cell,)),
        (False, "best_of_4"): Probe(seed=1, responses=4, cells=(cell,)),
        (True, "pairs"): judged,
        (True, "pointwise"): judged,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "RECIPES", recipes)
        patch.setattr(demo, "probes", lambda settings: probes)
        patch.setattr(demo, "_MIN_CONTEXTS", 2)
        unrelated = ProbeCell(lengths=(160,), groups=2, per_group=2)
        patch.setattr(demo, "ProbeCell", lambda **_: unrelated)
        with RunFolder(out, "demo", ALL) as folder:
            for task in demo.tasks_of(ALL, out):
                task.function(*task.arguments)
            summary = demo.summarize_demo(ALL, out, {"train short": 1.0})
            folder.write_summary(summary)
    return out, summary, probes


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_summary_has_all_stages_and_contrasts(small_demo):
    _, summary, _ = small_demo
    assert list(summary["stages"]) == [n for n in STAGES if n not in ("generative_base", "unstructured")]
    assert list(summary["contrasts"]["long_vs_control"]["by_length"]) == ["160", "200"]
    assert list(summary["controls"]) == ["unrelated_context", "judge_unrelated_context"]
    pointwise = {stage for stage, found in summary["stages"].items() if "pointwise" in found}
    assert pointwise == {"generative_short", "generative_long", "generative_logo"}
    for stage, found in summary["stages"].items():
        assert ("best_of_4" in found) != demo.is_generative(stage)


@pytest.mark.parametrize("high", [-0.1, 0.1, None])
def test_where_long_is_worse_than_its_control_is_next_to_the_headline(small_demo, monkeypatch, capsys, high):
    out, _, _ = small_demo
    gap = Estimate(-0.25, None if high is None else -0.4, high, 80, 40)
    monkeypatch.setattr(demo, "paired_difference", lambda *_: gap)
    stages = [stage for stage in demo.stages_of(ALL) if not demo.is_generative(stage)]
    monkeypatch.setattr(demo, "stages_of", lambda _: stages)
    summary = demo.summarize_demo(ALL, out, {"total": 1.0})
    print_demo(summary, out)
    printed = " ".join(capsys.readouterr().out.split())
    assert "best of 4 −25.0 −25.0" in printed
    for stage in ("untrained", "short", "control", "long"):
        assert " ".join(STAGES[stage]) in printed
    if high is None or high > 0:
        assert "trade_off" not in summary["notes"]
        assert "In best of 4" not in printed
        assert "Best of 4, % (chance 25)" in printed
    else:
        note = summary["notes"]["trade_off"]
        assert "in points: −25.0 at 160 and −25.0 at 200 tokens" in note
        assert "only 3 of its 3 steps" in note
        for stage in ("short", "control"):
            top1 = summary["stages"][stage]["best_of_4"]["metrics"]["by_length"]["160"]["top1"]["value"]
            assert f"{100 * top1:.1f}%" in note
        assert note in printed


def test_all_stages_of_a_kind_judge_the_same_comparisons(small_demo):
    out, summary, _ = small_demo
    ids = {
        stage: [line["id"] for line in lines(out / f"stages/{stage}/pairs/judgments.jsonl")]
        for stage in summary["stages"]
    }
    trained = [stage for stage in ids if stage != "untrained"]
    assert len({(demo.is_generative(stage), *ids[stage]) for stage in trained}) == 2
    assert {*ids["untrained"]} < {*ids["short"]}


def test_every_training_starts_from_its_stage_and_differs_from_it(small_demo):
    out, _, _ = small_demo
    trainings = [training for training in demo.trainings_of(ALL) if training.start]
    for training in trainings:
        config = (out / "training" / training.stage / "config.toml").read_text()
        assert f'path = "{demo.model_of(training.start, out)}"' in config
    stages = {training.stage for training in trainings} | {training.start for training in trainings}
    weights = {(demo.model_of(stage, out) / "model.safetensors").read_bytes() for stage in stages}
    assert len(weights) == len(stages)


def test_the_rescaled_stage_differs_only_in_its_rotary_base(small_demo):
    folders = [demo.model_of(stage, small_demo[0]) for stage in (demo.RESCALED, "generative_short")]
    one, other = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert one == other
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    assert [config.pop("rope_parameters")["rope_theta"] for config in configs] == [100_000.0, 1000.0]
    assert configs[0] == configs[1]


def test_a_context_that_was_trained_on_is_found(small_demo, monkeypatch):
    out, _, probes = small_demo
    trained = lines(out / "training/generative_logo/contexts.jsonl")[0]["digests"][0]
    monkeypatch.setattr(demo, "probes", lambda settings: probes)
    monkeypatch.setattr(demo, "context_digest", lambda comparison: trained)
    with pytest.raises(AssertionError, match="was trained on"):
        demo.assert_unseen(ALL, out)


def test_every_task_waits_for_what_it_needs(tmp_path):
    needs = {task.name: task.after for task in demo.tasks_of(ALL, tmp_path)}
    assert needs["train long"] == ("train short",)
    assert needs["rescale the judge"] == ("train generative_short",)
    assert needs[f"evaluate {demo.RESCALED} pairs"] == ("rescale the judge",)
    assert needs["evaluate untrained pairs"] == ("train short",)
    assert needs["evaluate generative_logo pointwise"] == ("train generative_logo",)
    assert all({*after} <= needs.keys() for after in needs.values())


def test_stages_at_chance_are_judged_on_ten_contexts_per_length_at_least():
    for stage in demo.stages_of(DemoSettings()):
        for evaluation in demo.evaluations_of(stage):
            all_cells = demo.probes(DemoSettings())[False, evaluation].cells
            cells = demo.probe_of(stage, evaluation, DemoSettings()).cells
            for cell, full in zip(cells, all_cells, strict=True):
                assert 10 <= cell.groups <= full.groups
                assert (cell.groups < full.groups) == (stage in ("untrained", "unstructured"))


def test_a_demo_with_other_settings_is_not_resumed(small_demo):
    with pytest.raises(RunError, match="seed"):
        demo.run_demo(DemoSettings(generative=True, seed=1), small_demo[0])


def write_pid(path, before=None):
    assert before is None or before.exists()
    path.write_text(str(os.getpid()))


def fail():
    raise TrainingError("the loss of step 3 is nan")


def test_tasks_run_in_other_processes_in_the_order_of_their_dependencies(tmp_path):
    shown = []
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    tasks = [
        DemoTask("second", write_pid, (second, first), ("first",)),
        DemoTask("first", write_pid, (first,)),
        DemoTask("third", write_pid, (third, second)),  # fails unless the worker takes "second" before it
    ]
    seconds = run_tasks(tasks, lambda *message: shown.append(message), workers=1)
    assert [*seconds] == ["first", "second", "third"]
    assert os.getpid() not in {int(path.read_text()) for path in (first, second, third)}
    running = ["first", "second", "third", ""]
    assert shown == [("demo", done, 3, names) for done, names in enumerate(running)]


def test_an_error_of_a_task_is_raised_and_cycles_are_found():
    with pytest.raises(TrainingError, match="step 3"):
        run_tasks([DemoTask("fails", fail, ())], no_progress, workers=1)
    with pytest.raises(AssertionError, match="wait for each other"):
        run_tasks([DemoTask("a", fail, (), ("b",)), DemoTask("b", fail, (), ("a",))], no_progress)


WAITING = """
import os, sys, time
from pathlib import Path
from longrm.demo import DemoTask, run_tasks

def wait(path):
    path.write_text(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    run_tasks([DemoTask("waits", wait, (Path(sys.argv[1]),))], lambda *_: None, workers=1)
"""


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_main_process(tmp_path, number):
    """Killed, or by Ctrl-C, which a terminal sends to all of them."""
    (tmp_path / "main.py").write_text(WAITING)
    main = subprocess.Popen(
        [sys.executable, tmp_path / "main.py", tmp_path / "pid"],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    assert worker.exists()
    (os.killpg if number == signal.SIGINT else os.kill)(main.pid, number)
    _, errors = main.communicate(timeout=60)
    if number == signal.SIGINT:
        assert (errors.count("Traceback"), errors.splitlines()[-1]) == (1, "KeyboardInterrupt"), errors
    while worker.exists() and worker.read_text().rsplit(")")[1].split()[0] != "Z":
        assert time.monotonic() < deadline, "the worker outlived its main process"
        time.sleep(0.05)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_the_demo_moves_the_boundary(tmp_path):
    summary = demo.run_demo(DemoSettings(seed=3), tmp_path / "demo")
    stages = {name: stage["metrics"]["by_length"] for name, stage in summary["stages"].items()}
    assert stages["short"]["128"]["pair_accuracy"]["value"] >= 0.97
    assert all(
        stages["long"][n]["pair_accuracy"]["value"] >= 0.97 for n in ("128", "256", "512", "1024", "2048")
    )
    assert summary["contrasts"]["long_vs_control"]["by_length"]["4096"]["low"] > 0.10
    assert demo.run_demo(DemoSettings(seed=3), tmp_path / "demo")["stages"] == summary["stages"]


def test_the_unstructured_start_reaches_the_worker_process(tmp_path):
    """Tasks are pickled: a worker gets an equal training, not the same object."""
    settings = demo.recipe_of(pickle.loads(pickle.dumps(demo.UNSTRUCTURED)), 0, tmp_path)
    assert not settings.model.new.structured
    assert settings.plateau_steps == 0
