"""The first sentences of a report: what changed between its runs, and by how much."""

from collections.abc import Sequence

from longrm.evaluation.compare import RunComparison
from longrm.evaluation.metrics import metric_of
from longrm.evaluation.summary_schema import ContextBoundary, DemoSummary
from longrm.report.formatting import (
    STATUSES,
    boundary_estimate,
    boundary_interval,
    difference_text,
    estimate_text,
    headline,
    percent,
    plural,
)
from longrm.report.load import AT_CHANCE, STAGES, Model, ReportData, Training, stage_label

_NAMED = 6  # models in a sentence; the tables have all of them
_CONTRASTS = ("long_vs_control", "generative_long_vs_generative_short")
"""The contrasts of a demo in its first sentences: what training on long contexts gains."""


def finding(data: ReportData) -> str:
    """What long training gained in a demo, or the last run over the first; of one run, its headline or its course."""
    models = data.models
    if data.demo is not None:
        at_chance = {STAGES[stage][0] for stage in AT_CHANCE}
        learned = [model for model in models if model.label not in at_chance]
        return " ".join([*_contrasts(data.demo), _boundaries(learned)])
    if not models:
        return " ".join(map(_course, data.trained))
    if len(models) == 1:
        return f"{models[0].label}: {headline(models[0].summary)}."
    found = models[-1].compared
    if found is None:
        return _boundaries(models) or _accuracies(models)
    return f"{_difference(found, models[0], models[-1])} {_boundaries([models[0], models[-1]])}".strip()


def _difference(found: RunComparison, first: Model, last: Model) -> str:
    """The paired difference, overall and at the longest length."""
    metric, n = metric_of(found.metric), plural(found.overall.n, "comparison")
    difference = difference_text(found.overall.difference, metric)
    text = f"{last.label} minus {first.label}: {metric.title} {difference} on the same {n}"
    if len(found.by_length) > 1:
        longest = max(found.by_length, key=int)
        text += f", {difference_text(found.by_length[longest].difference, metric)} at {int(longest):,} tokens"
    return f"{text}."


def _contrasts(demo: DemoSummary) -> list[str]:
    """What training on long contexts gained at the longest length."""
    sentences = []
    for name in _CONTRASTS:
        if name in demo.contrasts:
            by_length = demo.contrasts[name].by_length
            longest = max(by_length, key=int)
            first, second = name.split("_vs_")
            metric = metric_of(demo.stages[first].main_metric)
            right = {
                stage: percent(demo.stages[stage].metrics.by_length[longest][metric.name].value)
                for stage in (first, second)
            }
            sentences.append(
                f"At {int(longest):,} tokens {stage_label(first)} is right in {right[first]} of the pairs and "
                f"{stage_label(second)} in {right[second]}: {difference_text(by_length[longest], metric)}."
            )
    return sentences


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
