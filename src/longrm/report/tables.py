"""The report's tables, as text: what each row and column says."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longrm.evaluation.metrics import Metric, main_metric
from longrm.report import wording
from longrm.report.material import (
    Evaluated,
    Material,
    Trained,
    metric_at,
    metric_of,
    stage_label,
)
from longrm.report.palette import Style
from longrm.types import Outcome

_SHARES = wording.METRIC_NAMES.keys() - {"kendall_tau"}
"""The metrics that are shown in percent."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell says, and a smaller second line such as an interval."""

    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its header, the style of the stage that it is about, and its cells."""

    header: str
    cells: tuple[Cell, ...]
    style: Style | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a caption; `columns` names the row headers' column first."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        assert all(len(row.cells) + 1 == len(self.columns) for row in self.rows), self.caption


@dataclass(frozen=True, slots=True)
class Column:
    """A column of one metric.

    Attributes:
        name: What its head says.
        keys: Where summaries hold the metric.
        write: How it is written.
        missing: What stands where a run has none.
    """

    name: str
    keys: tuple[str, ...]
    write: Callable[[Metric], Cell]
    missing: str = wording.MISSING


def metric_table(caption: str, stages: Sequence[Evaluated], columns: Sequence[Column]) -> Table | None:
    """A row a model and a column a metric; metrics and models of which nothing is known are left out."""
    found = [[metric_at(stage.summary, *column.keys) for column in columns] for stage in stages]
    kept = [place for place in range(len(columns)) if any(metrics[place] for metrics in found)]
    rows = [
        Row(
            stage.label,
            tuple(
                columns[place].write(metric) if (metric := metrics[place]) else Cell(columns[place].missing)
                for place in kept
            ),
            stage.style,
        )
        for stage, metrics in zip(stages, found, strict=True)
        if any(metrics)
    ]
    return Table(caption, ("model", *(columns[place].name for place in kept)), tuple(rows)) if rows else None


def boundary_table(caption: str, stages: Sequence[Evaluated]) -> Table | None:
    """The context boundary with all that is reported together."""
    rows = [
        Row(stage.label, _boundary_cells(stage.summary["boundary"]), stage.style)
        for stage in stages
        if stage.summary["boundary"] is not None
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


def _boundary_cells(boundary: Mapping[str, Any]) -> tuple[Cell, ...]:
    slope, reach = metric_of(boundary["slope_per_doubling"]), boundary["above_chance_reach"]
    effective = list(boundary["effective_n"].values())
    return (
        Cell(wording.tokens(boundary["at_least"])),
        Cell(wording.boundary_estimate(boundary), wording.boundary_interval(boundary)),
        Cell(wording.tokens(boundary["below"])),
        Cell(wording.STATUSES[boundary["status"]][0]),
        Cell(wording.decimal(slope.value), wording.decimal_interval(slope)),
        Cell(wording.tokens(min(effective)), f"to {wording.tokens(max(effective))} a length"),
        Cell(wording.tokens(boundary["pairs_to_resolve"])),
        Cell(wording.tokens(reach["tokens"]), f"at n ≥ {wording.tokens(reach['smallest_n'])}"),
    )


def length_table(
    caption: str, stages: Sequence[Evaluated], metric: str, *, chance: bool = False
) -> Table | None:
    """One metric of every stage at every length and its mean over them, and the chance level as a last row."""
    columns = [(stage, stage.by_length(metric)) for stage in stages]
    lengths = sorted({length for _, found in columns for length in found})
    if not lengths:
        return None
    rows = [
        Row(
            stage.label,
            (*(percent_cell(found.get(length)) for length in lengths), percent_cell(_macro(stage, metric))),
            stage.style,
        )
        for stage, found in columns
    ]
    if chance:
        level = next(stage.summary["chance"][metric] for stage in stages if metric in stage.summary["chance"])
        rows.append(Row("chance", tuple(Cell(wording.percent(level)) for _ in range(len(lengths) + 1))))
    return Table(caption, ("model", *map(wording.tokens, lengths), "mean"), tuple(rows))


def _macro(stage: Evaluated, metric: str) -> Metric | None:
    """The unweighted mean over lengths, which a summary has of the main metric alone."""
    if metric != main_metric(stage.summary):
        return None
    return metric_at(stage.summary, "metrics", "macro", "by_length")


def overall_table(caption: str, stages: Sequence[Evaluated]) -> Table | None:
    """Every metric over all comparisons, what chance would earn, and how many comparisons there are."""
    found = [stage.overall() for stage in stages]
    measured = dict.fromkeys(name for metrics in found for name in metrics)
    names = [name for name in wording.METRIC_NAMES if name in measured]
    names += [name for name in measured if name not in wording.METRIC_NAMES]
    if not names:
        return None
    rows = [
        Row(
            stage.label,
            (*(_written(name, metrics.get(name)) for name in names), _compared(stage)),
            stage.style,
        )
        for stage, metrics in zip(stages, found, strict=True)
    ]
    levels = {tuple(stage.summary["chance"].get(name) for name in names) for stage in stages}
    rows += [
        Row("chance", (*(Cell(_level(*pair)) for pair in zip(names, level, strict=True)), Cell("")))
        for level in sorted(levels, key=str)
    ]
    columns = ("model", *map(wording.metric_name, names), "comparisons")
    return Table(caption, columns, tuple(rows))


def depth_tables(stages: Sequence[Evaluated], metric: str) -> list[Table]:
    """The numbers behind the heat maps, one table a stage."""
    tables = []
    for stage in stages:
        cells = {
            length: stage.by_depth(length, metric)
            for length in sorted(stage.summary["metrics"]["by_length_and_depth"], key=int)
        }
        depths = sorted({depth for found in cells.values() for depth in found})
        rows = [
            Row(
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
    metric: Metric
    reading: str


def differences(demo: Mapping[str, Any]) -> Iterator[Difference]:
    """The demo's contrasts, length by length, and its controls as distances from chance."""
    for name, contrast in demo["contrasts"].items():
        first, _, second = name.partition("_vs_")
        for length, value in sorted(contrast["by_length"].items(), key=lambda item: int(item[0])):
            metric = metric_of(value)
            label = f"{stage_label(first)} − {stage_label(second)}, {wording.short_tokens(int(length))}"
            yield Difference(label, metric, _side(metric, "no difference resolved", "differs"))
    for name, value in demo["controls"].items():
        metric = metric_of(value)
        level = next(iter(demo["stages"].values()))["chance"]["pair_accuracy"]
        low, high = _minus(metric.low, level), _minus(metric.high, level)
        apart = Metric(_minus(metric.value, level), low, high, metric.n, metric.groups)
        yield Difference(
            f"{stage_label(name)} − chance",
            apart,
            _side(apart, "at chance, as it must be", "NOT at chance: a leak"),
        )


def difference_table(found: Sequence[Difference]) -> Table:
    """The contrasts and controls in percentage points."""
    rows = [
        Row(
            item.label,
            (
                points_cell(item.metric),
                Cell(wording.tokens(item.metric.n), f"{wording.tokens(item.metric.groups)} contexts"),
                Cell(item.reading),
            ),
        )
        for item in found
    ]
    columns = ("difference", "points", "pairs", "reading")
    return Table("Differences in percentage points, with 95% intervals", columns, tuple(rows))


def training_table(caption: str, trained: Sequence[Trained]) -> Table:
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
        rows.append(Row(run.label, tuple(map(Cell, cells)), run.style))
    columns = ("run", "steps", "tokens", "longest", "loss", "accuracy", "time", "tokens/s")
    return Table(caption, columns, tuple(rows))


def outcome_table(material: Material) -> Table | None:
    """What became of every comparison: nothing is dropped in silence."""
    rows, kinds = (
        [],
        ((material.stages, ""), (material.best_of, ", best of 4"), (material.pointwise, ", single scores")),
    )
    for stages, suffix in kinds:
        for stage in stages:
            counts = stage.summary["counts"]
            shown = [counts["comparisons"], counts["groups"], counts["trials"]["total"]]
            shown += [counts["outcomes"][outcome.value] for outcome in Outcome]
            shown += [counts["without_gold"], counts.get("skipped_rows", 0)]
            rows.append(Row(stage.label + suffix, tuple(Cell(wording.tokens(n)) for n in shown), stage.style))
    columns = (
        "evaluation",
        "comparisons",
        "contexts",
        "askings",
        *(outcome.value.replace("_", " ") for outcome in Outcome),
    )
    columns += ("no gold order", "rows skipped")
    return Table("What became of every comparison", columns, tuple(rows)) if rows else None


def percent_cell(metric: Metric | None, *, n: bool = False) -> Cell:
    """A share with its interval, and how many stand behind it."""
    if metric is None:
        return Cell(wording.MISSING)
    detail = wording.percent_interval(metric)
    return Cell(wording.percent(metric.value), f"{detail} n = {metric.n}" if n else detail)


def points_cell(metric: Metric) -> Cell:
    """A difference of shares in percentage points with its interval."""
    return Cell(wording.points(metric.value), wording.points_interval(metric))


def _compared(stage: Evaluated) -> Cell:
    """The comparisons scored, and how many would tell another judge from this one."""
    needed = stage.summary["recommended"]
    detail = f"{wording.tokens(needed['comparisons'])} recommended" if needed else ""
    return Cell(wording.tokens(stage.summary["accuracy"]["strict"]["n"]), detail)


def _written(name: str, metric: Metric | None) -> Cell:
    if metric is None or metric.value is None:
        return Cell(wording.MISSING)
    if name not in _SHARES:
        return Cell(wording.decimal(metric.value), wording.decimal_interval(metric))
    return percent_cell(metric)


def _level(name: str, level: float | None) -> str:
    write: Callable[[float | None], str] = wording.percent if name in _SHARES else wording.decimal
    return write(level)


def _side(metric: Metric, inside: str, outside: str) -> str:
    """How an interval reads that holds zero, or does not."""
    if metric.low is None or metric.high is None:
        return wording.MISSING
    return inside if metric.low <= 0 <= metric.high else outside


def _minus(value: float | None, level: float) -> float | None:
    return None if value is None else value - level
