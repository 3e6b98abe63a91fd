"""Differences between runs, a demo's contrasts and controls, what trainings did, and all outcomes."""

from collections.abc import Mapping, Sequence

from longrm.evaluation.compare import LEFT_OUT
from longrm.evaluation.metrics import PAIR_ACCURACY, EvaluationMetric, metric_of
from longrm.evaluation.summary_schema import DemoSummary
from longrm.report import charts
from longrm.report.formatting import (
    MISSING,
    count,
    decimal,
    percent,
    points,
    seconds,
)
from longrm.report.load import ReportData, Training, stage_label
from longrm.report.tables import Cell, Passage, Row, Section, Table, compared_cells, estimate_cell
from longrm.runs.records import Estimate
from longrm.types import Outcome


def differences(data: ReportData) -> Section | None:
    """A demo's contrasts and controls; of other runs, the difference of each from the first one."""
    return _run_differences(data) if data.demo is None else _contrasts(data.demo)


def _run_differences(data: ReportData) -> Section | None:
    """Paired differences by length: the last run's table is shown, the others are folded."""
    tables, passages = [], []
    for model in data.models:
        found = model.compared
        if found is None:
            continue
        first, metric = data.models[0].label, metric_of(found.metric)
        parts = {"all": found.overall} | {f"{int(n):,}": part for n, part in found.by_length.items()}
        rows = []
        for name, part in parts.items():
            one, other, gap, *rest = compared_cells(part, metric)
            rows.append(Row(name, [gap, one, other, *rest]))
        unit = ", difference in points" if metric.is_share else ""
        caption = f"{metric.title.capitalize()} of {model.label} minus {first}{unit}, with 95% intervals"
        tables.append(Table(caption, ["length", "difference", first, model.label, "p", "n"], rows))
        names = {"first": f"'{first}'", "second": f"'{model.label}'"}
        notes = [f"{n:,} left out: {LEFT_OUT[why].format(**names)}" for why, n in found.left_out.items() if n]
        if notes := [*notes, *(f"setting {line}" for line in found.differs_in)]:
            title = f"What else differs between {first} and {model.label}"
            passages.append(Passage(title, [("", "\n".join(notes))]))
    terms = {
        "difference": "paired: on the comparisons that both runs judged",
        "p": "of the sign-flip test over groups, adjusted for the number of lengths (Holm)",
    }
    if not tables:
        return None
    return Section("Differences", tables=tables[-1:], terms=terms, folded=tables[:-1], passages=passages)


def _contrasts(demo: DemoSummary) -> Section | None:
    """A demo's contrasts length by length, and its controls as distances from chance, in percentage points."""
    contrasts: dict[str, Mapping[str, Estimate]] = {}
    for name, contrast in demo.contrasts.items():
        first, _, second = name.partition("_vs_")
        pair = f"{stage_label(first)} − {stage_label(second)}"
        contrasts[pair] = contrast.by_length
        if contrast.best_of_4:
            contrasts[f"{pair}, best of 4"] = contrast.best_of_4
    lengths = sorted({int(length) for by_length in contrasts.values() for length in by_length})
    rows = [
        Row(label, [estimate_cell(by_length.get(str(length)), points) for length in lengths])
        for label, by_length in contrasts.items()
    ]
    tables = []
    if rows:
        caption = "Paired differences in percentage points by length, with 95% intervals"
        tables.append(Table(caption, ["difference", *map(count, lengths)], rows))
    rows = []
    chance = next(iter(demo.stages.values())).chance[PAIR_ACCURACY.name]
    for name, value in demo.controls.items():
        ends = [None if end is None else end - chance for end in (value.value, value.low, value.high)]
        gap = Estimate(ends[0], ends[1], ends[2], value.n, value.groups)
        reading = MISSING
        if gap.low is not None and gap.high is not None:
            reading = "at chance, as expected" if gap.low <= 0 <= gap.high else "NOT at chance: a leak"
        pairs = Cell(count(gap.n), f"{count(gap.groups)} contexts")
        rows.append(Row(f"{stage_label(name)} − chance", [estimate_cell(gap, points), pairs, Cell(reading)]))
    if rows:
        caption = "Controls in percentage points, with 95% intervals"
        tables.append(Table(caption, ["control without evidence", "points", "pairs", "reading"], rows))
    terms = {"difference": "of two stages that judged the same comparisons"}
    return Section("Contrast and controls", tables=tables, terms=terms) if tables else None


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
    tables += _held_out(data.trained)
    size = max((charts.bin_size(len(run.steps)) for run in data.trained), default=1)
    caption = f"Points of loss and accuracy are means of up to {size} steps." if size > 1 else ""
    return Section("Training", tables=tables, figures=figures, caption=caption) if rows else None


def _held_out(trained: Sequence[Training]) -> list[Table]:
    """The evaluations during training: a row a step, a column a run, a table a metric."""
    by_metric: dict[EvaluationMetric, list[Training]] = {}
    for run in trained:
        if metric := run.held_out_metric:
            by_metric.setdefault(metric, []).append(run)
    tables = []
    for metric, runs in by_metric.items():
        write = percent if metric.is_share else decimal
        steps = sorted({step for run in runs for step in run.held_out})
        rows = [
            Row(count(step), [estimate_cell(run.held_out.get(step), write) for run in runs]) for step in steps
        ]
        caption = f"Held-out {metric.title} during training, with 95% intervals"
        tables.append(Table(caption, ["after step", *(run.label for run in runs)], rows))
    return tables


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
