"""The report's figures. Each is drawn once as SVG in the light colors; `Figure.inline` follows the page's theme."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from longrm.evaluation.metrics import EvaluationMetric, metric_of
from longrm.reading import visible
from longrm.reporting.formatting import (
    COLORS,
    MISSING,
    NO_ANSWER,
    Style,
    few,
    level,
    percent,
    shared_unit,
    short_length,
    shortened_apart,
    token_unit,
)
from longrm.reporting.load import Model, Training
from longrm.reporting.tables import items_link
from longrm.runs.folder import write_file
from longrm.runs.records import Estimate

INK, MUTED, LINE, PAPER = (COLORS[name][0] for name in ("ink", "muted", "line", "paper"))
WIDE, NARROW = 520, 190  # plot widths in pixels; the labels at the right are added to them
_SMALL = (190, 130)  # width and height of small multiples
_POINTS = 120  # most points of a training curve
_CURVES_WITH_LABELS = 8  # more labels at the right would not fit one above the other

Rows = list[dict[str, Any]]
"""Data of a chart. `curve` is the number of the model as text, `few` the mark of an interval from few groups."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawn figure."""

    name: str  # of its file
    title: str
    alt: str  # for screen readers
    svg: str
    narrow: "Figure | None" = None  # the same for phones

    @property
    def inline(self) -> str:
        """The SVG for an HTML page: it follows the page's colors and loads nothing."""
        svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", self.svg)
        for name, (light, _) in COLORS.items():
            svg = svg.replace(f'"{light}"', f'"var(--{name})"')
        # Vega makes links absolute, to a site of its own: only the fragment is ours. They are for the pointer: with the
        # keyboard, the same links are reached in the table below.
        return re.sub(r'<a\s[^>]*href="[^"#]*(#items[^"]*)"[^>]*>', r'<a href="\1" tabindex="-1">', svg)

    @property
    def unlinked(self) -> str:
        """The SVG without its links into the page."""
        return re.sub(r"</?a(?:\s[^>]*)?>", "", self.svg)

    def write(self, folder: Path) -> None:
        """Writes the figure as SVG and as PNG of twice its size."""
        write_file(folder / f"{self.name}.svg", self.unlinked)
        write_file(folder / f"{self.name}.png", vl_convert.svg_to_png(self.svg, scale=2))
        if self.narrow:
            self.narrow.write(folder)


# --- Parts that figures share ---


def chart_of(rows: Rows) -> alt.Chart:
    """A chart of rows that are part of the specification."""
    return alt.Chart(alt.InlineData(values=rows))


def svg_of(chart: alt.LayerChart | alt.FacetChart | alt.Chart, width: int, height: int) -> str:
    """Draws a chart; the size in pixels is that of the plot, without axes and labels."""
    text = {"labelColor": MUTED, "titleColor": MUTED, "labelFontSize": 12, "titleFontSize": 12}
    padding = {"left": 12, "right": 8, "top": 6, "bottom": 4}
    styled = (
        chart.properties(width=width, height=height, background=PAPER, padding=padding)
        .configure(font="sans-serif")
        .configure_axis(
            **text, titleFontWeight="normal", titlePadding=8, gridColor=LINE, domainColor=LINE, tickColor=LINE
        )
        .configure_view(stroke=None)
    )
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    svg: str = vl_convert.vegalite_to_svg(_visible(styled.to_dict()), vl_version=version)
    return svg


def _visible(value: Any) -> Any:
    """The specification without control characters, which SVG cannot hold: vl_convert would abort the process."""
    if isinstance(value, dict):
        return {name: _visible(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_visible(part) for part in value]
    return visible(value) if isinstance(value, str) else value


def encodings(styles: Sequence[Style]) -> tuple[alt.Color, alt.StrokeDash, alt.Shape]:
    """Draws curve k (the field `curve`) in the color, the dashes and the point shape of style k."""
    numbers = [str(number) for number in range(len(styles))]
    colors = alt.Scale(domain=numbers, range=[style.color for style in styles])
    dashes = alt.Scale(domain=numbers, range=[list(style.dash) for style in styles])
    shapes = alt.Scale(domain=numbers, range=[style.shape for style in styles])
    return (
        alt.Color("curve:N", scale=colors, legend=None),
        alt.StrokeDash("curve:N", scale=dashes, legend=None),
        alt.Shape("curve:N", scale=shapes, legend=None),
    )


def interval_rows(curves: Sequence[Mapping[int, Estimate]]) -> Rows:
    """Rows of curves with intervals, from the estimates by length of each curve."""
    return [
        {"curve": str(number), "length": length, "value": m.value, "low": m.low, "high": m.high}
        | {"few": few(m.groups)}
        for number, curve in enumerate(curves)
        for length, m in curve.items()
        if m.value is not None
    ]


def banded_curves(
    rows: Rows, styles: Sequence[Style], x: alt.X, y: alt.Y, scale: alt.Scale
) -> list[alt.Chart]:
    """Curve k in style k: a band from `low` to `high` on the y scale, a line, and points that lead to their `link`."""
    color, dash, shape = encodings(styles)
    base = chart_of(rows).encode(x=x, color=color)
    linked: dict[str, Any] = {"href": "link:N"} if "link" in rows[0] else {}
    low = alt.Y("low:Q", scale=scale)
    layers = [
        base.mark_area(opacity=0.16).encode(y=low, y2="high:Q"),
        base.mark_line(strokeWidth=2.2).encode(y=y, strokeDash=dash),
        base.mark_point(filled=True, size=55, opacity=1).encode(y=y, shape=shape, **linked),
    ]
    # A curve of one point has no band: its interval is drawn as a bar.
    points = Counter(row["curve"] for row in rows)
    if alone := [row for row in rows if points[row["curve"]] == 1]:
        bars = chart_of(alone).encode(x=x, color=color)
        layers.append(bars.mark_rule(strokeWidth=2.2, opacity=0.6).encode(y=low, y2="high:Q"))
    if any(row["few"] for row in rows):
        layers.append(base.mark_text(dx=8, dy=-8, fontSize=12).encode(y=y, text="few:N"))
    return layers


def level_lines(levels: Mapping[str, set[float]], scale: alt.Scale) -> list[alt.Chart]:
    """Dotted lines across a plot at some levels, and their names, with a halo so that curves do not cross them."""
    rows = [
        {"at": at, "label": f"{name} {level(at)}"} for name, found in levels.items() for at in sorted(found)
    ]
    base = chart_of(rows).encode(y=alt.Y("at:Q", scale=scale))
    rule = base.mark_rule(color=MUTED, strokeDash=[3, 4], strokeWidth=1)
    name = base.encode(x=alt.value(0), text="label:N")
    place: dict[str, Any] = {"align": "left", "dx": 14, "dy": 11, "fontSize": 11}
    halo = name.mark_text(color=PAPER, stroke=PAPER, strokeWidth=4, **place)
    return [rule, halo, name.mark_text(color=MUTED, **place)]


def length_axis(lengths: Sequence[int], unit: str) -> alt.X:
    """Context lengths on a logarithmic scale; a single one is in its middle."""
    ends = [lengths[0], lengths[-1]] if len(lengths) > 1 else [lengths[0] / 2, lengths[0] * 2]
    return alt.X(
        "length:Q",
        title=["context length, log scale, in", unit],
        scale=alt.Scale(type="log", base=2, domain=ends, nice=False),
        axis=alt.Axis(values=lengths, labelExpr=_length_labels(lengths), labelOverlap=True, grid=False),
    )


def _length_labels(lengths: Sequence[int]) -> str:
    """A Vega expression that writes lengths as `short_length` does."""
    names = ",".join(f"'{length}':'{short_length(length)}'" for length in lengths)
    return f"({{{names}}})[toString(datum.value)]"


# --- Accuracy against length ---


def accuracy(models: Sequence[Model], metric: str, width: int, suffix: str = "") -> Figure | None:
    """The metric against length with interval bands, the chance line and the accuracy threshold, one curve a model.

    Args:
        models: The models; those without a defined value are left out.
        metric: Its name.
        width: `WIDE` or `NARROW`, in pixels.
        suffix: Appended to the figure's name.
    """
    curves = [(model, found) for model in models if (found := model.by_length(metric))]
    if not curves:
        return None
    shown = [model for model, _ in curves]
    styles = [model.style for model in shown]
    height = 330 if width == WIDE else 280
    chances = {model.summary.chance[metric] for model in shown}
    thresholds = {model.summary.boundary.tau for model in shown if model.summary.boundary}
    lows = [m.low for _, found in curves for m in found.values() if m.low is not None]
    bottom = max(0.0, int(10 * min([*lows, *(chance - 0.1 for chance in chances)])) / 10)
    scale = alt.Scale(domain=[bottom, 1.0], nice=False)

    rows = interval_rows([found for _, found in curves])
    for row in rows:
        row["link"] = items_link(model=shown[int(row["curve"])].label, length=row["length"])
    unanswered = [(index, length) for index, model in enumerate(shown) for length in model.unanswered]
    lengths = sorted({*(row["length"] for row in rows), *(length for _, length in unanswered)})
    if len(lengths) == 1:  # draw the bars side by side
        for row in rows:
            row["length"] *= 2 ** ((int(row["curve"]) - (len(curves) - 1) / 2) / (2 * len(curves)))
    x = length_axis(lengths, shared_unit(model.summary.measured for model in shown))
    axis = alt.Axis(format=".0%", tickCount=6)
    y = alt.Y("value:Q", title=metric_of(metric).title, scale=scale, axis=axis)
    rule, *names = level_lines({"chance": chances, "threshold": thresholds}, scale)
    layers = [rule, *banded_curves(rows, styles, x, y, scale), *names]
    color, _, _ = encodings(styles)
    at = alt.Y("at:Q", scale=scale)

    if unanswered:
        # A cross at the foot of the plot: a length without answers must not look like an accuracy of zero.
        named: set[int] = set()
        crosses = []
        for index, length in unanswered:
            label = "" if length in named else NO_ANSWER
            named.add(length)
            crosses.append({"curve": str(index), "length": length, "at": bottom, "label": label})
        base = chart_of(crosses).encode(x="length:Q", y=at, color=color)
        layers.append(base.mark_text(text="×", fontSize=18, dy=-8))
        layers.append(base.mark_text(align="right", dx=-9, dy=-8, fontSize=11).encode(text="label:N"))

    if len(curves) <= _CURVES_WITH_LABELS:
        # The models' names at the right, 15 pixels apart where curves end together.
        places = spread([found[max(found)].value or 0.0 for _, found in curves], (1 - bottom) * 15 / height)
        short = shortened_apart([model.label for model in shown], 20)
        labels: Rows = [
            {"curve": str(index), "at": place, "label": short[shown[index].label]}
            for index, place in enumerate(places)
        ]
        text = chart_of(labels).mark_text(align="left", dx=12, fontSize=12, fontWeight=600, limit=150)
        layers.append(text.encode(x=alt.value(width), y=at, text="label:N", color=color))

    descriptions = []
    for model, found in curves:
        ends = [f"{percent(found[n].value)} at {n:,}" for n in sorted({min(found), max(found)})]
        ends += [f"no answer at {n:,}" for n in model.unanswered]
        descriptions.append(f"{model.label}: {', '.join(ends)} tokens")
    return Figure(
        f"accuracy{suffix}" if width == WIDE else f"accuracy{suffix}-narrow",
        f"{metric_of(metric).title.capitalize()} against context length",
        f"Line chart of {metric_of(metric).title} against length. {'; '.join(descriptions)}.",
        svg_of(alt.layer(*layers), width, height),
    )


def spread(values: Sequence[float], gap: float) -> list[float]:
    """The values moved apart to at least `gap`, in the same order and at or below 1."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    placed = list(values)
    for lower, upper in pairwise(order):
        placed[upper] = max(placed[upper], placed[lower] + gap)
    # The pass upwards may have moved the top ones above 1: a pass downwards pushes them back.
    ceiling = 1.0
    for index in reversed(order):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed


# --- The other figures ---

HEAT_STEPS = 6


def heat_step(value: float, chance: float, threshold: float) -> int:
    """The step of the heat map's scale: 0-2 from chance up to the accuracy threshold, 3-5 from there up to 1."""
    if value < threshold:
        return min(max(int(3 * (value - chance) / (threshold - chance)), 0), 2)
    return 3 + min(int(3 * (value - threshold) / (1 - threshold)), 2) if threshold < 1 else 5


def heat_map(model: Model, metric: str, number: int) -> Figure | None:
    """The metric by length and depth: orange below the accuracy threshold, blue above, the number in every cell."""
    chance, boundary = model.summary.chance.get(metric), model.summary.boundary
    if boundary is None or chance is None:
        return None

    def cell(length: str, depth: str, step: str, text: str) -> dict[str, Any]:
        link = items_link(model=model.label, length=length, depth=depth)
        return {"length": int(length), "depth": depth, "step": step, "text": text, "link": link}

    rows: Rows = []
    for length in model.summary.metrics.by_length_and_depth:
        for depth, found in model.by_depth(length, metric).items():
            assert found.value is not None, "only defined values are returned"
            step = str(heat_step(found.value, chance, boundary.tau))
            rows.append(cell(length, depth, step, f"{100 * found.value:.0f}{few(found.groups)}"))
    if not rows:
        return None
    for length, parts in model.summary.missing.by_length_and_depth.items():
        rows += [cell(length, depth, "none", MISSING) for depth, part in parts.items() if not part.answered]
    lengths = sorted({row["length"] for row in rows})
    bare: dict[str, Any] = {"ticks": False, "domain": False, "grid": False, "labelAngle": 0}
    columns = alt.Axis(labelExpr=_length_labels(lengths), **bare)
    depths = alt.Axis(labelExpr="replace(datum.label,'-','–')", **bare)
    base = chart_of(rows).encode(
        x=alt.X("length:O", title=["length in", token_unit(model.summary.measured)], axis=columns),
        y=alt.Y("depth:O", title="depth (0 = start)", axis=depths),
        href="link:N",
    )
    steps = [str(step) for step in range(HEAT_STEPS)]
    colors = [*(COLORS[f"heat-{step}"][0] for step in steps), LINE]
    color = alt.Color("step:N", scale=alt.Scale(domain=[*steps, "none"], range=colors), legend=None)
    tiles = base.mark_rect(stroke=PAPER, strokeWidth=2).encode(color=color)
    numbers = base.mark_text(fontSize=11, color=INK).encode(text="text:N")
    return Figure(
        f"depth-{number}",
        model.label,
        f"Heat map of {metric_of(metric).title} in percent by length and depth, for {model.label}; a dash is a cell "
        "without an answer.",
        svg_of(alt.layer(tiles, numbers), max(_SMALL[0], 26 * len(lengths)), _SMALL[1]),
    )


def training(runs: Sequence[Training], suffix: str = "") -> list[Figure]:
    """Held-out metric, loss, accuracy and longest prompt against the step, a curve a run; `suffix` ends their names."""
    from_zero, doubling = alt.Scale(zero=True), alt.Scale(type="log", base=2)
    panels = [
        ("loss", "loss", "Loss", "~g", from_zero),
        ("training-accuracy", "accuracy", "Accuracy on its own data", ".0%", from_zero),
        ("length", "length", "Longest prompt, tokens", ",d", doubling),
    ]
    color, dash, _ = encodings([run.style for run in runs])
    last = max((step.step for run in runs for step in run.steps), default=1)
    steps = alt.Scale(domain=[0, last], nice=False)
    x = alt.X("step:Q", title="step", scale=steps, axis=alt.Axis(grid=False, tickCount=4, format="~s"))
    metrics = dict.fromkeys(metric for run in runs if (metric := run.held_out_metric))
    figures = [held_out(runs, metric, x, suffix) for metric in metrics]
    for name, field, title, form, scale in panels:
        rows: Rows = [
            {"step": step, "value": mean, "curve": str(index)}
            for index, run in enumerate(runs)
            for step, mean in binned([(step.step, getattr(step, field)) for step in run.steps])
        ]
        if rows:
            y = alt.Y("value:Q", title=None, scale=scale, axis=alt.Axis(format=form, tickCount=5))
            chart = chart_of(rows).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=color, strokeDash=dash)
            description = f"Line chart of {title[0].lower()}{title[1:]} against the training step."
            figures.append(Figure(f"{name}{suffix}", title, description, svg_of(chart, *_SMALL)))
    return figures


def held_out(runs: Sequence[Training], metric: EvaluationMetric, x: alt.X, suffix: str) -> Figure:
    """A metric of the evaluations during training against the step, with 95% intervals."""
    rows: Rows = [
        {"curve": str(index), "step": step, "value": one.value, "low": one.low, "high": one.high}
        for index, run in enumerate(runs)
        if run.held_out_metric == metric
        for step, one in run.held_out.items()
        if one.value is not None
    ]
    color, dash, shape = encodings([run.style for run in runs])
    axis = alt.Axis(format=".0%" if metric.is_share else "~g", tickCount=5)
    y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=False), axis=axis)
    base = chart_of(rows).encode(x=x, color=color)
    chart = alt.layer(
        base.mark_line(strokeWidth=1.8).encode(y=y, strokeDash=dash),
        base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(y="low:Q", y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y, shape=shape),
    )
    title = f"Held-out {metric.title}"
    description = f"Line chart of {title[0].lower()}{title[1:]} against the training step."
    return Figure(
        f"held-out-{metric.name.replace('_', '-')}{suffix}", title, description, svg_of(chart, *_SMALL)
    )


def binned(values: Sequence[tuple[int, float | None]]) -> list[tuple[int, float]]:
    """The points of a curve over training steps: the last step and the mean of every bin of defined values."""
    known = [(step, value) for step, value in values if value is not None]
    size = bin_size(len(known)) or 1
    parts = [known[start : start + size] for start in range(0, len(known), size)]
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]


def bin_size(steps: int) -> int:
    """The number of training steps whose mean one point of a curve shows."""
    return -(-steps // _POINTS)
