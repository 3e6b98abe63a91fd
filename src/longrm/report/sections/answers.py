"""How often there was a verdict, and what accuracy is under three readings of a missing one."""

from collections.abc import Sequence

from longrm.evaluation.summaries import CutCounts
from longrm.report import wording
from longrm.report.load import EvaluatedModel
from longrm.report.sections.section import Section
from longrm.report.tables import EstimateColumn, Table, TableCell, TableRow, estimate_table, percent_cell
from longrm.types import Outcome

_READINGS = (
    EstimateColumn("strict", lambda s: s.accuracy.strict, percent_cell),
    EstimateColumn("with chance credit", lambda s: s.accuracy.chance_credit, percent_cell),
    EstimateColumn("answered only", lambda s: s.accuracy.answered, percent_cell),
)


def answers(stages: Sequence[EvaluatedModel]) -> Section | None:
    """Left out where every comparison got its verdict at once and whole."""
    shown = [stage for stage in stages if _troubled(stage)]
    if not shown:
        return None
    readings = estimate_table("Accuracy, with 95% intervals", shown, _READINGS)
    return Section(
        "Missing verdicts",
        "Answers",
        "Strict accuracy counts a comparison without a verdict as wrong. With chance credit it earns what guessing "
        "would. Answered only leaves it out, and so favors a judge that answers what is easy.",
        tables=(*([readings] if readings else []), _rates(shown)),
    )


def _troubled(stage: EvaluatedModel) -> bool:
    counts = stage.summary.counts
    silent = counts.trials.total - counts.trials.outcomes[Outcome.ANSWERED]
    return any((silent, counts.cut.comparisons, counts.retried))


def _rates(stages: Sequence[EvaluatedModel]) -> Table:
    """The share of each outcome that occurred, and what was cut and asked again."""
    counts = [stage.summary.counts for stage in stages]
    columns = [_rate_of(outcome) for outcome in Outcome if any(count.outcomes[outcome] for count in counts)]
    rates = estimate_table("", stages, columns)
    assert rates is not None, "a run has comparisons, and each has an outcome"
    rows = [
        TableRow(
            row.header, (*row.cells, _cut(count.cut), TableCell(wording.tokens(count.retried))), row.style
        )
        for row, count in zip(rates.rows, counts, strict=True)
    ]
    return Table(
        "What the comparisons came to, the contexts that were cut to fit, and the trials that had to be repeated",
        (*rates.columns, "contexts cut", "asked again"),
        tuple(rows),
    )


def _rate_of(outcome: Outcome) -> EstimateColumn:
    return EstimateColumn(outcome.replace("_", " "), lambda s: s.outcome_rates[outcome], percent_cell)


def _cut(cut: CutCounts) -> TableCell:
    return TableCell(wording.tokens(cut.comparisons), f"{cut.tokens:,} tokens" if cut.tokens else "")
