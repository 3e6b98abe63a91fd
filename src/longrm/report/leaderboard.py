"""The page that ranks the finished evaluations of a folder, one table for all that judged the same comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longrm.comparing.standings import Standing, Standings, standings
from longrm.evaluation import wording
from longrm.evaluation.summaries import PartAnswers
from longrm.reading import visible
from longrm.report.html_page import html_page
from longrm.report.palette import heat_step
from longrm.report.run_listing import ListedRun
from longrm.runs.folder import CONFIG

_LONGEST_NAME = 36  # characters
_MARKS = {"baseline:": "baseline", "simulated:": "simulated: is given the answers"}
"""What is no reward model, by how its name begins, and what it is called."""
_WAITING = {
    "incomplete": "ended without some answers, which the same command asks for again",
    "running": "is at work",
    "stopped": f"is not finished; the same command, or its {CONFIG}, continues it",
}


@dataclass(frozen=True, slots=True)
class LengthCell:
    """Accuracy at one length: in percent, its interval or why there is none, and its step of the heat map's scale."""

    text: str
    detail: str
    step: int | None = None


def leaderboard(folder: Path, runs: Sequence[ListedRun]) -> str:
    """The page of these runs of a folder, which holds all it needs and loads nothing. Equal runs give equal bytes."""
    shown = {run.path: (str(Path(run.path).relative_to(folder)), run.started[:10]) for run in runs}
    evaluations = [run for run in runs if run.kind == "evaluation" and run.state == "finished"]
    ranked, unranked = standings([Path(run.path) for run in evaluations])
    waiting = [(run.path, _WAITING[run.state]) for run in runs if run.state in _WAITING]
    damaged = [(run.path, run.fault) for run in runs if run.state == "damaged"]
    others = [run for run in runs if run.kind != "evaluation" and run.state == "finished"]
    page = html_page(
        "report/leaderboard.html.j2",
        command="longrm runs",
        title=f"Leaderboard of {folder}",
        heading=f"Leaderboard of {folder}",
        tables=[_table(found, shown) for found in ranked],
        left_out=[*((str(path), why) for path, why in unranked.items()), *waiting, *damaged],
        others=wording.plural(len(others), "run") if others else "",
        inside=wording.plural(sum(run.inside for run in others), "run"),
    )
    return visible(page)  # no name of a model turns the direction of a line


def _table(found: Standings, shown: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """What the template prints of runs that are ranked against each other."""
    first = found.runs[0]
    summaries = [run.summary for run in found.runs]
    lengths = sorted(
        {int(key) for one in summaries for key in (*one.metrics.by_length, *one.missing.by_length)}
    )
    names = wording.shortened_apart([one.model for one in summaries], _LONGEST_NAME)
    benches = wording.listed(list(dict.fromkeys(one.bench for one in summaries)))
    ends = dict.fromkeys(map(wording.tokens, (*lengths[:1], *lengths[-1:])))
    span = f", {' to '.join(ends)} tokens" if ends else ""
    figures = [wording.percent_interval(run.figure) for run in found.runs]
    return {
        "title": f"{benches}{span}",
        "about": f"{wording.plural(first.figure.n, 'comparison')} in "
        f"{wording.plural(first.figure.groups, 'group')}.",
        "measured": wording.measured(first.summary.measured) if first.summary.measured else "",
        "metric": found.metric.title,
        "finding": _finding(found, names),
        "lengths": [wording.short_tokens(length) for length in lengths],
        "rows": [_row(run, names[run.summary.model], lengths, shown) for run in found.runs],
        "few_note": wording.few_note(figures),
        "differs": [(str(run.folder), run.differs_in) for run in found.runs if run.differs_in],
    }


def _finding(found: Standings, names: dict[str, str]) -> str:
    first, *others = found.runs
    near = [run for run in others if not run.apart]
    models = [run.summary.model for run in found.runs]
    labels = {
        run.folder: names[model] if models.count(model) == 1 else f"{names[model]} ({run.folder.name})"
        for run, model in zip(found.runs, models, strict=True)
    }
    name = labels[first.folder]
    if not others:
        return f"{name} is alone here: no other finished run judged the same comparisons."
    if not near:
        return f"{name} is first, and shown to be better than every other run."
    if len(near) > 3:
        return f"{name} is first, but not told apart from {len(near)} others."
    return f"{name} is first, but not told apart from {wording.listed([labels[run.folder] for run in near])}."


def _row(
    run: Standing, name: str, lengths: Sequence[int], shown: dict[str, tuple[str, str]]
) -> dict[str, Any]:
    summary, boundary, gap = run.summary, run.summary.boundary, run.against_first
    mark = next((said for begin, said in _MARKS.items() if summary.model.startswith(begin)), "")
    part = summary.missing.overall
    place, date = shown[str(run.folder)]
    return {
        "rank": run.rank,
        "near": gap is not None and not run.apart,
        "name": name,
        "model": summary.model,
        "folder": place,
        "mark": mark,
        "figure": wording.percent(run.figure.value),
        "interval": wording.percent_interval(run.figure),
        "answered": f"{part.answered:,} of {part.comparisons:,} answered" if part else "",
        "bar": [100 * (at or 0.0) for at in (run.figure.value, run.figure.low, run.figure.high)],
        "chance": 100 * summary.chance[summary.main_metric],
        "gap": f"{wording.points(gap.difference.value)} {wording.points_interval(gap.difference)}"
        if gap
        else "",
        "p": ("p < 0.0001" if gap.p_holm < 0.0001 else f"p = {gap.p_holm:.4f}") if gap else "",
        "cells": [_length_cell(run, str(length)) for length in lengths],
        "boundary": wording.boundary_estimate(boundary) if boundary else wording.MISSING,
        "status": wording.STATUSES[boundary.status][0] if boundary else "",
        "date": date,
    }


def _length_cell(run: Standing, length: str) -> LengthCell:
    summary = run.summary
    estimate = summary.metrics.by_length.get(length, {}).get(summary.main_metric)
    if estimate is None or estimate.value is None:
        missing: PartAnswers | None = summary.missing.by_length.get(length)
        return LengthCell(wording.MISSING, missing.reason if missing else wording.NO_ANSWER)
    threshold = summary.boundary.tau if summary.boundary else None
    level = summary.chance[summary.main_metric]
    step = None if threshold is None else heat_step(estimate.value, level, threshold)
    text = f"{100 * estimate.value:.0f}{wording.few(estimate.groups)}"
    return LengthCell(text, wording.percent_interval(estimate), step)
