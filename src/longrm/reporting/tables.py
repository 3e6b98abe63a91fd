"""What sections of the report are made of: tables and their cells, as text that the template prints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from longrm.evaluation.compare import ComparedPart
from longrm.evaluation.metrics import EvaluationMetric
from longrm.evaluation.summary_schema import AttributionSummary, EvaluationSummary, PartAnswers
from longrm.reporting.formatting import (
    MISSING,
    NO_ANSWER,
    Style,
    count,
    decimal,
    interval,
    p_value,
    percent,
    points,
)
from longrm.reporting.load import Model
from longrm.runs.records import Estimate


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its text, a smaller second line such as an interval, and a link to the comparisons behind it."""

    text: str
    detail: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its header, its cells, and the style of the model it is about."""

    header: str
    cells: Sequence[Cell]
    style: Style | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a caption; the first of `columns` is the column of the row headers."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]

    def transposed(self, head: str) -> "Table":
        """The same with rows as columns, under another head of the row headers; rows have no style then."""
        columns = [head, *(row.header for row in self.rows)]
        rows = [
            Row(column, [row.cells[at] for row in self.rows]) for at, column in enumerate(self.columns[1:])
        ]
        return Table(self.caption, columns, rows)


@dataclass(frozen=True, slots=True)
class Passage:
    """Texts of a model that a click on `title` opens, each with the facts about it."""

    title: str
    texts: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page: figures with one caption, tables, and what a click opens."""

    title: str  # the heading, and its name in the navigation
    tables: Sequence[Table] = ()
    figures: Sequence[Any] = ()  # of `charts.Figure`
    caption: str = ""  # of the figures
    legend: Mapping[str, str] = field(default_factory=dict)  # names in the figures, with their meaning
    terms: Mapping[str, str] = field(default_factory=dict)  # definitions of columns, rows and the title
    folded: Sequence[Table] = ()
    passages: Sequence[Passage] = ()


def items_link(**filters: str | int) -> str:
    """The fragment that filters the browser of comparisons by `model` (its label), `length`, `depth`, `task`, ..."""
    return f"#items?{urlencode(filters, quote_via=quote)}"


def estimate_cell(
    estimate: Estimate | None, write: Callable[[float | None], str] = percent, *, n: bool = False
) -> Cell:
    """An estimate with its interval and, with `n`, the number of comparisons; a dash if it is undefined."""
    if estimate is None or estimate.value is None:
        return Cell(MISSING)
    limits = interval(estimate) if write is percent else interval(estimate, write)
    return Cell(write(estimate.value), f"{limits}\nn = {estimate.n}" if n else limits)


def answered_cell(
    estimate: Estimate | None, missing: PartAnswers | None, *, n: bool = False, link: str = ""
) -> Cell:
    """A share with its interval, and how many were answered if not all; the reason if none were."""
    if missing is not None and not missing.answered:
        return Cell(NO_ANSWER, missing.reason, link)
    cell = estimate_cell(estimate, n=n)
    detail = cell.detail if missing is None else f"{cell.detail} {answered(missing)}".strip()
    return Cell(cell.text, detail, "" if cell.text == MISSING else link)


def answered(missing: PartAnswers) -> str:
    """How many comparisons were answered."""
    return f"{missing.answered:,} of {missing.comparisons:,} answered"


class Column(NamedTuple):
    """A column of estimates: its head, the estimate of a summary, and how it is written."""

    head: str
    find: Callable[[EvaluationSummary], Estimate | None]
    write: Callable[[float | None], str] = percent


def estimate_table(caption: str, models: Sequence[Model], columns: Sequence[Column]) -> Table | None:
    """A row a model and a column an estimate; columns and models without any value are left out."""
    rows = []
    for model in models:
        cells = [estimate_cell(column.find(model.summary), column.write) for column in columns]
        if any(cell.text != MISSING for cell in cells):
            rows.append(Row(model.label, cells, model.style))
    kept = [k for k in range(len(columns)) if any(row.cells[k].text != MISSING for row in rows)]
    rows = [Row(row.header, [row.cells[k] for k in kept], row.style) for row in rows]
    return Table(caption, ["model", *(columns[k].head for k in kept)], rows) if rows else None


def compared_cells(part: ComparedPart, metric: EvaluationMetric) -> list[Cell]:
    """Both runs' metric, the paired difference, the p value adjusted for all parts of its kind, and n."""
    write, write_difference = (percent, points) if metric.is_share else (decimal, decimal)
    difference = estimate_cell(part.difference, write_difference)
    numbers = (p_value(part.p_holm), count(part.n))
    return [Cell(write(part.first)), Cell(write(part.second)), difference, *map(Cell, numbers)]


ATTRIBUTION_TERMS = {
    "maps shown": "share of attributions that pass every trust check",
    "evidence AUC": "how well the weights separate sentences of evidence from all others; 50% by chance",
    "weight on evidence": "share of all weight, a mean over the explained comparisons",
}


def attribution_table(
    caption: str, summary: AttributionSummary, accuracies: Mapping[str, Estimate | None] | None = None
) -> Table:
    """All attributions of a run, and those of each length, depth and verdict; with `accuracies` by row header."""
    parts = {
        "All": summary.overall,
        **{f"{int(length):,} tokens": part for length, part in summary.by_length.items()},
        **{f"Depth {depth}": part for depth, part in summary.by_depth.items()},
        **{f"Judged {verdict}": part for verdict, part in summary.by_verdict.items()},
    }
    rows = []
    for name, part in parts.items():
        cells = [] if accuracies is None else [estimate_cell(accuracies.get(name))]
        cells += [estimate_cell(one, n=True) for one in (part.shown, part.evidence_auc, part.evidence_share)]
        rows.append(Row(name, cells))
    columns = ["comparisons", *([] if accuracies is None else ["accuracy"]), *ATTRIBUTION_TERMS]
    return Table(caption, columns, rows)
