"""The demo's course: all its parts in their order, and what is made of them."""

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longrm import report
from longrm.demo.arms import (
    CONTROL,
    LONG,
    RESCALES,
    SHORT,
    UNSTRUCTURED,
    UNTRAINED,
    WRITES_LOGO,
    WRITES_LONG,
    WRITES_LONG_ALONE,
    WRITES_SHORT,
    DemoSettings,
    arms_of,
    rescale,
    stages_of,
    train_arm,
)
from longrm.demo.exams import PAIRS, UNRELATED, assert_unseen, exams_of, take_control, take_exam
from longrm.demo.processes import Part, Processes
from longrm.evaluation.estimates import paired_difference
from longrm.evaluation.summary_schema import read_summary
from longrm.runs.folder import SCHEMA_VERSION, RunFolder, read_json, write_json
from longrm.runs.judgments import read_judgments
from longrm.runs.progress import Progress, no_progress
from longrm.runs.records import JudgmentRecord

SECONDS = "seconds.json"
STARTS = {
    UNTRAINED: "The untrained model is random but for its attention, which begins with heads that look back a few "
    "tokens and heads that match equal content.",
    UNSTRUCTURED: "The row 'unstructured' is the same training from a wholly random start.",
    WRITES_LOGO: "The judge that writes begins likewise, in four layers whose heads give back what they copy. It "
    "learns first to write down the record that answers a question, then to judge by it: 'Corimo: keeps bucket. "
    "[[A]]'. LOGO prefers what most of seven simulated judges write, each of which errs in 15 of 100 cases, to what "
    "the others write.",
}
"""How the models begin: what is said of it where the stage is there."""
CONTRASTS = (
    (LONG, CONTROL),
    (WRITES_LONG, WRITES_SHORT),
    (WRITES_LONG, WRITES_LONG_ALONE),
    (WRITES_LOGO, WRITES_LONG),
)


def run(settings: DemoSettings, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Trains, evaluates and reports; a killed demo continues.

    Args:
        settings: The seed, whether a judge that writes is trained too, and whether the controls run.
        out: Holds a run folder for every training and evaluation, `summary.json` and `report.html`.
        progress: Called by all parts.

    Returns:
        The summary: the stages with their evaluations, the contrasts, the controls, and the seconds: of the
        parts as they ran, and `total`, the wall-clock seconds of this call.
    """
    began = time.perf_counter()
    with (
        RunFolder(out, "demo", settings) as folder,
        Processes(len(os.sched_getaffinity(0)), progress) as workers,
    ):
        seconds = _Seconds(out / SECONDS)
        seconds.add(workers.run(parts(settings, out)))
        summary = summed_up(settings, out, seconds.parts)
        summary["seconds"]["total"] = round(time.perf_counter() - began, 3)
        folder.write_summary(summary)
        report.build([out], out / "report.html")
    return summary


def parts(settings: DemoSettings, out: Path) -> list[Part]:
    """All that is to be done, and after what."""
    arms, stages = arms_of(settings), stages_of(settings)
    made_by = {arm.stage: f"train {arm.stage}" for arm in arms}
    trained = tuple(made_by.values())
    todo = [
        Part(made_by[arm.stage], train_arm, (arm, settings, out), (made_by[arm.start],) if arm.start else ())
        for arm in arms
    ]
    made_by[UNTRAINED] = made_by[SHORT]  # which leaves it
    for stage in stages:
        if stage in RESCALES:
            before = made_by[RESCALES[stage][0]]
            made_by[stage] = f"rescale {stage}"
            todo.append(Part(made_by[stage], rescale, (stage, settings, out), (before,)))
    todo += [
        Part(f"evaluate {stage} {exam}", take_exam, (stage, exam, settings, out), (made_by[stage],))
        for stage in stages
        for exam in exams_of(stage)
    ]
    todo += [
        Part(f"evaluate {name}", take_control, (name, settings, out), (made_by[stage],))
        for name, stage in UNRELATED.items()
        if stage in stages
    ]
    return [*todo, Part("check contexts", assert_unseen, (settings, out), trained)]


def summed_up(settings: DemoSettings, out: Path, seconds: dict[str, float]) -> dict[str, Any]:
    """The summary of all that lies in the folder."""
    stages, found = stages_of(settings), {}
    for stage in stages:
        first, *others = exams_of(stage)
        found[stage] = read_summary(out / "stages" / stage / first) | {
            exam: read_summary(out / "stages" / stage / exam) for exam in others
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
            f"{one}_vs_{other}": {"by_length": _contrast(out, one, other)}
            for one, other in CONTRASTS
            if one in stages
        },
        "controls": controls,
        "notes": {"start": " ".join(told for stage, told in STARTS.items() if stage in stages)},
        "seconds": dict(seconds),
    }


def _contrast(out: Path, stage: str, other: str) -> dict[str, Any]:
    """The paired difference of two stages' pair accuracy, by length."""
    ours, theirs = (_records_by_length(out / "stages" / name / PAIRS) for name in (stage, other))
    return {str(length): asdict(paired_difference(ours[length], theirs[length])) for length in sorted(ours)}


def _records_by_length(run_folder: Path) -> dict[int, list[JudgmentRecord]]:
    records: dict[int, list[JudgmentRecord]] = {}
    for record in read_judgments(run_folder):
        assert record.length is not None, "generated comparisons know their length"
        records.setdefault(record.length, []).append(record)
    return records


class _Seconds:
    """How long each part took when it did its work: a continued demo keeps the longer time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.parts: dict[str, float] = read_json(path) if path.exists() else {}

    def add(self, parts: dict[str, float]) -> None:
        self.parts |= {name: max(seconds, self.parts.get(name, 0.0)) for name, seconds in parts.items()}
        write_json(self._path, self.parts)
