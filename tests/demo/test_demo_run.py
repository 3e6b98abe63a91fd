"""The demo: its tasks and their order, its results, and the worker processes."""

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
from longrm.benchmarks import Probe
from longrm.benchmarks.probe import comparisons
from longrm.cli.demo import print_demo
from longrm.cli.runs import listed_runs
from longrm.data.training_rows import context_digest
from longrm.demo import DemoSettings, DemoTask, Stage, run_tasks
from longrm.errors import RunError, TrainingError
from longrm.evaluation.read_run import Run
from longrm.runs.folder import RunFolder
from longrm.runs.progress import no_progress

ALL = DemoSettings(generative=True)
STAGES = {stage.name: stage for stage in ALL.stages}


def shrunk(text):
    """A recipe of three steps on short contexts."""
    for key, value in (("max_steps", "3"), ("responses_per_step", "8"), ("lengths", "[140]")):
        text = re.sub(rf"^{key} =.*", f"{key} = {value}", text, flags=re.MULTILINE)
    return text


def few_cells(stage: Stage, exam: str, settings: DemoSettings):
    groups = 2 if stage in demo.JUDGES or stage.name == "untrained" else 4
    return [{"lengths": (160,) if exam == "unrelated" else (160, 200), "groups": groups, "per_group": 2}]


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory):
    """All tasks of the demo, with a few steps and short evaluations, in this process."""
    out = tmp_path_factory.mktemp("demo") / "out"
    recipes = tmp_path_factory.mktemp("recipes")
    for recipe in demo.RECIPES.iterdir():
        (recipes / recipe.name).write_text(shrunk(recipe.read_text()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "RECIPES", recipes)
        patch.setattr(demo, "cells_of", few_cells)
        with RunFolder(out, "demo", ALL) as folder:
            tasks = {task.name: task for task in demo.tasks_of(ALL, out)}
            for task in sorted(tasks.values(), key=lambda task: depth(task, tasks)):
                task.function(*task.arguments)
            demo.write_report(ALL, out)
            summary = demo.summarize(ALL, out) | {"seconds": 1.0}
            folder.write_summary(summary)
    return out, summary


def depth(task, tasks):
    """The number of tasks that must be done one after the other before this one."""
    return max((1 + depth(tasks[name], tasks) for name in task.after), default=0)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_summary_has_the_accuracies_and_contrasts_of_all_stages(small_demo):
    out, summary = small_demo
    accuracy = summary["accuracy"]
    assert accuracy["pairs"].keys() == STAGES.keys() - {"generative_base"}
    assert [*accuracy["best_of_4"]] == ["untrained", "short", "control", "long"]
    assert [*accuracy["pointwise"]] == ["generative_short", "generative_long", "generative_logo"]
    assert [*accuracy["unrelated"]] == ["long", "generative_logo"]
    assert [*accuracy["pairs"]["long"]] == ["all", "160", "200"]
    stored = json.loads((out / "stages/long/best_of_4/summary.json").read_text())["metrics"]
    assert accuracy["best_of_4"]["long"]["200"] == stored["by_length"]["200"]["top1"]
    assert {name: [*exams] for name, exams in summary["contrasts"].items()} == {
        "long_vs_control": ["pairs", "best_of_4"],
        "generative_long_vs_generative_short": ["pairs", "pointwise"],
        "generative_long_vs_generative_long_alone": ["pairs"],
        "generative_logo_vs_generative_long": ["pairs", "pointwise", ],
    }  # fmt: skip
    (run,) = listed_runs(out.parent)
    assert (run["kind"], run["state"]) == ("demo", "finished")
    gap = summary["contrasts"]["long_vs_control"]["pairs"]["200"]["value"]
    long, control = (accuracy["pairs"][name]["200"]["value"] for name in ("long", "control"))
    assert gap == pytest.approx(long - control)


def test_the_result_is_printed_by_stage_and_length(small_demo, capsys):
    out, summary = small_demo
    print_demo(ALL, summary, out)
    printed = " ".join(capsys.readouterr().out.split())
    for stage in ("untrained", "short", "control", "long"):
        assert f"{stage} {STAGES[stage].meaning}" in printed
        top1 = (f"{100 * summary['accuracy']['best_of_4'][stage][n]['value']:.1f}" for n in ("160", "200"))
        assert f"{stage} {' '.join(top1)}" in printed
    assert "long on unrelated contexts, a control: " in printed


def test_the_report_has_all_stages(small_demo):
    out, _ = small_demo
    text = (out / "report.html").read_text()
    for stage in ALL.stages:
        assert stage.label in text
        assert stage.meaning in text
    assert "Scalar reward models. Pair accuracy against context length" in text


def test_stages_of_a_kind_judge_the_same_comparisons(small_demo):
    out, summary = small_demo
    ids = {
        stage: [line["id"] for line in lines(out / f"stages/{stage}/pairs/judgments.jsonl")]
        for stage in summary["accuracy"]["pairs"]
    }
    trained = [stage for stage in ids if stage != "untrained"]
    assert len({(STAGES[stage] in demo.JUDGES, *ids[stage]) for stage in trained}) == 2
    assert {*ids["untrained"]} < {*ids["short"]}
    rules = {run: Run(run).settings["judging"]["baselines"] for run in (out / "stages").glob("*/*")}
    assert {run: found for run, found in rules.items() if found} == {out / "stages/long/pairs": ["overlap"]}


def test_no_evaluated_context_was_trained_on(small_demo):
    out, _ = small_demo
    logs = [*(out / "training").glob("*/contexts.jsonl")]
    assert len(logs) == sum(stage.data_seed is not None for stage in ALL.stages)
    trained = {digest for log in logs for line in lines(log) for digest in line["digests"]}
    for run in (out / "stages").glob("*/*"):
        for row in comparisons(Probe.model_validate(Run(run).settings["probe"])):
            assert context_digest(row) not in trained
    again = Probe(seed=3, tokenizer="words", cells=({"lengths": (140,), "groups": 8, "per_group": 1},))
    assert {context_digest(row) for row in comparisons(again)} & trained, (
        "the seed of `control`: a negative control"
    )


def test_every_training_starts_from_its_stage_and_differs_from_it(small_demo):
    out, _ = small_demo
    continued = [stage for stage in ALL.stages if stage.start]
    for stage in continued:
        config = (out / "training" / stage.name / "config.toml").read_text()
        assert f'path = "{demo.model_of(stage.start, out)}"' in config
    names = {stage.name for stage in continued} | {stage.start for stage in continued}
    weights = {(demo.model_of(name, out) / "model.safetensors").read_bytes() for name in names}
    assert len(weights) == len(names)


def test_the_rescaled_stage_differs_only_in_its_rotary_base(small_demo):
    names = ("generative_rescale_only", "generative_short")
    folders = [demo.model_of(name, small_demo[0]) for name in names]
    one, other = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert one == other
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    assert [config.pop("rope_parameters")["rope_theta"] for config in configs] == [100_000.0, 1000.0]
    assert configs[0] == configs[1]


def test_every_task_waits_for_what_it_needs(tmp_path):
    needs = {task.name: task.after for task in demo.tasks_of(ALL, tmp_path)}
    assert needs["train long"] == ("train short",)
    assert needs["rescale the judge"] == ("train generative_short",)
    assert needs["evaluate generative_rescale_only pairs"] == ("rescale the judge",)
    assert needs["evaluate untrained pairs"] == ("train short",)
    assert needs["evaluate generative_logo pointwise"] == ("train generative_logo",)
    assert all({*after} <= needs.keys() for after in needs.values())
    names = [task.name for task in demo.tasks_of(DemoSettings(), tmp_path)]
    assert names.index("train long") < names.index("train control"), "the longer training comes first"


def test_stages_at_chance_are_judged_on_ten_contexts_per_length_at_least():
    full = {stage.name: stage for stage in demo.SCALAR}["short"]
    for stage in demo.SCALAR:
        for exam in ("pairs", "best_of_4"):
            cells = demo.cells_of(stage, exam, DemoSettings())
            for cell, whole in zip(cells, demo.cells_of(full, exam, DemoSettings()), strict=True):
                assert 10 <= cell["groups"] <= whole["groups"]
                assert (cell["groups"] < whole["groups"]) == (stage.name in ("untrained", "unstructured"))


def test_a_demo_with_other_settings_is_not_resumed(small_demo):
    with pytest.raises(RunError, match="seed"):
        demo.run_demo(DemoSettings(generative=True, seed=1), small_demo[0])


def test_the_unstructured_start_reaches_the_worker_process(tmp_path):
    """Tasks are pickled: a worker gets an equal stage, not the same object."""
    stage = next(stage for stage in demo.SCALAR if stage.name == "unstructured")
    settings = demo.recipe_of(pickle.loads(pickle.dumps(stage)), 0, tmp_path)
    assert not settings.model.new.structured
    assert settings.plateau_steps == 0
    assert pickle.loads(pickle.dumps(demo.JUDGES[0])) in demo.JUDGES


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
    run_tasks(tasks, lambda *message: shown.append(message), workers=1)
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
    accuracy, gaps = summary["accuracy"]["pairs"], summary["contrasts"]["long_vs_control"]["pairs"]
    assert accuracy["short"]["128"]["value"] >= 0.97
    assert all(accuracy["long"][n]["value"] >= 0.97 for n in ("128", "256", "512", "1024", "2048"))
    assert gaps["4096"]["low"] > 0.10
    assert demo.run_demo(DemoSettings(seed=3), tmp_path / "demo")["accuracy"] == summary["accuracy"]
