"""The models against the baselines that were run beside them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from longrm.report import wording
from longrm.report.drawing import MUTED, NO_LINES, Figure, colors_of, shapes_of, svg_of
from longrm.report.material import Evaluated, metric_of
from longrm.report.sections.section import Section
from longrm.report.tables import Cell, Row, Table, points_cell

_ROW, _MARGIN = 16, 14  # pixels a model and around a baseline


def baselines(stages: Sequence[Evaluated]) -> Section | None:
    """Left out where no baseline ran."""
    shown = [stage for stage in stages if stage.summary["baselines"]]
    if not shown:
        return None
    return Section(
        "baselines",
        "Against simple rules",
        "Baselines",
        "The same comparisons judged by a simple rule, such as preferring the longest response. A model that does not "
        "beat the rule may be doing no more than the rule does. Differences are paired; one whose interval holds 0 is "
        "not resolved.",
        tables=(_table(shown),),
        figure=_figure(shown),
    )


def _table(stages: Sequence[Evaluated]) -> Table:
    names = list(dict.fromkeys(name for stage in stages for name in stage.summary["baselines"]))
    rows = [
        Row(
            stage.label,
            (
                *(_difference(stage.summary["baselines"].get(name)) for name in names),
                Cell("yes" if stage.summary["beats_baselines"] else "no"),
            ),
            stage.style,
        )
        for stage in stages
    ]
    columns = ("model", *(f"over {name}" for name in names), "beats all")
    return Table("Accuracy less that of each baseline, in percentage points", columns, tuple(rows))


def _difference(found: Mapping[str, Any] | None) -> Cell:
    if found is None:
        return Cell(wording.MISSING)
    cell = points_cell(metric_of(found["difference"]))
    return Cell(cell.text, f"{cell.detail}; it earns {wording.percent(found['value']['value'])}")


def _figure(stages: Sequence[Evaluated]) -> Figure | None:
    rows = list(_rows(stages))
    if not rows:
        return None
    names = list(dict.fromkeys(row["baseline"] for row in rows))
    styles = [stage.style for stage in stages]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y("baseline:N", sort=None, title=None, axis=alt.Axis(labelLimit=120, **NO_LINES)),
        yOffset=alt.YOffset("curve:N", sort=None),
        color=colors_of(styles),
    )
    zero = (
        alt.Chart(alt.InlineData(values=[{"zero": 0}]))
        .mark_rule(color=MUTED, strokeDash=[2, 3])
        .encode(x="zero:Q")
    )
    span = base.mark_rule(strokeWidth=2).encode(
        x=alt.X(
            "low:Q",
            title="points over the baseline",
            axis=alt.Axis(tickCount=4, labelOverlap="greedy"),
        ),
        x2="high:Q",
    )
    point = base.mark_point(filled=True, size=70, opacity=1).encode(x="value:Q", shape=shapes_of(styles))
    return Figure(
        "baselines",
        "Accuracy less that of each baseline",
        "Forest plot of the differences in the table, each with its 95% interval around zero.",
        svg_of(alt.layer(zero, span, point), 240, len(names) * (_ROW * len(stages) + _MARGIN)),
    )


def _rows(stages: Sequence[Evaluated]) -> Iterator[dict[str, object]]:
    for number, stage in enumerate(stages):
        for name, found in stage.summary["baselines"].items():
            metric = metric_of(found["difference"])
            if metric.value is not None and metric.low is not None and metric.high is not None:
                limits = {"value": 100 * metric.value, "low": 100 * metric.low, "high": 100 * metric.high}
                yield {"curve": str(number), "baseline": name} | limits
