"""The report's tables and sections, as text that the template prints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from longrm.evaluation.metrics import METRICS, PAIR_ACCURACY, metric_of
from longrm.evaluation.summaries import AttributionPart, AttributionSummary, EvaluationSummary, PartAnswers
from longrm.report.formatting import (
    MISSING,
    NO_ANSWER,
    STATUSES,
    Style,
    boundary_estimate,
    boundary_interval,
    count,
    decimal,
    few_note,
    interval,
    percent,
    points,
    seconds,
    short_length,
    token_unit,
)
from longrm.report.load import Model, ReportData, Training, stage_label
from longrm.runs.records import Estimate
from longrm.types import Outcome


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

    @property
    def note(self) -> str:
        """Explains the mark of intervals from few groups, if a cell has it."""
        return few_note(cell.detail for row in self.rows for cell in row.cells)


@dataclass(frozen=True, slots=True)
class Passage:
    """Texts of a model that a click on `title` opens, each with the facts about it."""

    title: str
    texts: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page."""

    title: str  # the heading
    link: str  # its name in the navigation
    meaning: str  # what its numbers mean; printed before them
    tables: Sequence[Table] = ()  # the first one is printed next to the figure
    figure: Any = None  # a `charts.Figure`, or None
    folded: Sequence[Table] = ()  # tables that a click on `fold` opens
    fold: str = ""
    passages: Sequence[Passage] = ()
    note: str = ""  # small print after the tables


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
    return Cell(write(estimate.value), f"{limits} n = {estimate.n}" if n else limits)


def answered_cell(
    estimate: Estimate | None, missing: PartAnswers | None, *, n: bool = False, link: str = ""
) -> Cell:
    """A share with its interval, and how many were answered if not all; the reason if none were."""
    if missing is not None and not missing.answered:
        return Cell(NO_ANSWER, missing.reason, link)
    cell = estimate_cell(estimate, n=n)
    detail = cell.detail if missing is None else f"{cell.detail} {_answered(missing)}".strip()
    return Cell(cell.text, detail, "" if cell.text == MISSING else link)


def _answered(missing: PartAnswers) -> str:
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


def boundary_table(caption: str, models: Sequence[Model]) -> Table | None:
    """The context boundary with everything that is reported with it."""
    rows = []
    for model in models:
        if (boundary := model.summary.boundary) is None:
            continue
        slope, reach = boundary.slope_per_doubling, boundary.above_chance_reach
        effective = list(boundary.effective_n.values())
        cells = [
            Cell(count(boundary.at_least)),
            Cell(boundary_estimate(boundary), boundary_interval(boundary)),
            Cell(count(boundary.below)),
            Cell(STATUSES[boundary.status]),
            estimate_cell(slope, decimal),
            Cell(count(min(effective)), f"to {count(max(effective))} per length"),
            Cell(count(boundary.pairs_to_resolve)),
            Cell(count(reach.tokens), f"at n ≥ {count(reach.smallest_n)}"),
        ]
        rows.append(Row(model.label, cells, model.style))
    columns = (
        "model, holds to, boundary, fails at, status, slope, effective pairs, pairs needed, above chance to"
    )
    return Table(caption, columns.split(", "), rows) if rows else None


def length_table(caption: str, models: Sequence[Model], metric: str, *, chance: bool = False) -> Table | None:
    """One metric at each length and its mean over lengths; with `chance`, a last row with the chance level."""
    lengths = sorted({length for model in models for length in (*model.by_length(metric), *model.unanswered)})
    if not lengths:
        return None
    rows = []
    for model in models:
        found, missing = model.by_length(metric), model.summary.missing.by_length
        cells = [
            answered_cell(found.get(n), missing.get(str(n)), link=items_link(model=model.label, length=n))
            for n in lengths
        ]
        # The summary has the unweighted mean over lengths for the main metric only.
        main = metric == model.summary.main_metric
        cells.append(estimate_cell(model.summary.metrics.macro.by_length if main else None))
        rows.append(Row(model.label, cells, model.style))
    if chance:
        level = next(model.summary.chance[metric] for model in models if metric in model.summary.chance)
        rows.append(Row("chance", [Cell(percent(level))] * (len(lengths) + 1)))
    return Table(caption, ["model", *map(count, lengths), "mean"], rows)


def overall_table(caption: str, models: Sequence[Model]) -> Table | None:
    """Every metric over all comparisons, the chance levels, and the number of comparisons."""
    measured = {name for model in models for name in model.summary.metrics.overall}
    names = [name for name in METRICS if name in measured]
    rows = []
    chances = set()
    for model in models:
        summary = model.summary
        cells, chance = [], []
        for name in names:
            write = percent if metric_of(name).is_share else decimal
            # Compared as text below: mean chance levels over different comparisons differ in their last digits.
            chance.append(write(summary.chance.get(name)))
            cells.append(estimate_cell(summary.metrics.overall.get(name), write))
        details = [_answered(summary.missing.overall)] if summary.missing.overall else []
        if summary.recommended:
            details.append(f"{summary.recommended.comparisons:,} recommended")
        cells.append(Cell(count(summary.accuracy.strict.n), ", ".join(details)))
        rows.append(Row(model.label, cells, model.style))
        chances.add((*chance, ""))
    rows += [Row("chance", [*map(Cell, texts)]) for texts in sorted(chances)]
    columns = ["model", *(METRICS[name].title for name in names), "comparisons"]
    return Table(caption, columns, rows) if models else None


def depth_tables(models: Sequence[Model], metric: str) -> list[Table]:
    """The numbers of the heat maps, one table per model: a row a depth, a column a length."""
    tables = []
    for model in models:
        missing = model.summary.missing.by_length_and_depth
        lengths = sorted(model.summary.metrics.by_length_and_depth, key=int)
        cells = {length: model.by_depth(length, metric) for length in lengths}
        depths = sorted({depth for length in lengths for depth in (*cells[length], *missing.get(length, ()))})
        rows = []
        for depth in depths:
            row = []
            for length in lengths:
                link = items_link(model=model.label, length=length, depth=depth)
                answers = missing.get(length, {}).get(depth)
                row.append(answered_cell(cells[length].get(depth), answers, n=True, link=link))
            rows.append(Row(depth.replace("-", "–"), row))
        if rows:
            caption = f"{model.label}: by length in {token_unit(model.summary.measured)} and depth"
            tables.append(Table(caption, ["depth", *(count(int(length)) for length in lengths)], rows))
    return tables


def difference_table(data: ReportData) -> Table | None:
    """A demo's contrasts length by length, and its controls as distances from chance, in percentage points."""
    if data.demo is None:
        return None
    found: list[tuple[str, Estimate, tuple[str, str]]] = []  # with how an interval with and without 0 reads
    for name, contrast in data.demo.contrasts.items():
        first, _, second = name.partition("_vs_")
        pair = f"{stage_label(first)} − {stage_label(second)}"
        for exam, by_length in ((pair, contrast.by_length), (f"{pair}, best of 4", contrast.best_of_4 or {})):
            for length in sorted(by_length, key=int):
                label = f"{exam}, {short_length(int(length))}"
                found.append((label, by_length[length], ("no difference resolved", "differs")))
    for name, value in data.demo.controls.items():
        chance = next(iter(data.demo.stages.values())).chance[PAIR_ACCURACY.name]
        ends = [None if end is None else end - chance for end in (value.value, value.low, value.high)]
        gap = Estimate(ends[0], ends[1], ends[2], value.n, value.groups)
        found.append(
            (f"{stage_label(name)} − chance", gap, ("at chance, as expected", "NOT at chance: a leak"))
        )
    rows = []
    for label, estimate, (inside, outside) in found:
        reading = MISSING
        if estimate.low is not None and estimate.high is not None:
            reading = inside if estimate.low <= 0 <= estimate.high else outside
        pairs = Cell(count(estimate.n), f"{count(estimate.groups)} contexts")
        rows.append(Row(label, [estimate_cell(estimate, points), pairs, Cell(reading)]))
    caption = "Differences in percentage points, with 95% intervals"
    return Table(caption, ["difference", "points", "pairs", "reading"], rows) if rows else None


def training_table(caption: str, runs: Sequence[Training]) -> Table:
    """What each training run did, and how fast."""
    rows = []
    for run in runs:
        last = run.steps[-20:]
        accuracies = [step.accuracy for step in last if step.accuracy is not None]
        spent = sum(record.seconds for record in run.timing)
        cells = (
            count(len(run.steps)),
            count(sum(step.tokens for step in run.steps)),
            count(max(step.length for step in run.steps)),
            decimal(sum(step.loss for step in last) / len(last), 3),
            percent(sum(accuracies) / len(accuracies) if accuracies else None),
            seconds(spent) if spent else MISSING,
            count(sum(record.tokens for record in run.timing) / spent if spent else None),
        )
        rows.append(Row(run.label, [Cell(text) for text in cells], run.style))
    columns = ["run", "steps", "tokens", "longest prompt", "loss", "accuracy", "time", "tokens/s"]
    return Table(caption, columns, rows)


def outcome_table(data: ReportData) -> Table | None:
    """The outcome of every comparison: nothing is dropped silently."""
    rows = []
    exams = ((data.models, ""), (data.best_of, ", best of 4"), (data.pointwise, ", single scores"))
    for models, suffix in exams:
        for model in models:
            counts = model.summary.counts
            numbers = [counts.comparisons, counts.groups, counts.trials.total]
            numbers += [counts.outcomes[outcome] for outcome in Outcome]
            numbers += [counts.without_gold, counts.skipped_rows or 0]
            rows.append(Row(model.label + suffix, [Cell(count(number)) for number in numbers], model.style))
    outcomes = [outcome.value.replace("_", " ") for outcome in Outcome]
    columns = ["evaluation", "comparisons", "contexts", "trials", *outcomes, "no gold order", "rows skipped"]
    return Table("Outcome of every comparison", columns, rows) if rows else None


def attribution_parts(summary: AttributionSummary) -> Mapping[str, AttributionPart]:
    """All attributions of a run, and those of each length, depth and verdict, by row header."""
    return {
        "All": summary.overall,
        **{f"{int(length):,} tokens": part for length, part in summary.by_length.items()},
        **{f"Depth {depth}": part for depth, part in summary.by_depth.items()},
        **{f"Judged {verdict}": part for verdict, part in summary.by_verdict.items()},
    }
