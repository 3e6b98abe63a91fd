"""Accuracy by task, by published rules, by votes, and against simple baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from longrm.evaluation.rules import RULES
from longrm.evaluation.summary_schema import PartAnswers
from longrm.reporting.formatting import (
    count,
    percent,
    plural,
    points,
    published,
    token_unit,
)
from longrm.reporting.load import Model, ReportData
from longrm.reporting.tables import Cell, Row, Section, Table, answered_cell, estimate_cell
from longrm.runs.records import Estimate


def tasks(data: ReportData) -> Section | None:
    """Accuracy by task and subtype, and by task and length; None if no run has two tasks or two subtypes."""
    models = data.models
    by_task, by_subtype = _by_part("task", models), _by_part("subtype", models)
    if by_task is None and by_subtype is None:
        return None
    by_length = [table for model in models if by_task and (table := _by_task_and_length(model))]
    shown, *others = [table for table in (by_task, by_subtype) if table]
    return Section("Tasks", tables=[shown], folded=[*others, *by_length])


def _by_part(part: str, models: Sequence[Model]) -> Table | None:
    """A row per task or subtype and a column per model, then the means; None with fewer than two."""
    measured = [getattr(model.summary.metrics, f"by_{part}") for model in models]
    missing = [getattr(model.summary.missing, f"by_{part}") for model in models]
    names = sorted({name for found in measured for name in found})
    if len(names) < 2:
        return None
    rows = []
    for name in names:
        columns = zip(models, measured, missing, strict=True)
        cells = [_cell(model, found.get(name, {}), gaps.get(name)) for model, found, gaps in columns]
        rows.append(Row(name, cells))
    overall = [_cell(m, m.summary.metrics.overall, m.summary.missing.overall) for m in models]
    rows.append(Row("all comparisons (micro)", overall))
    if part == "task":
        means = [estimate_cell(m.summary.metrics.macro.by_task) for m in models]
        rows.append(Row("mean over tasks (macro)", means))
    return Table(f"Accuracy by {part}, with 95% intervals", [part, *(m.label for m in models)], rows)


def _cell(model: Model, measured: Mapping[str, Estimate], missing: PartAnswers | None) -> Cell:
    return answered_cell(measured.get(model.summary.main_metric), missing, n=True)


def _by_task_and_length(model: Model) -> Table | None:
    measured, missing = model.summary.metrics.by_task_and_length, model.summary.missing.by_task_and_length
    lengths = sorted({length for row in measured.values() for length in row}, key=int)
    if len(lengths) < 2:
        return None
    rows = [
        Row(task, [_cell(model, row.get(n, {}), missing.get(task, {}).get(n)) for n in lengths])
        for task, row in measured.items()
    ]
    caption = f"{model.label}: by task and length in {token_unit(model.summary.measured)}"
    return Table(caption, ["task", *(count(int(length)) for length in lengths)], rows)


def baselines(data: ReportData) -> Section | None:
    """The models against rules without a model that judged the same comparisons; None if no rule ran."""
    shown = [model for model in data.models if model.summary.baselines]
    if not shown:
        return None
    reads_context = {
        name: one.reads_context for model in shown for name, one in model.summary.baselines.items()
    }
    rows = []
    for name in sorted(reads_context, key=lambda name: -_rule_accuracy(shown[0], name)):
        cells = []
        for model in shown:
            one = model.summary.baselines.get(name)
            cell = estimate_cell(one.difference if one else None, points)
            cells.append(
                replace(cell, detail=f"{cell.detail}; rule {percent(one.value.value)}") if one else cell
            )
        rows.append(Row(f"over {name}", cells))
    rows.append(Row("beats all", [Cell("yes" if model.summary.beats_baselines else "no") for model in shown]))
    columns = ["rule", *(model.label for model in shown)]
    return Section(
        "Baselines",
        tables=[
            Table("Accuracy minus that of each rule without a model, in percentage points", columns, rows)
        ],
        terms={
            "Baselines": "rules without a model that judge the same comparisons; a model that does not beat one "
            "may do no more than it",
            **{
                f"over {name}": f"paired; {name} reads {'the context, too' if reads else 'only the responses'}"
                for name, reads in reads_context.items()
            },
        },
    )


def _rule_accuracy(model: Model, rule: str) -> float:
    found = model.summary.baselines.get(rule)
    return 0.0 if found is None else found.value.value or 0.0


def votes(data: ReportData) -> Section | None:
    """Accuracy by the number of votes; None if no run voted."""
    curves = [
        (model, {int(k): estimate for k, estimate in model.summary.votes.at.items()})
        for model in data.models
        if model.summary.votes
    ]
    if not curves:
        return None
    counts = sorted({k for _, curve in curves for k in curve})
    rows = [
        Row(model.label, [estimate_cell(curve.get(k)) for k in counts], model.style)
        for model, curve in curves
    ]
    columns = ["model", *(plural(k, "vote") for k in counts)]
    return Section(
        "Votes",
        tables=[Table("Accuracy by votes per order, with 95% intervals", columns, rows)],
        terms={
            "Votes": "accuracy of the first k votes, averaged over which k come first; all values come from one run, "
            "so they differ by less than their intervals suggest"
        },
    )


def rules(data: ReportData) -> Section | None:
    """Scores by the rules of published benchmarks; None if no rule was applied."""
    models = data.models
    names = [name for name in RULES if any(name in model.summary.rules for model in models)]
    if not names:
        return None
    tables = []
    for name in names:
        scored = [(model, model.summary.rules[name]) for model in models if name in model.summary.rules]
        # Parts in the order of the scores: easy comes before normal and hard.
        parts = dict.fromkeys(
            (key, part)
            for key in RULES[name].parts
            for _, score in scored
            for part in score.parts.get(key, ())
        )
        rows = []
        for model, score in scored:
            values = [score.parts.get(key, {}).get(part) for key, part in parts]
            overall = Cell(published(score.overall_percent), score.note or "")
            rows.append(
                Row(model.label, [overall, *(Cell(published(value)) for value in values)], model.style)
            )
        heads = [part for _, part in parts]
        tables.append(Table(RULES[name].title, ["model", "overall", *heads], rows))
    terms = {RULES[name].title: RULES[name].explanation for name in names}
    terms["Published rules"] = "compare these numbers with published ones only, not with others on this page"
    return Section("Published rules", tables=tables, terms=terms)
