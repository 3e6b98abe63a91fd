"""Numbers and findings in words: every figure in the report is written here, and a missing one is a dash."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longrm.evaluation.metrics import Metric
from longrm.report.material import Evaluated, Material, metric_of

MISSING = "–"
_MINUS = "−"

METRIC_NAMES = {
    "pair_accuracy": "pair accuracy",
    "top1": "top-1",
    "exact_order": "exact order",
    "position_match": "position match",
    "kendall_tau": "Kendall tau",
    "auc_margin": "AUC of margins",
    "auc_pooled": "AUC, pooled",
}


def percent(value: float | None) -> str:
    """A fraction as percent with one decimal."""
    return MISSING if value is None or math.isnan(value) else f"{_signed(100 * value, 1)}%"


def points(value: float | None) -> str:
    """A difference of fractions in percentage points, with its sign."""
    return (
        MISSING
        if value is None or math.isnan(value)
        else f"{'+' if value > 0 else ''}{_signed(100 * value, 1)}"
    )


def decimal(value: float | None, places: int = 2) -> str:
    """A plain number."""
    return MISSING if value is None or math.isnan(value) else _signed(value, places)


def tokens(value: float | None) -> str:
    """A whole number with separators; fractions of a token are rounded away."""
    return MISSING if value is None or math.isnan(value) else f"{round(value):,}"


def short_tokens(length: int) -> str:
    """A length as axis labels write it: 4096 is 4K."""
    return f"{length // 1024}K" if length >= 1024 and length % 1024 == 0 else f"{length:,}"


def percent_interval(metric: Metric) -> str:
    """Its limits in percent."""
    return _interval(metric, lambda value: _signed(100 * value, 1))


def points_interval(metric: Metric) -> str:
    """Its limits in percentage points."""
    return _interval(metric, points)


def decimal_interval(metric: Metric) -> str:
    """Its limits as plain numbers."""
    return _interval(metric, decimal)


def seconds(value: float) -> str:
    """A duration in the unit that fits."""
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def boundary_estimate(boundary: Mapping[str, Any]) -> str:
    """Where the fit crosses tau, or on which side of the measured lengths."""
    text = _place(boundary, "value")
    return f"≈ {text}" if boundary["estimate"]["value"] is not None else text


def boundary_interval(boundary: Mapping[str, Any]) -> str:
    """The interval of that crossing; empty where all of it lies on one side of the measured lengths."""
    low, high = _place(boundary, "low"), _place(boundary, "high")
    return f"[{low}, {high}]" if low != high else ""


def finding(material: Material) -> str:
    """What the runs show, in a sentence computed from their numbers."""
    stages = {stage.label: stage for stage in material.stages}
    if material.demo is not None and {"short", "long"} <= stages.keys():
        reach = (
            f"Trained on short contexts, the model {_reach(stages['short'])}; "
            f"trained on long ones too, it {_reach(stages['long'])}"
        )
        return f"{reach}{_contrast(material.demo)}."
    if not material.stages:
        return f"{len(material.trained)} training {_plural(len(material.trained), 'run')}, no evaluation."
    told = [f"{stage.label} {_reach(stage)}" for stage in material.stages[:3]]
    if len(material.stages) > len(told):
        told.append(f"{len(material.stages) - len(told)} more below")
    sentence = "; ".join(told)
    return f"{sentence[:1].upper()}{sentence[1:]}." if len(told) > 1 else f"{sentence}."


def _reach(stage: Evaluated) -> str:
    """What its context boundary says, as the end of a sentence."""
    boundary = stage.summary["boundary"]
    if boundary is None:
        return _overall(stage)
    tau, lengths = f"{100 * boundary['tau']:g}%", [int(key) for key in boundary["effective_n"]]
    if boundary["status"] == "beyond_range":
        return f"holds {tau} or more up to {tokens(max(lengths))} tokens, the longest length tested"
    if boundary["status"] == "below_range":
        return f"is below {tau} already at {tokens(min(lengths))} tokens, the shortest length tested"
    if boundary["status"] == "resolved":
        crossing = tokens(boundary["estimate"]["value"])
        interval = boundary_interval(boundary)
        return f"falls through {tau} near {crossing} tokens {interval}".rstrip()
    holds = f"holds {tau} up to {tokens(boundary['at_least'])} tokens" if boundary["at_least"] else None
    falls = f"is below it from {tokens(boundary['below'])} on" if boundary["below"] else None
    if holds and falls:
        return f"{holds} and {falls}, with its boundary unresolved between"
    return (
        f"{holds or f'is not shown to hold {tau} at any length'}, with its boundary unresolved by these data"
    )


def _overall(stage: Evaluated) -> str:
    metric = stage.overall().get("pair_accuracy")
    if metric is None or metric.value is None:
        return "has no judgment with a known gold order"
    return f"orders {percent(metric.value)} {percent_interval(metric)} of pairs right"


def _contrast(demo: Mapping[str, Any]) -> str:
    """How far the long arm is from its control at the longest length."""
    by_length = demo["contrasts"].get("long_vs_control_short", {}).get("by_length", {})
    if not by_length:
        return ""
    length = max(by_length, key=int)
    gap = metric_of(by_length[length])
    if gap.value is None or gap.low is None or gap.high is None:
        return ""
    if gap.low <= 0 <= gap.high:
        shown = f"{points(gap.value)} points {points_interval(gap)} at {tokens(int(length))} tokens"
        return f", but no difference from equal training on short data is resolved ({shown})"
    sign = 1 if gap.value > 0 else -1
    ends = sorted(100 * sign * end for end in (gap.low, gap.high))
    return (
        f"; at {tokens(int(length))} tokens that is {decimal(100 * sign * gap.value, 1)} points "
        f"[{decimal(ends[0], 1)}, {decimal(ends[1], 1)}] {'above' if sign > 0 else 'below'} "
        "equal training on short data"
    )


def incomplete(stages: Sequence[Evaluated]) -> list[str]:
    """One line a stage whose evaluation is incomplete."""
    return [
        f"{stage.label}: {stage.summary['counts']['outcomes']['error']} comparisons ended in an error and are "
        "not scored; run the same evaluation again to judge them"
        for stage in stages
        if not stage.summary["complete"]
    ]


def _place(boundary: Mapping[str, Any], end: str) -> str:
    estimate, lengths = boundary["estimate"], [int(key) for key in boundary["effective_n"]]
    if estimate[end] is not None:
        return tokens(estimate[end])
    beyond = estimate[f"{end}_place"] == "beyond_range"
    return f"> {tokens(max(lengths))}" if beyond else f"< {tokens(min(lengths))}"


def _interval(metric: Metric, write: Callable[[float], str]) -> str:
    if metric.low is None or metric.high is None:
        return ""
    return f"[{write(metric.low)}, {write(metric.high)}]"


def _signed(value: float, places: int) -> str:
    text = f"{value:.{places}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", _MINUS)


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
