"""What puts an accuracy in doubt: missing verdicts, failures of judges, biases, and problems of the data."""

from collections.abc import Sequence

from longrm.evaluation.summaries import AuditSummary, EvaluationSummary
from longrm.reading import short_name
from longrm.report.formatting import count, listed, plural, points
from longrm.report.load import Model
from longrm.report.tables import Cell, Column, Row, Section, Table, estimate_cell, estimate_table
from longrm.runs.records import Estimate
from longrm.types import Outcome

_READINGS = (
    Column("strict", lambda s: s.accuracy.strict),
    Column("with chance credit", lambda s: s.accuracy.chance_credit),
    Column("answered only", lambda s: s.accuracy.answered),
)
_FAILURES = (
    Column("format missed", lambda s: s.failures.format_missed),
    Column("context ignored", lambda s: s.failures.context_ignored),
    Column("explanation contradicts", lambda s: s.failures.contradicted),
    Column("criteria against", lambda s: s.failures.criteria_against),
)


def answers(models: Sequence[Model]) -> Section | None:
    """Missing verdicts under three readings, and the failures of judges that write.

    None if every comparison got a verdict at the first attempt, uncut, and no failure was measured.
    """
    incomplete, failing = [], []
    for model in models:
        counts, found = model.summary.counts, model.summary.failures
        unanswered = counts.trials.total - counts.trials.outcomes[Outcome.ANSWERED]
        if unanswered or counts.cut.comparisons or counts.retried:
            incomplete.append(model)
        measured = (found.context_ignored, found.contradicted, found.criteria_against)
        if any(measured) or (found.format_missed and found.format_missed.value):
            failing.append(model)
    tables, meaning = [], []
    if incomplete:
        meaning.append(
            "Strict accuracy counts a comparison without a verdict as wrong; with chance credit it earns what guessing "
            "would; answered only leaves it out, which favors a judge that answers the easy ones."
        )
        if readings := estimate_table("Accuracy, with 95% intervals", incomplete, _READINGS):
            tables.append(readings)
        occurred = [o for o in Outcome if any(model.summary.counts.outcomes[o] for model in incomplete)]
        rows = []
        for model in incomplete:
            counts = model.summary.counts
            cells = [estimate_cell(model.summary.outcome_rates[outcome]) for outcome in occurred]
            tokens = f"{counts.cut.tokens:,} tokens" if counts.cut.tokens else ""
            cells += [Cell(count(counts.cut.comparisons), tokens), Cell(count(counts.retried))]
            rows.append(Row(model.label, cells, model.style))
        caption = "Outcomes, contexts that were cut to fit, and trials that took several attempts"
        outcomes = [outcome.replace("_", " ") for outcome in occurred]
        tables.append(Table(caption, ["model", *outcomes, "contexts cut", "retried"], rows))
    if failing:
        meaning.append(
            "Format missed: no verdict in the text. Context ignored: the same verdict without the context, or with "
            "another one; a judge that then guesses keeps its verdict on half of the pairs. Explanation contradicts: "
            "it argues for another response than the verdict. Criteria against: of the criteria that separate the "
            "responses, those by which another one is best."
        )
        caption = "Share of trials with each failure, with 95% intervals"
        if failures := estimate_table(caption, failing, _FAILURES):
            tables.append(failures)
    if not tables:
        return None
    return Section("Missing verdicts and failures", "Answers", " ".join(meaning), tables=tables)


_ORDER = (
    Column("same verdict in every order", lambda s: s.position.consistency if s.position else None),
    Column("prefers the first shown", lambda s: s.position.first_wins if s.position else None),
    Column("accuracy of one trial", lambda s: s.position.single_order if s.position else None),
    Column("of all orders together", lambda s: s.position.order_cancelled if s.position else None),
)
_LENGTH = (
    Column("chosen is longer", lambda s: s.length_bias.better_longer if s.length_bias else None),
    Column("chosen is shorter", lambda s: s.length_bias.better_shorter if s.length_bias else None),
    Column("difference, points", lambda s: s.length_bias.difference if s.length_bias else None, points),
    Column("tied", lambda s: s.ties),
)


def biases(models: Sequence[Model]) -> Section | None:
    """Effects of the presented order and of the responses' length on verdicts; None if nothing was measured."""
    order = estimate_table("Order of presentation, with 95% intervals", models, _ORDER)
    positions = [model.summary.position.by_place for model in models if model.summary.position]
    sizes = sorted({int(size) for by_place in positions for size in by_place if int(size) > 2})
    places = [_place_column(size, place) for size in sizes for place in range(size)]
    by_place = estimate_table("Share of trials that prefer the response at each place", models, places)
    length = estimate_table(
        "Accuracy by length of the chosen response, and ties",
        [model for model in models if model.summary.length_bias or model.summary.ties.value],
        _LENGTH,
    )
    tables = [table for table in (order, by_place, length) if table]
    if not tables:
        return None
    meaning = []
    if order:
        meaning.append(
            "Without position bias a judge gives the same verdict in both orders, and prefers the first response shown "
            "in half of the pairs. Accuracy over all orders together cancels the bias."
        )
    if length and _LENGTH[0].head in length.columns:
        meaning.append(
            "A judge that favors long responses is right more often where the chosen response is the longer one; such "
            "pairs may also be easier."
        )
    return Section("Order and length of the responses", "Biases", " ".join(meaning), tables=tables)


def _place_column(size: int, place: int) -> Column:
    def find(summary: EvaluationSummary) -> Estimate | None:
        return summary.position.by_place.get(str(size), {}).get(str(place)) if summary.position else None

    return Column(f"place {place + 1} of {size}", find)


def audit(models: Sequence[Model]) -> Section | None:
    """What the audit of the benchmark found; None if no benchmark was audited."""
    audits: list[tuple[str, AuditSummary]] = []
    for model in models:
        found = model.summary.audit
        if found is not None and (model.summary.bench, found) not in audits:
            audits.append((model.summary.bench, found))  # once for all models that judged the same data
    if not audits:
        return None
    tables, odd = [], set()
    for bench, found in audits:
        rows = []
        for kind, finding in found.findings.items():
            if finding.count:
                odd.add(kind)
                examples = Cell("; ".join(finding.examples[:5]))
                rows.append(Row(finding.what, [Cell(count(finding.count)), examples]))
        caption = f"{short_name(bench)}: {plural(found.comparisons, 'comparison')} audited"
        if rows:
            tables.append(Table(caption, ["finding", "count", "examples"], rows))
    clean = sorted({kind for _, found in audits for kind in found.findings} - odd)
    checked = listed([kind.replace("_", " ") for kind in clean])
    meaning = f"Checked, without findings: {checked}." if checked else ""
    return Section("Audit of the data", "Data", meaning, tables=tables)
