"""What more votes are worth."""

from collections.abc import Sequence

import altair as alt

from longrm.evaluation import wording
from longrm.report.drawing import Figure, Rows, banded_curves, svg_of
from longrm.report.load import EvaluatedModel, defined
from longrm.report.sections.section import Section
from longrm.report.tables import Table, TableRow, percent_cell
from longrm.runs.records import Estimate

_WIDTH, _HEIGHT = 280, 190


def votes(stages: Sequence[EvaluatedModel]) -> Section | None:
    """Left out where no run voted."""
    shown = [stage for stage in stages if stage.summary.votes]
    if not shown:
        return None
    return Section(
        "What more votes are worth",
        "Votes",
        "The accuracy that the first k votes would have had, averaged over which k votes come first. All points come "
        "from one run, so that they differ by less than their intervals suggest.",
        tables=(_table(shown),),
        figure=_figure(shown),
    )


def _curve(stage: EvaluatedModel) -> dict[str, Estimate]:
    return stage.summary.votes.at if stage.summary.votes else {}


def _table(stages: Sequence[EvaluatedModel]) -> Table:
    counts = sorted({int(k) for stage in stages for k in _curve(stage)})
    rows = []
    for stage in stages:
        cells = tuple(percent_cell(defined(_curve(stage).get(str(k)))) for k in counts)
        rows.append(TableRow(stage.label, cells, stage.style))
    columns = ("model", *(wording.plural(k, "vote") for k in counts))
    return Table("Accuracy by votes per order, with 95% intervals", columns, tuple(rows))


def _figure(stages: Sequence[EvaluatedModel]) -> Figure | None:
    rows: Rows = [
        {"curve": str(number), "votes": int(k), "value": m.value, "low": m.low, "high": m.high}
        | {"few": wording.few(m.groups)}
        for number, stage in enumerate(stages)
        for k, m in _curve(stage).items()
        if m.value is not None
    ]
    if not rows:
        return None
    counts = sorted({row["votes"] for row in rows})
    styles = [stage.style for stage in stages]
    x = alt.X(
        "votes:Q",
        title="votes per order",
        scale=alt.Scale(domain=[counts[0], counts[-1]], nice=False),
        axis=alt.Axis(values=counts, format="d", labelOverlap=True, grid=False),
    )
    scale = alt.Scale(zero=False, nice=True)
    y = alt.Y("value:Q", title="accuracy", scale=scale, axis=alt.Axis(format=".0%", tickCount=5))
    return Figure(
        "votes",
        "Accuracy by votes",
        f"Line chart of accuracy against votes per order, from {counts[0]} to {counts[-1]}, one curve a model.",
        svg_of(alt.layer(*banded_curves(rows, styles, x, y, scale)), _WIDTH, _HEIGHT),
    )
