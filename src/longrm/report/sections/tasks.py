"""Accuracy by task and subtype, and by task and length."""

from collections.abc import Sequence

from longrm.evaluation.metrics import Metric, main_metric
from longrm.report import wording
from longrm.report.material import Evaluated, metric_at
from longrm.report.sections.section import Section
from longrm.report.tables import Cell, Row, Table, percent_cell


def tasks(stages: Sequence[Evaluated]) -> Section | None:
    """Left out where no run has two tasks or two subtypes."""
    names, subtypes = (_names(stages, part) for part in ("by_task", "by_subtype"))
    if len(names) < 2 and len(subtypes) < 2:
        return None
    tables = [_by_part("Accuracy by task", "task", "by_task", stages)] if len(names) > 1 else []
    kinds = [_by_part("Accuracy by subtype", "subtype", "by_subtype", stages)] if len(subtypes) > 1 else []
    lengths = [table for stage in stages if len(names) > 1 and (table := _by_length(stage))]
    tables, kinds = (tables, kinds) if tables else (kinds, [])
    fold = " and ".join(name for name, found in (("subtype", kinds), ("task and length", lengths)) if found)
    return Section(
        "tasks",
        "Task by task",
        "Tasks",
        "Over all comparisons, tasks count by their size (micro); in the mean over tasks, each counts the same "
        "(macro).",
        tables=tuple(tables),
        folded=(*kinds, *lengths),
        fold=f"By {fold}",
    )


def _names(stages: Sequence[Evaluated], part: str) -> list[str]:
    return sorted({name for stage in stages for name in stage.summary["metrics"][part]})


def _by_part(caption: str, column: str, part: str, stages: Sequence[Evaluated]) -> Table:
    """One row a task and one column a model; beneath, the whole."""
    rows = [_row(name, stages, part, name) for name in _names(stages, part)]
    rows.append(_row("all comparisons (micro)", stages, "overall"))
    if part == "by_task":
        macro = [metric_at(stage.summary, "metrics", "macro", "by_task") for stage in stages]
        rows.append(Row("mean over tasks (macro)", tuple(map(percent_cell, macro))))
    return Table(f"{caption}, with 95% intervals", (column, *(s.label for s in stages)), tuple(rows))


def _row(header: str, stages: Sequence[Evaluated], *keys: str) -> Row:
    found = [metric_at(stage.summary, "metrics", *keys, main_metric(stage.summary)) for stage in stages]
    return Row(header, tuple(map(_cell, found)))


def _cell(metric: Metric | None) -> Cell:
    return percent_cell(metric, n=metric is not None)


def _by_length(stage: Evaluated) -> Table | None:
    held, name = stage.summary["metrics"]["by_task_and_length"], main_metric(stage.summary)
    lengths = sorted({length for row in held.values() for length in row}, key=int)
    if len(lengths) < 2:
        return None
    rows = [
        Row(task, tuple(_cell(metric_at(row, length, name)) for length in lengths))
        for task, row in held.items()
    ]
    columns = ("task", *(wording.tokens(int(length)) for length in lengths))
    return Table(f"{stage.label}: by task and length in tokens", columns, tuple(rows))
