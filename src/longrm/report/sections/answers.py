"""How often there was a verdict, and what accuracy is under three readings of a missing one."""

from collections.abc import Sequence

from longrm.report import wording
from longrm.report.material import Evaluated
from longrm.report.sections.section import Section
from longrm.report.tables import Cell, Column, Row, Table, metric_table, percent_cell
from longrm.types import Outcome

_READINGS = (
    Column("strict", ("accuracy", "strict"), percent_cell),
    Column("with chance credit", ("accuracy", "chance_credit"), percent_cell),
    Column("answered only", ("accuracy", "answered"), percent_cell),
)


def answers(stages: Sequence[Evaluated]) -> Section | None:
    """Left out where every comparison got its verdict at once and whole."""
    shown = [stage for stage in stages if _troubled(stage)]
    if not shown:
        return None
    readings = metric_table("Accuracy, with 95% intervals", shown, _READINGS)
    return Section(
        "answers",
        "Missing verdicts",
        "Answers",
        "Strict accuracy counts a comparison without a verdict as wrong. With chance credit it earns what guessing "
        "would. Answered only leaves it out, and so favors a judge that answers what is easy.",
        tables=(*([readings] if readings else []), _rates(shown)),
    )


def _troubled(stage: Evaluated) -> bool:
    counts = stage.summary["counts"]
    silent = counts["trials"]["total"] - counts["trials"]["outcomes"][Outcome.ANSWERED.value]
    return any((silent, counts["cut"]["comparisons"], counts["retried"]))


def _rates(stages: Sequence[Evaluated]) -> Table:
    """The share of each outcome that occurred, and what was cut and asked again."""
    counts = [stage.summary["counts"] for stage in stages]
    seen = [o.value for o in Outcome if any(c["outcomes"][o.value] for c in counts)]
    columns = [Column(name.replace("_", " "), ("outcome_rates", name), percent_cell) for name in seen]
    rates = metric_table("", stages, columns)
    assert rates is not None, "a run has comparisons, and each has an outcome"
    rows = [
        Row(row.header, (*row.cells, _cut(count["cut"]), Cell(wording.tokens(count["retried"]))), row.style)
        for row, count in zip(rates.rows, counts, strict=True)
    ]
    return Table(
        "What the comparisons came to, the contexts that were cut to fit, and the askings that had to be repeated",
        (*rates.columns, "contexts cut", "asked again"),
        tuple(rows),
    )


def _cut(cut: dict[str, int]) -> Cell:
    return Cell(wording.tokens(cut["comparisons"]), f"{cut['tokens']:,} tokens" if cut["tokens"] else "")
