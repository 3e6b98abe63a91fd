"""The models against heuristics that judged the same comparisons."""

from collections.abc import Sequence

from longrm.report.formatting import MISSING, interval, listed, percent, points
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
    )
