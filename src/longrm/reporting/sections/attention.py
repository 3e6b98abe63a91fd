"""The attention of scalar models by layer (`longrm attribute --attention`)."""

from collections.abc import Sequence
from dataclasses import replace

import altair as alt

from longrm.attribution.run import attention_of
from longrm.evaluation.attention_table import ATTENTION_MEASURES, AttentionTableRow
from longrm.reporting.charts import Figure, Rows, chart_of, encodings, svg_of
from longrm.reporting.formatting import Style, count, few, percent
from longrm.reporting.load import ReportData
from longrm.reporting.tables import Cell, Row, Section, Table

ATTENTION_TITLES = {
    "fr": "FR (LongRM, Eq. 3)",
    "ig": "IG (LongRM, Eq. 4)",
    "attention_mass": "Attention mass",
}
"""The measures that are drawn: those by layer."""


def attention(data: ReportData) -> Section | None:
    """None if no attribution has measured attention."""
    figures: list[Figure] = []
    tables = []
    for run in data.attributions:
        rows = attention_of(run.path)
        if not rows:
            continue
        first = not figures
        figures += [
            figure if first else replace(figure, name=f"{figure.name}-{run.name}")
            for figure in attention_figures(rows)
        ]
        shown = []
        for region, style in region_styles(rows).items():
            numbers = (
                max((row.value.n for row in rows if (row.region, row.right) == (region, right)), default=0)
                for right in (True, False)
            )
            shown.append(Row(f"{region} text", [Cell(count(number)) for number in numbers], style))
        caption = f"{run.name}: comparisons with such text"
        tables.append(Table(caption, ["text", "judged right", "judged wrong"], shown))
    if not figures:
        return None
    return Section(
        "Attention",
        figures=figures,
        tables=tables,
        caption="Means with 95% intervals. Solid lines and circles: judged right; dashed lines and triangles: judged "
        "wrong; dotted: by chance. Attention shows what the model looks at, not what its score would be without that "
        "text.",
        terms={title: ATTENTION_MEASURES[name] for name, title in ATTENTION_TITLES.items()},
    )


def region_styles(rows: Sequence[AttentionTableRow]) -> dict[str, Style]:
    """How each region of a table is drawn; the first two regions get distant colors."""
    regions = dict.fromkeys(row.region for row in rows)
    return {region: Style.number(3 - 2 * n if n < 2 else 2 + n) for n, region in enumerate(regions)}


def attention_figures(rows: Sequence[AttentionTableRow]) -> list[Figure]:
    """A figure by layer for each measure: a color per region; right judgments are solid, wrong ones dashed."""
    styles = region_styles(rows)
    regions, verdicts = list(styles), ["right", "wrong"]
    color, _, _ = encodings(list(styles.values()))
    figures = []
    for measure, title in ATTENTION_TITLES.items():
        points: Rows = [
            {
                "curve": str(regions.index(row.region)),
                "judged": verdicts[not row.right],
                # Right and wrong are 0.1 layers apart, so that their intervals do not hide each other.
                "at": row.layer + 0.05 * (1 - 2 * row.right),
                "chance": row.chance,
                "value": row.value.value,
                "low": row.value.low,
                "high": row.value.high,
                "few": few(row.value.groups),
            }
            for row in rows
            if row.measure == measure and row.layer is not None and row.value.value is not None
        ]
        if not points:
            continue
        last = max(row.layer for row in rows if row.layer is not None)
        axis = alt.Axis(values=list(range(0, last + 1, 1 + last // 8)), format="d", grid=False)
        x = alt.X("at:Q", title="layer", scale=alt.Scale(domain=[-0.3, last + 0.3], nice=False), axis=axis)
        percents = alt.Axis(format=".0%", tickCount=5)
        y = alt.Y("value:Q", title=None, axis=percents, scale=alt.Scale(zero=True))
        dash = alt.StrokeDash(
            "judged:N", scale=alt.Scale(domain=verdicts, range=[[1, 0], [5, 3]]), legend=None
        )
        shape = alt.Shape(
            "judged:N", scale=alt.Scale(domain=verdicts, range=["circle", "triangle-up"]), legend=None
        )
        base = chart_of(points).encode(x=x, color=color)
        by_chance = base.mark_line(strokeWidth=1, opacity=0.7).encode(y="chance:Q", detail="judged:N")
        chart = alt.layer(
            by_chance.encode(strokeDash=alt.value([1, 3])),
            base.mark_line(strokeWidth=2).encode(y=y, strokeDash=dash),
            base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(y="low:Q", y2="high:Q"),
            base.mark_point(filled=True, size=45, opacity=1).encode(y=y, shape=shape),
            base.mark_text(dx=7, dy=-7, fontSize=11).encode(y=y, text="few:N"),
        )
        ends = ", ".join(
            f"{row.region} text {percent(row.value.value)} where judged {verdicts[not row.right]}"
            for row in rows
            if (row.measure, row.layer) == (measure, last)
        )
        name = f"attention-{measure.replace('_', '-')}"
        figures.append(Figure(name, title, f"{title} in layer {last}: {ends}.", svg_of(chart, 230, 150)))
    return figures
