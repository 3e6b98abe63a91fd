"""How often there was a verdict, and what accuracy is under three readings of a missing one."""

from collections.abc import Sequence
from dataclasses import replace

from longrm.evaluation import wording
from longrm.report.load import EvaluatedModel
from longrm.report.sections.section import Section
from longrm.report.tables import EstimateColumn, Table, TableCell, estimate_table
from longrm.types import Outcome

_READINGS = (
    EstimateColumn("strict", lambda s: s.accuracy.strict),
    EstimateColumn("with chance credit", lambda s: s.accuracy.chance_credit),
    EstimateColumn("answered only", lambda s: s.accuracy.answered),
)


def answers(stages: Sequence[EvaluatedModel]) -> Section | None:
    """Left out where every comparison got its verdict at once and whole."""
    shown = []
    for stage in stages:
        counts = stage.summary.counts
        silent = counts.trials.total - counts.trials.outcomes[Outcome.ANSWERED]
        if silent or counts.cut.comparisons or counts.retried:
            shown.append(stage)
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


def _rates(stages: Sequence[EvaluatedModel]) -> Table:
    """The share of each outcome that occurred, and what was cut and asked again."""
    counts = [stage.summary.counts for stage in stages]
    columns = [_rate_of(outcome) for outcome in Outcome if any(count.outcomes[outcome] for count in counts)]
    rates = estimate_table("", stages, columns)
    assert rates is not None, "a run has comparisons, and each has an outcome"
    rows = []
    for row, count in zip(rates.rows, counts, strict=True):
        tokens = f"{count.cut.tokens:,} tokens" if count.cut.tokens else ""
        cut = TableCell(wording.tokens(count.cut.comparisons), tokens)
        rows.append(replace(row, cells=(*row.cells, cut, TableCell(wording.tokens(count.retried)))))
    return Table(
        "What the comparisons came to, the contexts that were cut to fit, and the trials that had to be repeated",
        (*rates.columns, "contexts cut", "asked again"),
        tuple(rows),
    )


def _rate_of(outcome: Outcome) -> EstimateColumn:
    return EstimateColumn(outcome.replace("_", " "), lambda s: s.outcome_rates[outcome])
