"""Differences between runs, what trainings did, and all outcomes."""

from collections.abc import Sequence

from longrm.evaluation.compare import LEFT_OUT
from longrm.evaluation.metrics import EvaluationMetric, metric_of
from longrm.reporting import charts
from longrm.reporting.formatting import MISSING, count, decimal, percent, seconds
from longrm.reporting.load import Contrast, ReportData, Training
from longrm.reporting.tables import Cell, Passage, Row, Section, Table, compared_cells, estimate_cell
from longrm.types import Outcome


def differences(data: ReportData) -> Section | None:
    """Paired differences by length: the first contrast of each group is shown, the others are folded."""
    shown: list[Table] = []
    folded: list[Table] = []
    passages = []
    for group in data.groups:
        for number, contrast in enumerate(group.contrasts):
            (folded if number else shown).append(_contrast(contrast))
            names = {"first": f"'{contrast.first.label}'", "second": f"'{contrast.second.label}'"}
            left_out = contrast.found.left_out
            notes = [f"{n:,} left out: {LEFT_OUT[why].format(**names)}" for why, n in left_out.items() if n]
            if notes := [*notes, *(f"setting {line}" for line in contrast.found.differs_in)]:
                title = f"What else differs between {contrast.first.label} and {contrast.second.label}"
                passages.append(Passage(title, [("", "\n".join(notes))]))
    if not shown:
        return None
    terms = {
        "difference": "paired: on the comparisons that both runs judged",
        "p": "of the sign-flip test over groups, adjusted for the number of lengths (Holm)",
    }
    return Section("Differences", tables=shown, terms=terms, folded=folded, passages=passages)


def _contrast(contrast: Contrast) -> Table:
    """The difference over all comparisons and at each length."""
    found, first, second = contrast.found, contrast.first.label, contrast.second.label
    metric = metric_of(found.metric)
    rows = []
    for name, part in (
        {"all": found.overall} | {f"{int(n):,}": part for n, part in found.by_length.items()}
    ).items():
        one, other, gap, *rest = compared_cells(part, metric)
        rows.append(Row(name, [gap, one, other, *rest]))
    unit = ", difference in points" if metric.is_share else ""
    caption = f"{metric.title.capitalize()} of {second} minus {first}{unit}, with 95% intervals"
    return Table(caption, ["length", "difference", first, second, "p", "n"], rows)


def training(data: ReportData) -> Section | None:
    """Curves of the training runs, what each did, and how fast."""
    figures = []
    for number, runs in enumerate(group.trained for group in data.groups if group.trained):
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
    for model in data.all_models:
        counts = model.summary.counts
        numbers = [counts.comparisons, counts.groups, counts.trials.total]
        numbers += [counts.outcomes[outcome] for outcome in Outcome]
        numbers += [counts.without_gold, counts.skipped_rows or 0]
        rows.append(Row(model.label, [Cell(count(number)) for number in numbers], model.style))
    names = [outcome.value.replace("_", " ") for outcome in Outcome]
    columns = ["evaluation", "comparisons", "contexts", "trials", *names, "no gold order", "rows skipped"]
    return Section("Outcomes", tables=[Table("Outcome of every comparison", columns, rows)]) if rows else None
