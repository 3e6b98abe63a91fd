"""Accuracy by task and subtype, and by task and length."""

from collections.abc import Mapping, Sequence
from typing import Literal

from longrm.evaluation.summaries import PartAnswers
from longrm.report.formatting import count, defined, token_unit
from longrm.report.load import Model
from longrm.report.tables import Cell, Row, Section, Table, answered_cell, percent_cell
from longrm.runs.records import Estimate

_Part = Literal["by_task", "by_subtype"]


def tasks(models: Sequence[Model]) -> Section | None:
    """Left out where no run has two tasks or two subtypes."""
    by_task = _by_part("Accuracy by task", "task", "by_task", models)
    by_subtype = _by_part("Accuracy by subtype", "subtype", "by_subtype", models)
    if by_task is None and by_subtype is None:
        return None
    by_length = [table for model in models if by_task and (table := _by_length(model))]
    folded = [*([by_subtype] if by_task and by_subtype else []), *by_length]
    names = (["subtype"] if by_task and by_subtype else []) + (["task and length"] if by_length else [])
    return Section(
        "By task",
        "Tasks",
        "Over all comparisons, tasks count by size (micro); in the mean over tasks, each counts the same (macro).",
        tables=[table for table in (by_task or by_subtype,) if table],
        folded=folded,
        fold=f"By {' and '.join(names)}",
    )


def _by_part(caption: str, column: str, part: _Part, models: Sequence[Model]) -> Table | None:
    """A row per task or subtype and a column per model, then the means; None with fewer than two."""

    def measured(model: Model) -> Mapping[str, Mapping[str, Estimate]]:
        return model.summary.metrics.by_task if part == "by_task" else model.summary.metrics.by_subtype

    def missing(model: Model) -> Mapping[str, PartAnswers]:
        return model.summary.missing.by_task if part == "by_task" else model.summary.missing.by_subtype

    names = sorted({name for model in models for name in measured(model)})
    if len(names) < 2:
        return None
    rows = [
        Row(name, [_cell(m, measured(m).get(name, {}), missing(m).get(name)) for m in models])
        for name in names
    ]
    overall = [_cell(m, m.summary.metrics.overall, m.summary.missing.overall) for m in models]
    rows.append(Row("all comparisons (micro)", overall))
    if part == "by_task":
        means = [percent_cell(defined(m.summary.metrics.macro.by_task)) for m in models]
        rows.append(Row("mean over tasks (macro)", means))
    return Table(f"{caption}, with 95% intervals", [column, *(m.label for m in models)], rows)


def _cell(model: Model, measured: Mapping[str, Estimate], missing: PartAnswers | None) -> Cell:
    return answered_cell(measured.get(model.summary.main_metric), missing, n=True)


def _by_length(model: Model) -> Table | None:
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
