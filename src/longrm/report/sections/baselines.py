"""The models against heuristics that judged the same comparisons."""

from collections.abc import Sequence

import altair as alt

from longrm.report.charts import NO_LINES, Figure, chart_of, colors_of, forest_plot, shapes_of, svg_of
from longrm.report.formatting import MISSING, few, interval, listed, percent, points
from longrm.report.load import Model
from longrm.report.tables import Cell, Row, Section, Table


def baselines(models: Sequence[Model]) -> Section | None:
    """Left out where no baseline ran."""
    shown = [model for model in models if model.summary.baselines]
    if not shown:
        return None
    reads_context = {
        name: one.reads_context for model in shown for name, one in model.summary.baselines.items()
    }
    blind = listed([name for name, reads in reads_context.items() if not reads])
    reading = listed([name for name, reads in reads_context.items() if reads])
    inputs = f"{f' {blind}: the responses only.' if blind else ''}{f' {reading}: the context too.' if reading else ''}"
    rows = []
    for model in shown:
        cells = []
        for name in reads_context:
            one = model.summary.baselines.get(name)
            if one is None:
                cells.append(Cell(MISSING))
            else:
                detail = f"{interval(one.difference, points)}; baseline {percent(one.value.value)}"
                cells.append(Cell(points(one.difference.value), detail))
        cells.append(Cell("yes" if model.summary.beats_baselines else "no"))
        rows.append(Row(model.label, cells, model.style))
    columns = ["model", *(f"over {name}" for name in reads_context), "beats all"]
    return Section(
        "Against simple baselines",
        "Baselines",
        f"The same comparisons judged by heuristics without a model, which read:{inputs} A model that does not beat a "
        "heuristic may do no more than the heuristic. Differences are paired.",
        tables=[Table("Accuracy minus that of each baseline, in percentage points", columns, rows)],
        figure=_figure(shown),
    )


def _figure(models: Sequence[Model]) -> Figure | None:
    rows = [
        {"curve": str(number), "baseline": name, "value": 100 * gap.value}
        | {"low": 100 * gap.low, "high": 100 * gap.high, "few": few(gap.groups)}
        for number, model in enumerate(models)
        for name, one in model.summary.baselines.items()
        if (gap := one.difference).value is not None and gap.low is not None and gap.high is not None
    ]
    if not rows:
        return None
    styles = [model.style for model in models]
    axis = alt.Axis(labelLimit=120, **NO_LINES)
    base = chart_of(rows).encode(
        y=alt.Y("baseline:N", sort=None, title=None, axis=axis),
        yOffset=alt.YOffset("curve:N", sort=None),
        color=colors_of(styles),
    )
    plot = forest_plot(base, "points over the baseline", shapes_of(styles))
    height = len({row["baseline"] for row in rows}) * (16 * len(models) + 14)
    return Figure(
        "baselines",
        "Accuracy minus that of each baseline",
        "Forest plot of the differences in the table, each with its 95% interval around zero.",
        svg_of(plot, 240, height),
    )
