"""The report's tables, as text: what each row and column says."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from longrm.evaluation.metrics import METRICS, PAIR_ACCURACY, metric_of
from longrm.evaluation.summaries import ContextBoundary, DemoSummary, EvaluationSummary
from longrm.report import wording
from longrm.report.load import (
    EvaluatedModel,
    ReportData,
    ReportedTraining,
    defined,
    stage_label,
)
from longrm.report.palette import Style
from longrm.runs.records import Estimate
from longrm.types import Outcome


@dataclass(frozen=True, slots=True)
class TableCell:
    """What a cell says, and a smaller second line such as an interval."""

    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row: its header, the style of the stage that it is about, and its cells."""

    header: str
    cells: tuple[TableCell, ...]
    style: Style | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a caption; `columns` names the row headers' column first."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]

    def __post_init__(self) -> None:
        assert all(len(row.cells) + 1 == len(self.columns) for row in self.rows), self.caption


@dataclass(frozen=True, slots=True)
class EstimateColumn:
    """A column of one estimate.

    Attributes:
        name: What its head says.
        find: Finds it in a summary.
        write: How it is written.
        missing: What stands where a run has none.
    """

    name: str
    find: Callable[[EvaluationSummary], Estimate | None]
    write: Callable[[Estimate], TableCell]
    missing: str = wording.MISSING


def estimate_table(
    caption: str, stages: Sequence[EvaluatedModel], columns: Sequence[EstimateColumn]
) -> Table | None:
    """A row a model and a column an estimate; columns and models of which nothing is known are left out."""
    found = [[defined(column.find(stage.summary)) for column in columns] for stage in stages]
    kept = [place for place in range(len(columns)) if any(estimates[place] for estimates in found)]
    rows = [
        TableRow(
            stage.label,
            tuple(
                columns[place].write(one) if (one := estimates[place]) else TableCell(columns[place].missing)
                for place in kept
            ),
            stage.style,
        )
        for stage, estimates in zip(stages, found, strict=True)
        if any(estimates)
    ]
    return Table(caption, ("model", *(columns[place].name for place in kept)), tuple(rows)) if rows else None


def boundary_table(caption: str, stages: Sequence[EvaluatedModel]) -> Table | None:
    """The context boundary with all that is reported together."""
    rows = [
        TableRow(stage.label, _boundary_cells(stage.summary.boundary), stage.style)
        for stage in stages
        if stage.summary.boundary is not None
    ]
    columns = (
        "model",
        "holds to",
        "boundary",
        "fails at",
        "status",
        "slope",
        "effective pairs",
        "pairs needed",
        "above chance to",
    )
    return Table(caption, columns, tuple(rows)) if rows else None


def _boundary_cells(boundary: ContextBoundary) -> tuple[TableCell, ...]:
    slope, reach = boundary.slope_per_doubling, boundary.above_chance_reach
    effective = list(boundary.effective_n.values())
    return (
        TableCell(wording.tokens(boundary.at_least)),
        TableCell(wording.boundary_estimate(boundary), wording.boundary_interval(boundary)),
        TableCell(wording.tokens(boundary.below)),
        TableCell(wording.STATUSES[boundary.status][0]),
        TableCell(wording.decimal(slope.value), wording.decimal_interval(slope)),
        TableCell(wording.tokens(min(effective)), f"to {wording.tokens(max(effective))} a length"),
        TableCell(wording.tokens(boundary.pairs_to_resolve)),
        TableCell(wording.tokens(reach.tokens), f"at n ≥ {wording.tokens(reach.smallest_n)}"),
    )


def length_table(
    caption: str, stages: Sequence[EvaluatedModel], metric: str, *, chance: bool = False
) -> Table | None:
    """One metric of every stage at every length and its mean over them, and the chance level as a last row."""
    columns = [(stage, stage.by_length(metric)) for stage in stages]
    lengths = sorted({length for _, found in columns for length in found})
    if not lengths:
        return None
    rows = [
        TableRow(
            stage.label,
            (*(percent_cell(found.get(length)) for length in lengths), percent_cell(_macro(stage, metric))),
            stage.style,
        )
        for stage, found in columns
    ]
    if chance:
        level = next(stage.summary.chance[metric] for stage in stages if metric in stage.summary.chance)
        rows.append(
            TableRow("chance", tuple(TableCell(wording.percent(level)) for _ in range(len(lengths) + 1)))
        )
    return Table(caption, ("model", *map(wording.tokens, lengths), "mean"), tuple(rows))


def _macro(stage: EvaluatedModel, metric: str) -> Estimate | None:
    """The unweighted mean over lengths, which a summary has of the main metric alone."""
    if metric != stage.summary.main_metric:
        return None
    return defined(stage.summary.metrics.macro.by_length)


def overall_table(caption: str, stages: Sequence[EvaluatedModel]) -> Table | None:
    """Every metric over all comparisons, what chance would earn, and how many comparisons there are."""
    if not stages:
        return None
    measured = {name for stage in stages for name in stage.summary.metrics.overall}
    names = [name for name in METRICS if name in measured]
    rows = [
        TableRow(
            stage.label,
            (*(_written(name, stage.summary.metrics.overall.get(name)) for name in names), _compared(stage)),
            stage.style,
        )
        for stage in stages
    ]
    levels = {tuple(stage.summary.chance.get(name) for name in names) for stage in stages}
    rows += [
        TableRow(
            "chance", (*(TableCell(_level(*pair)) for pair in zip(names, level, strict=True)), TableCell(""))
        )
        for level in sorted(levels, key=str)
    ]
    columns = ("model", *(METRICS[name].title for name in names), "comparisons")
    return Table(caption, columns, tuple(rows))


def depth_tables(stages: Sequence[EvaluatedModel], metric: str) -> list[Table]:
    """The numbers behind the heat maps, one table a stage."""
    tables = []
    for stage in stages:
        cells = {
            length: stage.by_depth(length, metric)
            for length in sorted(stage.summary.metrics.by_length_and_depth, key=int)
        }
        depths = sorted({depth for found in cells.values() for depth in found})
        rows = [
            TableRow(
                depth.replace("-", "–"),
                tuple(percent_cell(found.get(depth), n=True) for found in cells.values()),
            )
            for depth in depths
        ]
        columns = ("depth", *(wording.tokens(int(length)) for length in cells))
        if rows:
            tables.append(Table(f"{stage.label}: by length and depth", columns, tuple(rows)))
    return tables


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference that the forest plot draws: what it is, and how it reads."""

    label: str
    estimate: Estimate
    reading: str


def differences(demo: DemoSummary) -> Iterator[Difference]:
    """The demo's contrasts, length by length, and its controls as distances from chance."""
    for name, contrast in demo.contrasts.items():
        first, _, second = name.partition("_vs_")
        for length, value in sorted(contrast.by_length.items(), key=lambda item: int(item[0])):
            label = f"{stage_label(first)} − {stage_label(second)}, {wording.short_tokens(int(length))}"
            yield Difference(label, value, _side(value, "no difference resolved", "differs"))
    for name, value in demo.controls.items():
        level = next(iter(demo.stages.values())).chance[PAIR_ACCURACY.name]
        low, high = _minus(value.low, level), _minus(value.high, level)
        apart = Estimate(_minus(value.value, level), low, high, value.n, value.groups)
        yield Difference(
            f"{stage_label(name)} − chance",
            apart,
            _side(apart, "at chance, as it must be", "NOT at chance: a leak"),
        )


def difference_table(found: Sequence[Difference]) -> Table:
    """The contrasts and controls in percentage points."""
    rows = [
        TableRow(
            item.label,
            (
                points_cell(item.estimate),
                TableCell(
                    wording.tokens(item.estimate.n), f"{wording.tokens(item.estimate.groups)} contexts"
                ),
                TableCell(item.reading),
            ),
        )
        for item in found
    ]
    columns = ("difference", "points", "pairs", "reading")
    return Table("Differences in percentage points, with 95% intervals", columns, tuple(rows))


def training_table(caption: str, trained: Sequence[ReportedTraining]) -> Table:
    """What each training run did, and how fast."""
    rows = []
    for run in trained:
        last = run.steps[-20:]
        accuracies = [step.accuracy for step in last if step.accuracy is not None]
        spent = sum(record.seconds for record in run.timing)
        rate = sum(record.tokens for record in run.timing) / spent if spent else None
        cells = (
            wording.tokens(len(run.steps)),
            wording.tokens(sum(step.tokens for step in run.steps)),
            wording.tokens(max(step.length for step in run.steps)),
            wording.decimal(sum(step.loss for step in last) / len(last), 3),
            wording.percent(sum(accuracies) / len(accuracies) if accuracies else None),
            wording.seconds(spent) if spent else wording.MISSING,
            wording.tokens(rate),
        )
        rows.append(TableRow(run.label, tuple(map(TableCell, cells)), run.style))
    columns = ("run", "steps", "tokens", "longest", "loss", "accuracy", "time", "tokens/s")
    return Table(caption, columns, tuple(rows))


def outcome_table(data: ReportData) -> Table | None:
    """What became of every comparison: nothing is dropped in silence."""
    rows, kinds = (
        [],
        ((data.stages, ""), (data.best_of, ", best of 4"), (data.pointwise, ", single scores")),
    )
    for stages, suffix in kinds:
        for stage in stages:
            counts = stage.summary.counts
            shown = [counts.comparisons, counts.groups, counts.trials.total]
            shown += [counts.outcomes[outcome] for outcome in Outcome]
            shown += [counts.without_gold, counts.skipped_rows or 0]
            rows.append(
                TableRow(
                    stage.label + suffix, tuple(TableCell(wording.tokens(n)) for n in shown), stage.style
                )
            )
    columns = (
        "evaluation",
        "comparisons",
        "contexts",
        "trials",
        *(outcome.value.replace("_", " ") for outcome in Outcome),
    )
    columns += ("no gold order", "rows skipped")
    return Table("What became of every comparison", columns, tuple(rows)) if rows else None


def percent_cell(estimate: Estimate | None, *, n: bool = False) -> TableCell:
    """A share with its interval, and how many stand behind it."""
    if estimate is None:
        return TableCell(wording.MISSING)
    detail = wording.percent_interval(estimate)
    return TableCell(wording.percent(estimate.value), f"{detail} n = {estimate.n}" if n else detail)


def points_cell(estimate: Estimate) -> TableCell:
    """A difference of shares in percentage points with its interval."""
    return TableCell(wording.points(estimate.value), wording.points_interval(estimate))


def _compared(stage: EvaluatedModel) -> TableCell:
    """The comparisons scored, and how many would tell another judge from this one."""
    needed = stage.summary.recommended
    detail = f"{wording.tokens(needed.comparisons)} recommended" if needed else ""
    return TableCell(wording.tokens(stage.summary.accuracy.strict.n), detail)


def _written(name: str, estimate: Estimate | None) -> TableCell:
    if estimate is None or estimate.value is None:
        return TableCell(wording.MISSING)
    if not metric_of(name).is_share:
        return TableCell(wording.decimal(estimate.value), wording.decimal_interval(estimate))
    return percent_cell(estimate)


def _level(name: str, level: float | None) -> str:
    write: Callable[[float | None], str] = wording.percent if metric_of(name).is_share else wording.decimal
    return write(level)


def _side(estimate: Estimate, inside: str, outside: str) -> str:
    """How an interval reads that holds zero, or does not."""
    if estimate.low is None or estimate.high is None:
        return wording.MISSING
    return inside if estimate.low <= 0 <= estimate.high else outside


def _minus(value: float | None, level: float) -> float | None:
    return None if value is None else value - level
