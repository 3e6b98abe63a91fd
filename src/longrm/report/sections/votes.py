"""Accuracy by the number of votes."""

from collections.abc import Sequence

import altair as alt

from longrm.report.charts import Figure, banded_curves, interval_rows, svg_of
from longrm.report.formatting import defined, plural
from longrm.report.load import Model
from longrm.report.tables import Row, Section, Table, percent_cell
from longrm.runs.records import Estimate


def votes(models: Sequence[Model]) -> Section | None:
    """Left out where no run voted."""
    curves = [
        (model, {int(k): estimate for k, estimate in model.summary.votes.at.items()})
        for model in models
        if model.summary.votes
    ]
    if not curves:
        return None
    counts = sorted({k for _, curve in curves for k in curve})
    rows = [
        Row(model.label, [percent_cell(defined(curve.get(k))) for k in counts], model.style)
        for model, curve in curves
    ]
    columns = ["model", *(plural(k, "vote") for k in counts)]
    return Section(
        "Accuracy by votes",
        "Votes",
        "The accuracy of the first k votes, averaged over which k votes come first. All points come from one run, so "
        "they differ by less than their intervals suggest.",
        tables=[Table("Accuracy by votes per order, with 95% intervals", columns, rows)],
        figure=_figure(curves),
    )


def _figure(curves: Sequence[tuple[Model, dict[int, Estimate]]]) -> Figure | None:
    rows = interval_rows([(number, curve) for number, (_, curve) in enumerate(curves)], "votes")
    if not rows:
        return None
    counts = sorted({row["votes"] for row in rows})
    x = alt.X(
        "votes:Q",
        title="votes per order",
        scale=alt.Scale(domain=[counts[0], counts[-1]], nice=False),
        axis=alt.Axis(values=counts, format="d", labelOverlap=True, grid=False),
    )
    scale = alt.Scale(zero=False, nice=True)
    y = alt.Y("value:Q", title="accuracy", scale=scale, axis=alt.Axis(format=".0%", tickCount=5))
    chart = alt.layer(*banded_curves(rows, [model.style for model, _ in curves], x, y, scale))
    return Figure(
        "votes",
        "Accuracy by votes",
        f"Line chart of accuracy against votes per order, from {counts[0]} to {counts[-1]}, one curve a model.",
        svg_of(chart, 280, 190),
    )
