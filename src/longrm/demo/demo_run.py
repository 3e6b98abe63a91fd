"""The demo: all its tasks in their order, and the summary of what they made."""

import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from longrm import report
from longrm.demo.stage_evaluations import (
    BEST_OF_4,
    PAIRS,
    UNRELATED,
    assert_unseen,
    evaluate_control,
    evaluate_stage,
    evaluations_of,
    probe_of,
)
from longrm.demo.trainings import (
    CONTROL,
    GENERATIVE_LOGO,
    GENERATIVE_LONG,
    GENERATIVE_LONG_ALONE,
    GENERATIVE_SHORT,
    LONG,
    RESCALES,
    SHORT,
    UNSTRUCTURED,
    UNTRAINED,
    DemoSettings,
    is_generative,
    rescale,
    stages_of,
    tokens_of,
    train_stage,
    trainings_of,
)
from longrm.demo.worker_pool import DemoTask, WorkerPool
from longrm.errors import require
from longrm.evaluation.estimates import paired_difference
from longrm.evaluation.metrics import PAIR_ACCURACY, TOP1
from longrm.evaluation.summaries import read_summary
from longrm.runs.folder import SCHEMA_VERSION, RunFolder, read_json, write_json
from longrm.runs.judgments import read_judgments
from longrm.runs.progress import Progress, no_progress
from longrm.runs.records import JudgmentRecord

SECONDS = "seconds.json"
STARTS = {
    UNTRAINED: "The untrained model is random but for its attention, which begins with heads that look back a few "
    "tokens and heads that match equal content.",
    UNSTRUCTURED: "The row 'unstructured' is the same training from a wholly random start.",
    GENERATIVE_LOGO: "The generative judge begins likewise, in four layers whose heads give back what they copy. It "
    "learns first to write down the record that answers a question, then to judge by it: 'Corimo: keeps bucket. "
    "[[A]]'. LOGO prefers what most of seven simulated judges write, each of which errs in 15 of 100 cases, to what "
    "the others write.",
}
"""How the models begin: notes of the summary, each where its stage is among the evaluated ones."""
CONTRASTS = (
    (LONG, CONTROL),
    (GENERATIVE_LONG, GENERATIVE_SHORT),
    (GENERATIVE_LONG, GENERATIVE_LONG_ALONE),
    (GENERATIVE_LOGO, GENERATIVE_LONG),
)


def run_demo(settings: DemoSettings, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Trains, evaluates and reports; a killed demo continues.

    Args:
        settings: The seed, whether a generative judge is trained too, and whether the controls run.
        out: Holds a run folder for every training and evaluation, `summary.json` and `report.html`.
        progress: Called by all tasks.

    Returns:
        The summary: the stages with their evaluations, the contrasts, the controls, and the seconds: of the
        tasks as they ran, and `total`, the wall-clock seconds of this call.
    """
    require("torch", "transformers", "altair", "vl_convert", user="the demo")
    began = time.perf_counter()
    with (
        RunFolder(out, "demo", settings) as folder,
        WorkerPool(len(os.sched_getaffinity(0)), "demo", progress) as workers,
    ):
        seconds = _Seconds(out / SECONDS)
        seconds.add(workers.run(tasks_of(settings, out), partial(_tell, settings, out, progress)))
        summary = summarize_demo(settings, out, seconds.by_task)
        summary["seconds"]["total"] = round(time.perf_counter() - began, 3)
        folder.write_summary(summary)
        report.build([out], out / "report.html")
    return summary


def _evaluates(stage: str, evaluation: str) -> str:
    """The name of the task that evaluates a stage."""
    return f"evaluate {stage} {evaluation}"


def _tell(settings: DemoSettings, out: Path, progress: Progress, task: str) -> None:
    """Tells what an evaluation of pairs has found, once it is finished."""
    for stage in stages_of(settings):
        if task == _evaluates(stage, PAIRS):
            by_length = read_summary(out / "stages" / stage / PAIRS)["metrics"]["by_length"]
            found = (
                f"{100 * figures['pair_accuracy']['value']:.0f}% at {length}"
                for length, figures in by_length.items()
            )
            progress(stage, 1, 1, f"pair accuracy {', '.join(found)} tokens")


def tasks_of(settings: DemoSettings, out: Path) -> list[DemoTask]:
    """All tasks, and which come before which."""
    trainings, stages = trainings_of(settings), stages_of(settings)
    made_by = {each.stage: f"train {each.stage}" for each in trainings}
    trained = tuple(made_by.values())
    todo = [
        DemoTask(
            made_by[each.stage],
            train_stage,
            (each, settings, out),
            (made_by[each.start],) if each.start else (),
            work=3 * tokens_of(each, settings, out),  # backward costs twice as much as forward
        )
        for each in trainings
    ]
    made_by[UNTRAINED] = made_by[SHORT]  # which leaves it
    for stage in stages:
        if stage in RESCALES:
            before = made_by[RESCALES[stage][0]]
            made_by[stage] = f"rescale {stage}"
            todo.append(DemoTask(made_by[stage], rescale, (stage, settings, out), (before,)))
    todo += [
        DemoTask(
            _evaluates(stage, evaluation),
            evaluate_stage,
            (stage, evaluation, settings, out),
            (made_by[stage],),
            work=sum(sum(cell.lengths) * cell.groups for cell in probe_of(stage, evaluation, settings).cells),
        )
        for stage in stages
        for evaluation in evaluations_of(stage)
    ]
    todo += [
        DemoTask(f"evaluate {name}", evaluate_control, (name, settings, out), (made_by[stage],))
        for name, stage in UNRELATED.items()
        if stage in stages
    ]
    return [*todo, DemoTask("check contexts", assert_unseen, (settings, out), trained)]


def summarize_demo(settings: DemoSettings, out: Path, seconds: dict[str, float]) -> dict[str, Any]:
    """The summary of all stages in the folder."""
    stages, found = stages_of(settings), {}
    for stage in stages:
        first, *others = evaluations_of(stage)
        found[stage] = read_summary(out / "stages" / stage / first) | {
            evaluation: read_summary(out / "stages" / stage / evaluation) for evaluation in others
        }
    controls = {
        name: read_summary(out / "controls" / name)["metrics"]["overall"]["pair_accuracy"]
        for name, stage in UNRELATED.items()
        if stage in stages
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "demo",
        "seed": settings.seed,
        "complete": all(stage["complete"] for stage in found.values()),
        "stages": found,
        "contrasts": {
            f"{one}_vs_{other}": {
                "by_length": _contrast(out, one, other, PAIRS),
                "best_of_4": None if is_generative(one) else _contrast(out, one, other, BEST_OF_4),
            }
            for one, other in CONTRASTS
            if one in stages
        },
        "controls": controls,
        "notes": {"start": " ".join(note for stage, note in STARTS.items() if stage in stages)},
        "seconds": dict(seconds),
    }


def _contrast(out: Path, stage: str, other: str, evaluation: str) -> dict[str, Any]:
    """The paired difference of two stages' accuracy, by length."""
    metric = (TOP1 if evaluation == BEST_OF_4 else PAIR_ACCURACY).name
    ours, theirs = (_records_by_length(out / "stages" / name / evaluation) for name in (stage, other))
    return {
        str(length): asdict(paired_difference(ours[length], theirs[length], metric))
        for length in sorted(ours)
    }


def _records_by_length(run_folder: Path) -> dict[int, list[JudgmentRecord]]:
    records: dict[int, list[JudgmentRecord]] = {}
    for record in read_judgments(run_folder):
        assert record.length is not None, "generated comparisons know their length"
        records.setdefault(record.length, []).append(record)
    return records


class _Seconds:
    """How long each task took when it did its work: a continued demo keeps the longer time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.by_task: dict[str, float] = read_json(path) if path.exists() else {}

    def add(self, tasks: dict[str, float]) -> None:
        self.by_task |= {name: max(seconds, self.by_task.get(name, 0.0)) for name, seconds in tasks.items()}
        write_json(self._path, self.by_task)
