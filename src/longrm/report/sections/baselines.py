"""The models against the baselines that judged beside them."""

from collections.abc import Sequence

import altair as alt

from longrm.evaluation import wording
from longrm.evaluation.summaries import BaselineComparison
from longrm.report.drawing import NO_LINES, Figure, Rows, colors_of, forest_plot, shapes_of, svg_of
from longrm.report.load import EvaluatedModel
from longrm.report.sections.section import Section
from longrm.report.tables import Table, TableCell, TableRow, points_cell

_ROW, _MARGIN = 16, 14  # pixels a model and around a baseline


def baselines(stages: Sequence[EvaluatedModel]) -> Section | None:
    """Left out where no baseline ran."""
    shown = [stage for stage in stages if stage.summary.baselines]
    if not shown:
        return None
    return Section(
        "Against simple rules",
        "Baselines",
        f"The same comparisons judged by rules without a model. {_what_they_read(shown)} A model that does not beat a "
        "rule may be doing no more than the rule does. Differences are paired; one whose interval holds 0 is not "
        "resolved.",
        tables=(_table(shown),),
        figure=_figure(shown),
    )


def _what_they_read(stages: Sequence[EvaluatedModel]) -> str:
    """Which rules read the context, for a model that does not beat these may read it still."""
    found = {name: one.reads_context for stage in stages for name, one in stage.summary.baselines.items()}
    sides = [[name for name, reads in found.items() if reads is side] for side in (False, True)]
    said = (
        f"{wording.listed(sides[0])}: of the responses alone.",
        f"{wording.listed(sides[1])}: of the context too.",
    )
    return " ".join(line for line, names in zip(said, sides, strict=True) if names)


def _table(stages: Sequence[EvaluatedModel]) -> Table:
    names = list(dict.fromkeys(name for stage in stages for name in stage.summary.baselines))
    rows = []
    for stage in stages:
        differences = [_difference(stage.summary.baselines.get(name)) for name in names]
        beaten = TableCell("yes" if stage.summary.beats_baselines else "no")
        rows.append(TableRow(stage.label, (*differences, beaten), stage.style))
    columns = ("model", *(f"over {name}" for name in names), "beats all")
    return Table("Accuracy less that of each baseline, in percentage points", columns, tuple(rows))


def _difference(found: BaselineComparison | None) -> TableCell:
    if found is None:
        return TableCell(wording.MISSING)
    cell = points_cell(found.difference)
    return TableCell(cell.text, f"{cell.detail}; it earns {wording.percent(found.value.value)}")


def _figure(stages: Sequence[EvaluatedModel]) -> Figure | None:
    rows: Rows = [
        {
            "curve": str(number),
            "baseline": name,
            "value": 100 * gap.value,
            "low": 100 * gap.low,
            "high": 100 * gap.high,
            "few": wording.few(gap.groups),
        }
        for number, stage in enumerate(stages)
        for name, found in stage.summary.baselines.items()
        if (gap := found.difference).value is not None and gap.low is not None and gap.high is not None
    ]
    if not rows:
        return None
    names = list(dict.fromkeys(row["baseline"] for row in rows))
    styles = [stage.style for stage in stages]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y("baseline:N", sort=None, title=None, axis=alt.Axis(labelLimit=120, **NO_LINES)),
        yOffset=alt.YOffset("curve:N", sort=None),
        color=colors_of(styles),
    )
    return Figure(
        "baselines",
        "Accuracy less that of each baseline",
        "Forest plot of the differences in the table, each with its 95% interval around zero.",
        svg_of(
            forest_plot(base, "points over the baseline", shapes_of(styles)),
            240,
            len(names) * (_ROW * len(stages) + _MARGIN),
        ),
    )
