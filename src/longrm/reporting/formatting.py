"""How results are shown: numbers as text, the colors of models, and HTML pages.

The terminal, the report and the audit's page share these functions, so that a number reads the same everywhere.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, Self

from jinja2 import Environment, FunctionLoader, StrictUndefined

from longrm import __version__
from longrm.evaluation.metrics import EvaluationMetric, metric_of
from longrm.evaluation.summary_schema import (
    BoundaryStatus,
    ContextBoundary,
    CrossingSide,
    EvaluationSummary,
    MeasuredWith,
    StepSummary,
)
from longrm.runs.records import FEW_GROUPS, Estimate, RolloutRecord
from longrm.types import Outcome

# --- Numbers ---

MISSING = "–"
NO_ANSWER = "no answer"
FEW = "†"
FEW_TERM = {FEW: f"fewer than {FEW_GROUPS} groups: the interval is rough and usually too narrow."}
FEW_NOTE = f"{FEW} {FEW_TERM[FEW]}"


def decimal(value: float | None, places: int = 2) -> str:
    """A plain number with a true minus sign; a dash if it is undefined."""
    if value is None:
        return MISSING
    text = f"{value:.{places}f}"
    if float(text) == 0:
        text = text.lstrip("-")  # -0.0 would suggest a sign that rounding has removed
    return text.replace("-", "−")


def percent(value: float | None) -> str:
    """A fraction in percent with one decimal."""
    return MISSING if value is None else f"{decimal(100 * value, 1)}%"


def level(value: float) -> str:
    """A chosen level such as a threshold, in percent with no more decimals than it needs."""
    return f"{round(100 * value, 1):g}%"


def points(value: float | None) -> str:
    """A difference of two fractions in percentage points, with its sign."""
    return MISSING if value is None else f"{'+' if value > 0 else ''}{decimal(100 * value, 1)}"


def estimate_text(estimate: Estimate, metric: EvaluationMetric) -> str:
    """A metric with its interval, such as "72.9% [66.1, 79.2]"."""
    limits = interval(estimate) if metric.is_share else interval(estimate, decimal)
    return f"{(percent if metric.is_share else decimal)(estimate.value)} {limits}".rstrip()


def difference_text(estimate: Estimate, metric: EvaluationMetric) -> str:
    """A difference in a metric with its interval, such as "+7.3 [+4.2, +11.5] points"."""
    write, unit = (points, " points") if metric.is_share else (decimal, "")
    return f"{write(estimate.value)} {interval(estimate, write)}{unit}"


def p_value(p: float) -> str:
    """A p value with four decimals."""
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def published(value: float | None) -> str:
    """A number that is already in percent, with the two decimals of published tables."""
    return MISSING if value is None else f"{decimal(value)}%"


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return MISSING if value is None else f"{round(value):,}"


def plural(number: int, noun: str) -> str:
    """A count with its noun, such as "1 pair", "1,200 pairs" or "3 trajectories"."""
    several = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else several}"


def seconds(value: float) -> str:
    """A duration in the unit that fits."""
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def short_length(length: int) -> str:
    """A length as axis labels show it: 4096 is 4K."""
    return f"{length // 1024}K" if length >= 1024 and length % 1024 == 0 else f"{length:,}"


def few(groups: int) -> str:
    """The mark of an interval from too few groups (explained by `FEW_NOTE`); empty from enough."""
    return FEW if 0 < groups < FEW_GROUPS else ""


def few_note(texts: Iterable[str]) -> str:
    """`FEW_NOTE` if one of the texts has the mark, else empty."""
    return FEW_NOTE if any(FEW in text for text in texts) else ""


def interval(
    estimate: Estimate, write: Callable[[float], str] = lambda value: decimal(100 * value, 1)
) -> str:
    """The limits of an interval, by default in percent; empty where there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{write(estimate.low)}, {write(estimate.high)}]{few(estimate.groups)}"


def defined(estimate: Estimate | None) -> Estimate | None:
    """The estimate if it has a value, else None."""
    return None if estimate is None or estimate.value is None else estimate


# --- Context boundaries ---

STATUSES: dict[BoundaryStatus, str] = {
    "resolved": "resolved",
    "unresolved": "some lengths unclear",
    "below_range": "below range",
    "beyond_range": "beyond range",
    "rising": "none: rises",
    "not_monotone": "none: falls and rises",
}


def boundary_estimate(boundary: ContextBoundary) -> str:
    """Where the fit crosses the threshold, in tokens: "≈ 370", "> 4,096", "< 128", or a dash where it is undefined."""
    text = _crossing(boundary, boundary.estimate.value, boundary.estimate.value_place)
    return f"≈ {text}" if boundary.estimate.value is not None else text


def boundary_interval(boundary: ContextBoundary) -> str:
    """The interval of that crossing; empty where both ends are on the same side of the measured lengths."""
    crossing = boundary.estimate
    low = _crossing(boundary, crossing.low, crossing.low_place)
    high = _crossing(boundary, crossing.high, crossing.high_place)
    return f"[{low}, {high}]{few(boundary.groups)}" if low != high else ""


def _crossing(boundary: ContextBoundary, value: float | None, side: CrossingSide) -> str:
    lengths = [int(length) for length in boundary.effective_n]
    return {
        "within_range": count(value),
        "below_range": f"< {min(lengths):,}",
        "beyond_range": f"> {max(lengths):,}",
        "undefined": MISSING,
    }[side]


def boundary_text(boundary: ContextBoundary) -> str:
    """The context boundary for a headline: "context boundary ≈ 370 tokens [340, 410] (above 75% at 256, below at 512)".

    An interval beyond both ends of the measured lengths is omitted.
    """
    place, limits = boundary_estimate(boundary), boundary_interval(boundary)
    status = _boundary_status(boundary)
    crossing = boundary.estimate
    anywhere = crossing.low_place == "below_range" and crossing.high_place == "beyond_range"
    if anywhere or (place == MISSING and not limits):
        return f"context boundary {'unclear: ' if boundary.status == 'unresolved' else ''}{status}"
    found = f"within {limits} tokens" if place == MISSING else f"{place} tokens {limits}".rstrip()
    return f"context boundary {found} ({status})"


def _boundary_status(boundary: ContextBoundary) -> str:
    """The lengths between which the boundary is known to be, or those that leave it open; else the status."""
    threshold = level(boundary.tau)
    if boundary.status == "resolved":
        return f"above {threshold} at {count(boundary.at_least)}, below at {count(boundary.below)}"
    if boundary.status == "unresolved":
        first, last = boundary.at_least or 0, boundary.below or math.inf
        unclear = [int(length) for length in boundary.effective_n if first < int(length) < last]
        if not unclear:
            return "accuracy does not fall steadily"
        places = " to ".join(f"{length:,}" for length in dict.fromkeys((unclear[0], unclear[-1])))
        return f"at {places} tokens, accuracy may be above or below {threshold}"
    return STATUSES[boundary.status]


def headline(summary: EvaluationSummary) -> str:
    """Main accuracy against chance and the best rule, the context boundary, and how much has no answer."""
    accuracy, metric = summary.accuracy.strict, summary.main_metric
    if accuracy.value is None:
        no_gold = summary.counts.without_gold == summary.counts.comparisons
        parts = [f"accuracy undefined{': no comparison has a gold order' if no_gold else ''}"]
    else:
        value = f"{percent(accuracy.value)} {interval(accuracy)}".rstrip()
        comparisons, chance = plural(accuracy.n, "comparison"), percent(summary.chance[metric])
        parts = [f"{metric_of(metric).title} {value} on {comparisons}, chance {chance}"]
    if (rule := summary.best_rule) is not None:
        found = summary.baselines[rule]
        reached = f"the best rule without a model has {percent(found.value.value)} ({rule})"
        parts.append(reached if found.beaten else f"{reached}, and the model does not beat it")
    if summary.boundary is not None:
        parts.append(boundary_text(summary.boundary))
    if unanswered := summary.counts.comparisons - summary.counts.outcomes[Outcome.ANSWERED]:
        parts.append(f"{unanswered:,} of {summary.counts.comparisons:,} not answered")
    return "; ".join(parts)


def steps_headline(summary: StepSummary) -> str:
    """How well the steps of trajectories are judged, compared with the most common label and the best rule."""
    parts, metrics = list[str](), summary.metrics
    for name, title in (
        ("step_accuracy", "step accuracy"),
        ("first_error_accuracy", "first error found in"),
        ("auc", "AUC"),
    ):
        one = metrics.get(name)
        if one is None or one.value is None:
            continue
        text = f"{title} {percent(one.value)} {interval(one)}".rstrip()
        known = {rule: found[name].value or 0.0 for rule, found in summary.baselines.items() if name in found}
        if known:
            best = max(known, key=lambda rule: known[rule])
            text += f" (rule '{best}': {percent(known[best])})"
        parts.append(text)
    if (success := summary.success.get("auc")) is not None and success.value is not None:
        parts.append(f"AUC of success {percent(success.value)} {interval(success)}".rstrip())
    what = f"{summary.steps:,} labeled steps of " if summary.steps else ""
    return "; ".join([*parts, f"{what}{plural(summary.trajectories, 'trajectory')}"])


# --- Names and texts ---

_KEPT = 6_000  # characters kept at either side of a gap in a response or a judgment


def listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them: "a, b and c"."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def shortened(name: str, width: int) -> str:
    """The name, without its middle if it is longer than `width`: run names differ at their ends."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


def shortened_apart(names: Sequence[str], width: int) -> dict[str, str]:
    """Every name, `shortened` unless another one would become the same."""
    short = {name: shortened(name, width) for name in names}
    return {name: cut if list(short.values()).count(cut) == 1 else name for name, cut in short.items()}


def without_middle(text: str) -> str:
    """A response or a judgment, without the middle of a very long one."""
    if len(text) <= 2 * _KEPT:
        return text
    return f"{text[:_KEPT]} [… {len(text) - 2 * _KEPT:,} characters are not in this file …] {text[-_KEPT:]}"


def judgment_facts(record: RolloutRecord, index: int) -> str:
    """Reward, terms, outcome and tokens of one of the judgments that GRPO sampled for a prompt."""
    terms = ", ".join(f"{name} {decimal(value)}" for name, value in record.terms[index].items())
    tokens = plural(len(record.tokens[index]), "token")
    return (
        f"Reward {decimal(record.rewards[index])} ({terms or 'no term'}), {record.outcomes[index]}, {tokens}"
    )


def token_unit(measured: MeasuredWith | None) -> str:
    """The unit of lengths: tokens of which tokenizer, if that is known."""
    if measured is None:
        return "tokens"
    if measured.tokenizer == "words":
        return "tokens (one per word)"
    if measured.tokenizer == "approximate":
        return "approximate tokens (words and marks)"
    parts = Path(measured.tokenizer).parts
    return f"tokens of {shortened('/'.join(parts[-2:]) if len(parts) > 2 else measured.tokenizer, 41)}"


def shared_unit(measured: Iterable[MeasuredWith | None]) -> str:
    """The unit of the lengths of several runs; without a tokenizer's name where the runs have several names."""
    found = list(measured)
    units = {token_unit(one) for one in found}
    if len(units) == 1:
        return units.pop()
    tokenizers = {one and one.identity for one in found}
    return "tokens" if None in tokenizers or len(tokenizers) == 1 else "tokens of each run's own tokenizer"


def measured_with(*measured: MeasuredWith) -> str:
    """The unit of lengths, the generated worlds, and the depths of the evidence, which are those of all these runs."""
    first = measured[0]
    depths = ["anywhere" if depth == "uniform" else f"{depth:g}" for depth in first.depths]
    where = "anywhere" if depths == ["anywhere"] else f"at depth {listed(depths)}"
    worlds = "worlds" if len(first.worlds) > 1 else "world"
    return f"Lengths in {shared_unit(measured)}; {worlds} {listed(first.worlds)}; evidence {where}."


# --- Colors ---

COLORS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#14181d"),
    "page": ("#f6f7f9", "#0c0f13"),
    "ink": ("#1a1f26", "#e8ecf1"),
    "muted": ("#56606c", "#a3adb9"),
    "line": ("#d9dee5", "#313842"),
    "shadow": ("#b9c1cc", "#4b5563"),
    "accent": ("#0b5cad", "#7db8f7"),
    "notice": ("#fff6df", "#2b2413"),
    "notice-edge": ("#d9a01f", "#b98a22"),
    "mark": ("#ffe08a", "#6b5310"),
    "good": ("#0a6b4a", "#4fd0a0"),
    "bad": ("#b02318", "#ff8f85"),
    # Models: the palette of Okabe and Ito, darkened or lightened for a contrast of 3 : 1 with the paper.
    "stage-0": ("#6b7481", "#98a3b1"),
    "stage-1": ("#c25a00", "#f2a14e"),
    "stage-2": ("#a3437f", "#e391c1"),
    "stage-3": ("#0070b0", "#5bb6ec"),
    "stage-4": ("#00785a", "#3cc79b"),
    "stage-5": ("#846900", "#dcc04a"),
    "stage-6": ("#5a4ab3", "#a99df6"),
    "stage-7": ("#8a4b2d", "#d69a78"),
    # Heat map: orange below the accuracy threshold, blue above it.
    "heat-0": ("#e59246", "#94500f"),
    "heat-1": ("#f3bd8b", "#74461c"),
    "heat-2": ("#fbe3cd", "#493323"),
    "heat-3": ("#dbe9f6", "#203748"),
    "heat-4": ("#9cc6e8", "#1f5378"),
    "heat-5": ("#5ba3d6", "#1b6799"),
}
"""Name -> (light, dark). The light colors must all differ: `Figure.inline` finds them again in the drawn SVG."""

_DASHES: tuple[tuple[int, ...], ...] = ((2, 3), (7, 3), (7, 3, 2, 3), (1, 0), (10, 4))
_SHAPES = ("square", "triangle-up", "diamond", "circle", "cross")


class Style(NamedTuple):
    """How a model is drawn. Color, dashes and point shape each suffice to distinguish it from the next one."""

    name: str  # of the color in the style sheet
    color: str  # in light mode
    dash: tuple[int, ...]  # strokes and gaps in pixels
    shape: str  # of points, as Vega names it

    @classmethod
    def number(cls, index: int) -> Self:
        """The style of the model with this number."""
        name = f"stage-{index % 8}"  # 8 colors and 5 dashes have no common divisor: 40 styles differ
        return cls(name, COLORS[name][0], _DASHES[index % 5], _SHAPES[index % 5])


# --- HTML ---


def asset(name: str) -> str:
    """The text of a file of the package, such as "reporting/page.css"."""
    return (files("longrm") / name).read_text(encoding="utf-8")


def html_page(template: str, **values: Any) -> str:
    """Renders a template of the package, with `version` and `style` added; all values are escaped."""
    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in COLORS.items()) for i in (0, 1))
    colors = (
        f":root{{color-scheme:light dark;{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"
    )
    style = colors + asset("reporting/page.css")
    return environment.get_template(template).render(values, version=__version__, style=style)
