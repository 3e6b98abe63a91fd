"""Missing verdicts under three readings, and the failure patterns of judges that write."""

from collections.abc import Sequence
from dataclasses import replace

from longrm.report.formatting import count
from longrm.report.load import Model
from longrm.report.tables import Cell, Column, Section, estimate_table
from longrm.types import Outcome

_READINGS: tuple[Column, ...] = (
    ("strict", lambda s: s.accuracy.strict),
    ("with chance credit", lambda s: s.accuracy.chance_credit),
    ("answered only", lambda s: s.accuracy.answered),
)
FAILURES: tuple[Column, ...] = (
    ("format missed", lambda s: s.failures.format_missed),
    ("context ignored", lambda s: s.failures.context_ignored),
    ("explanation contradicts", lambda s: s.failures.contradicted),
    ("criteria against", lambda s: s.failures.criteria_against),
)


def answers(models: Sequence[Model]) -> Section | None:
    """Left out where every comparison got a verdict at the first attempt, uncut, and no failure was measured."""
    incomplete, failing = [], []
    for model in models:
        counts, found = model.summary.counts, model.summary.failures
        if (
            counts.trials.total > counts.trials.outcomes[Outcome.ANSWERED]
            or counts.cut.comparisons
            or counts.retried
        ):
            incomplete.append(model)
        measured = (found.context_ignored, found.contradicted, found.criteria_against)
        if any(measured) or (found.format_missed and found.format_missed.value):
            failing.append(model)
    tables = []
    if incomplete:
        if readings := estimate_table("Accuracy, with 95% intervals", incomplete, _READINGS):
            tables.append(readings)
        occurred = [o for o in Outcome if any(model.summary.counts.outcomes[o] for model in incomplete)]
        columns: list[Column] = [(o.replace("_", " "), lambda s, o=o: s.outcome_rates[o]) for o in occurred]  # type: ignore[misc]  # o is bound now
        rates = estimate_table("", incomplete, columns)
        assert rates is not None, "every comparison has an outcome"
        rows = []
        for row, model in zip(rates.rows, incomplete, strict=True):
            counts = model.summary.counts
            tokens = f"{counts.cut.tokens:,} tokens" if counts.cut.tokens else ""
            cells = [*row.cells, Cell(count(counts.cut.comparisons), tokens), Cell(count(counts.retried))]
            rows.append(replace(row, cells=cells))
        tables.append(
            replace(
                rates,
                caption="Outcomes, contexts that were cut to fit, and trials that took several attempts",
                columns=[*rates.columns, "contexts cut", "retried"],
                rows=rows,
            )
        )
    if failures := estimate_table("Share of trials with each failure, with 95% intervals", failing, FAILURES):
        tables.append(failures)
    if not tables:
        return None
    meaning = (
        "Strict accuracy counts a comparison without a verdict as wrong; with chance credit it earns what guessing "
        "would; answered only leaves it out, which favors a judge that answers the easy ones. "
        if incomplete
        else ""
    )
    meaning += (
        "Format missed: no verdict in the text. Context ignored: the same verdict without the context, or with another "
        "one; a judge that then guesses keeps its verdict on half of the pairs. Explanation contradicts: it argues for "
        "another response than the verdict. Criteria against: of the criteria that separate the responses, those by "
        "which another one is best."
        if failing
        else ""
    )
    return Section("Missing verdicts and failures", "Answers", meaning.strip(), tables=tables)
