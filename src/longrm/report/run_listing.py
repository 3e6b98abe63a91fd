"""What there is to say of every run in a folder, in one row each."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from longrm import reading
from longrm.errors import ConfigError, RunError, nearest
from longrm.evaluation import wording
from longrm.evaluation.summaries import EvaluationSummary, RunSummary, TrainingSummary
from longrm.evaluation.summary_schema import load_summary
from longrm.runs.folder import CONFIG, SUMMARY, read_manifest
from longrm.runs.logs import Log
from longrm.runs.records import Estimate, TimingRecord
from longrm.runs.removal import is_running, run_folders, size_of

RunState = Literal["finished", "incomplete", "running", "stopped", "damaged"]
"""What became of a run: `incomplete` is one whose errors the same command tries again; `stopped` has no summary yet."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run of a folder.

    Attributes:
        path: Where it lies.
        kind: What its manifest says: "evaluation", "training", "demo", "scoring" or "synthesis of ..."; empty if that
            cannot be read.
        state: What became of it.
        fault: What is damaged; else empty.
        model: The model that it judges with or begins with; empty where it names none.
        bench: What is judged; empty if nothing is.
        metric: The metric of its main figure; empty where there is none.
        figure: Main accuracy of an evaluation; of a training the best of its evaluations.
        boundary: Context boundary in tokens, or its status in words where there is none.
        started: When it began, as ISO 8601 has it.
        size: Bytes on the disk, with the runs inside it.
        seconds: How long it worked, where it measured that.
        cost: What its endpoints were paid, in the currency of their prices.
        inside: How many further runs it holds.
    """

    path: str
    kind: str
    state: RunState
    fault: str = ""
    model: str = ""
    bench: str = ""
    metric: str = ""
    figure: Estimate | None = None
    boundary: str = ""
    started: str = ""
    size: int = 0
    seconds: float | None = None
    cost: float | None = None
    inside: int = 0


SORTS: dict[str, Callable[[ListedRun], Any]] = {
    "path": lambda run: run.path,
    "kind": lambda run: run.kind,
    "state": lambda run: run.state,
    "model": lambda run: run.model or None,
    "bench": lambda run: run.bench or None,
    "figure": lambda run: run.figure.value if run.figure else None,
    "date": lambda run: run.started or None,
    "size": lambda run: run.size,
    "seconds": lambda run: run.seconds,
    "cost": lambda run: run.cost,
}
"""By what runs are sorted; what has no value comes last."""

FILTERS = ("path", "kind", "state", "model", "bench")


def listed_runs(top: Path, *, every: bool = False) -> list[ListedRun]:
    """The runs in a folder by their paths; those inside another run are counted there, unless `every` one is listed.

    Raises:
        RunError: There is no such folder.
    """
    if not top.is_dir():
        raise RunError(f"{top} is no folder; name the one that holds your runs")
    folders = list(run_folders(top))
    parents = [next((one for one in place.parents if one in folders), None) for place in folders]
    return [
        _listed(place, sum(place in other.parents for other in folders))
        for place, parent in zip(folders, parents, strict=True)
        if every or parent is None
    ]


def chosen(runs: Sequence[ListedRun], filters: Sequence[str] = (), sort: str = "path") -> list[ListedRun]:
    """Those of the runs that fit every filter, sorted.

    Args:
        runs: The runs.
        filters: `FIELD=TEXT` each: the field holds the text, in whatever case.
        sort: One of `SORTS`, with `-` before it for the largest first.

    Raises:
        ConfigError: An unknown field, or a filter without one.
    """
    for given in filters:
        name, equals, text = given.partition("=")
        if not equals or name not in FILTERS:
            raise ConfigError(f"--filter {given}: needs FIELD=TEXT with one of {', '.join(FILTERS)}")
        runs = [run for run in runs if text.lower() in str(getattr(run, name)).lower()]
    key = sort.removeprefix("-")
    if key not in SORTS:
        raise ConfigError(f"--sort {sort}: {nearest(key, SORTS)}")
    known = [run for run in runs if SORTS[key](run) is not None]
    ordered = sorted(known, key=SORTS[key], reverse=sort.startswith("-"))
    return [*ordered, *(run for run in runs if SORTS[key](run) is None)]


def _listed(folder: Path, inside: int) -> ListedRun:
    path, size = str(folder), size_of(folder)
    try:
        manifest = read_manifest(folder)
        settings = reading.read_toml(folder / CONFIG, RunError)
    except RunError as error:
        return ListedRun(path, "", "damaged", str(error), size=size, inside=inside)
    summary, state, fault = _summary(folder, manifest)
    facts: dict[str, Any] = {
        "model": _model(settings),
        "bench": _text(settings.get("bench")),
        "seconds": _seconds(folder, summary, manifest),
        "cost": _cost(manifest),
    }
    if isinstance(summary, EvaluationSummary):
        facts |= _evaluated(summary)
    elif isinstance(summary, TrainingSummary) and summary.evaluations and summary.evaluations.best:
        best = summary.evaluations.values[str(summary.evaluations.best)]
        facts |= {
            "metric": summary.evaluations.metric,
            "figure": None if best is None else Estimate(best, None, None, 1, 1),
        }
    kind, started = manifest["kind"], manifest["started"]
    return ListedRun(path, kind, state, fault, **facts, started=started, size=size, inside=inside)


def _summary(folder: Path, manifest: Mapping[str, Any]) -> tuple[RunSummary | None, RunState, str]:
    """The summary, if there is one, and what it and the lock say of the run."""
    summary, fault, complete = None, "", manifest.get("counts") is not None  # of a synthesis
    if os.path.lexists(folder / SUMMARY):
        try:
            summary = load_summary(folder)
        except RunError as error:
            fault = str(error)
    if is_running(folder):
        return summary, "running", ""
    if fault:
        return None, "damaged", fault
    if summary is None:
        return None, "finished" if complete else "stopped", ""
    return summary, "finished" if getattr(summary, "complete", True) else "incomplete", ""


def _evaluated(summary: EvaluationSummary) -> dict[str, Any]:
    boundary = summary.boundary
    known = boundary is not None and boundary.estimate.value is not None
    where = wording.boundary_estimate(boundary) if boundary and known else ""
    return {
        "model": summary.model,
        "bench": summary.bench,
        "metric": summary.main_metric,
        "figure": summary.metrics.overall.get(summary.main_metric),
        "boundary": where or (wording.STATUSES[boundary.status][0] if boundary else ""),
    }


def _model(settings: Mapping[str, Any]) -> str:
    """What a run's settings name as its model, or as its judge."""
    for place in (settings.get("model"), settings.get("judge"), settings.get("recorded")):
        held = place.get("path") or place.get("model") if isinstance(place, Mapping) else place
        if isinstance(held, str) and held:
            return held
    return ""


def _seconds(folder: Path, summary: RunSummary | None, manifest: Mapping[str, Any]) -> float | None:
    if summary is not None and summary.kind == "demo":
        return summary.seconds.get("total")
    if manifest["kind"] != "training":
        return None
    try:
        return sum(record.seconds for record in Log(folder / "timing.jsonl", TimingRecord))
    except RunError:
        return None


def _cost(manifest: Mapping[str, Any]) -> float | None:
    spending = manifest.get("spending")
    accounts = spending.values() if isinstance(spending, Mapping) else ()
    costs = [one.get("cost") for one in accounts if isinstance(one, Mapping)]
    return sum(cost for cost in costs if isinstance(cost, int | float)) if costs else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
