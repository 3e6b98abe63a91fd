"""Accuracy by task and subtype, and by task and length."""

from collections.abc import Mapping, Sequence
from typing import Literal

from longrm.evaluation import wording
from longrm.evaluation.summaries import PartAnswers
from longrm.report.load import EvaluatedModel, defined
from longrm.report.sections.section import Section
from longrm.report.tables import Table, TableCell, TableRow, answered_cell, percent_cell
from longrm.runs.records import Estimate

_Part = Literal["by_task", "by_subtype"]


def tasks(stages: Sequence[EvaluatedModel]) -> Section | None:
    """Left out where no run has two tasks or two subtypes."""
    names, subtypes = _names(stages, "by_task"), _names(stages, "by_subtype")
    if len(names) < 2 and len(subtypes) < 2:
        return None
    tables = [_by_part("Accuracy by task", "task", "by_task", stages)] if len(names) > 1 else []
    kinds = [_by_part("Accuracy by subtype", "subtype", "by_subtype", stages)] if len(subtypes) > 1 else []
    lengths = [table for stage in stages if len(names) > 1 and (table := _by_length(stage))]
    tables, kinds = (tables, kinds) if tables else (kinds, [])
    fold = " and ".join(name for name, found in (("subtype", kinds), ("task and length", lengths)) if found)
    return Section(
        "Task by task",
        "Tasks",
        "Over all comparisons, tasks count by their size (micro); in the mean over tasks, each counts the same "
        "(macro).",
        tables=tuple(tables),
        folded=(*kinds, *lengths),
        fold=f"By {fold}",
    )


def _parts(stage: EvaluatedModel, part: _Part) -> dict[str, dict[str, Estimate]]:
    metrics = stage.summary.metrics
    return metrics.by_task if part == "by_task" else metrics.by_subtype


def _names(stages: Sequence[EvaluatedModel], part: _Part) -> list[str]:
    return sorted({name for stage in stages for name in _parts(stage, part)})


def _missing(stage: EvaluatedModel, part: _Part) -> Mapping[str, PartAnswers]:
    missing = stage.summary.missing
    return missing.by_task if part == "by_task" else missing.by_subtype


def _by_part(caption: str, column: str, part: _Part, stages: Sequence[EvaluatedModel]) -> Table:
    """One row a task and one column a model; beneath, the whole."""
    rows = [
        TableRow(
            name,
            tuple(_cell(s, _parts(s, part).get(name, {}), _missing(s, part).get(name)) for s in stages),
        )
        for name in _names(stages, part)
    ]
    every = tuple(_cell(s, s.summary.metrics.overall, s.summary.missing.overall) for s in stages)
    rows.append(TableRow("all comparisons (micro)", every))
    if part == "by_task":
        macro = [defined(stage.summary.metrics.macro.by_task) for stage in stages]
        rows.append(TableRow("mean over tasks (macro)", tuple(map(percent_cell, macro))))
    return Table(f"{caption}, with 95% intervals", (column, *(s.label for s in stages)), tuple(rows))


def _cell(stage: EvaluatedModel, measured: Mapping[str, Estimate], missing: PartAnswers | None) -> TableCell:
    return answered_cell(measured.get(stage.summary.main_metric), missing, n=True)


def _by_length(stage: EvaluatedModel) -> Table | None:
    held, missing = stage.summary.metrics.by_task_and_length, stage.summary.missing.by_task_and_length
    lengths = sorted({length for row in held.values() for length in row}, key=int)
    if len(lengths) < 2:
        return None
    rows = [
        TableRow(
            task,
            tuple(_cell(stage, row.get(length, {}), missing.get(task, {}).get(length)) for length in lengths),
        )
        for task, row in held.items()
    ]
    columns = ("task", *(wording.tokens(int(length)) for length in lengths))
    return Table(
        f"{stage.label}: by task and length in {wording.token_unit(stage.summary.measured)}",
        columns,
        tuple(rows),
    )
