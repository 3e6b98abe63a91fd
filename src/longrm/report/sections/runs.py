"""A demo's contrasts and controls, what trainings did, and the outcome of every comparison."""

from longrm.evaluation.metrics import PAIR_ACCURACY
from longrm.report import charts
from longrm.report.formatting import (
    MISSING,
    count,
    decimal,
    percent,
    points,
    seconds,
    short_length,
)
from longrm.report.load import ReportData, stage_label
from longrm.report.tables import Cell, Row, Section, Table, estimate_cell
from longrm.runs.records import Estimate
from longrm.types import Outcome


def differences(data: ReportData) -> Section | None:
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
    terms = {
        "difference": "of two stages that judged the same comparisons (paired); with an unrelated context, from chance"
    }
    tables = [Table(caption, ["difference", "points", "pairs", "reading"], rows)]
    return Section("Contrast and controls", tables=tables, terms=terms) if rows else None


def training(data: ReportData) -> Section | None:
    """Curves of the training runs, what each did, and how fast."""
    figures = []
    for number, family in enumerate(data.families):
        runs = [run for run in data.trained if run.family == family]
        figures += charts.training(runs, f"-{number + 1}" if number else "")
    rows = []
    for run in data.trained:
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
    tables = [Table("Training; loss and accuracy are means over the last 20 steps", columns, rows)]
    size = max((charts.bin_size(len(run.steps)) for run in data.trained), default=1)
    caption = f"Each point is the mean of up to {size} steps." if size > 1 else ""
    return Section("Training", tables=tables, figures=figures, caption=caption) if rows else None


def outcomes(data: ReportData) -> Section | None:
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
    names = [outcome.value.replace("_", " ") for outcome in Outcome]
    columns = ["evaluation", "comparisons", "contexts", "trials", *names, "no gold order", "rows skipped"]
    return Section("Outcomes", tables=[Table("Outcome of every comparison", columns, rows)]) if rows else None
