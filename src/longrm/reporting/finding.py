"""The first sentences of a report: what changed between its runs, and by how much."""

from collections.abc import Sequence
from functools import partial

from longrm.evaluation.metrics import metric_of
from longrm.evaluation.read_run import Run
from longrm.evaluation.summary_schema import AttributionSummary, ContextBoundary, CriteriaSummary
from longrm.reporting.formatting import (
    STATUSES,
    boundary_estimate,
    boundary_interval,
    decimal,
    difference_text,
    estimate_text,
    headline,
    interval,
    percent,
    plural,
    steps_headline,
)
from longrm.reporting.load import Contrast, Model, ReportData, Training, folder_and_model

_NAMED = 6  # models in a sentence; the tables have all of them


def finding(data: ReportData) -> str:
    """The first contrast of each group and the context boundaries; of one run, its headline or its course."""
    models = data.models
    if not models:
        steps = [
            f"{run.label}: {steps_headline(run.summary)}." for group in data.groups for run in group.steps
        ]
        labels = [_labeled(label, found) for group in data.groups for label, found in group.criteria]
        return " ".join([*steps, *labels, *map(_course, data.trained), *map(_explained, data.unjudged)])
    if len(models) == 1:
        return f"{models[0].label}: {headline(models[0].summary)}."
    differences = [_difference(group.contrasts[0]) for group in data.full if group.contrasts]
    return " ".join(filter(None, [*differences, _boundaries(models)])) or _accuracies(models)


def _difference(contrast: Contrast) -> str:
    """The paired difference, overall and at the longest length."""
    found = contrast.found
    metric, n = metric_of(found.metric), plural(found.overall.n, "comparison")
    difference = difference_text(found.overall.difference, metric)
    text = (
        f"{contrast.second.label} minus {contrast.first.label}: {metric.title} {difference} on the same {n}"
    )
    if len(found.by_length) > 1:
        longest = max(found.by_length, key=int)
        text += f", {difference_text(found.by_length[longest].difference, metric)} at {int(longest):,} tokens"
    return f"{text}."


def _boundaries(models: Sequence[Model]) -> str:
    """The context boundary of each model; empty if none has one."""
    found = [
        f"{model.label} {_boundary(boundary)}" for model in models if (boundary := model.summary.boundary)
    ]
    return f"Context boundary in tokens: {_named(found)}." if found else ""


def _boundary(boundary: ContextBoundary) -> str:
    place = f"{boundary_estimate(boundary)} {boundary_interval(boundary)}".strip()
    plain = boundary.status in ("resolved", "below_range", "beyond_range")
    return place if plain else f"{place} ({STATUSES[boundary.status]})"


def _accuracies(models: Sequence[Model]) -> str:
    found = []
    for model in models:
        metric = metric_of(model.summary.main_metric)
        found.append(f"{model.label} {metric.title} {estimate_text(model.summary.accuracy.strict, metric)}")
    return f"{_named(found)}."


def _named(found: Sequence[str]) -> str:
    more = [f"{len(found) - _NAMED} more below"] if len(found) > _NAMED else []
    return "; ".join([*found[:_NAMED], *more])


def _labeled(label: str, summary: CriteriaSummary) -> str:
    judge, found = summary.ranked()[0]
    places = partial(decimal, places=3)
    correlation = f"{places(found.correlation.value)} {interval(found.correlation, places)}".rstrip()
    return (
        f"{label}: of {plural(len(summary.judges), 'judge')}, {judge} agrees most with people, with a correlation of "
        f"{correlation} over {plural(found.correlation.n, 'label')}."
    )


def _course(training: Training) -> str:
    """The steps of a training, and its held-out metric at the first, the best and the last evaluation."""
    summary, held_out, metric = training.summary, training.held_out, training.held_out_metric
    trained = f"{training.label}: {plural(summary.steps, 'step')}"
    if summary.evaluations is None or metric is None:
        return f"{trained}, no evaluation."
    best = summary.evaluations.best
    shown = sorted({min(held_out), best or max(held_out), max(held_out)})
    values = [
        f"{estimate_text(held_out[step], metric)} after step {step:,}{' (best)' if step == best else ''}"
        for step in shown
    ]
    return f"{trained}; held-out {metric.title} {', '.join(values)}."


def _explained(run: Run) -> str:
    """How much of an attribution is on the evidence."""
    summary = run.summary
    assert isinstance(summary, AttributionSummary), "by the kind of the run"
    explained = f"{folder_and_model(run)}: {plural(summary.explained, 'comparison')} explained"
    share = summary.overall.evidence_share
    if share.value is None:
        return f"{explained}."
    return f"{explained}, {percent(share.value)} {interval(share)} of the weight is on the evidence."
