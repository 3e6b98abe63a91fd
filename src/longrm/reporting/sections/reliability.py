"""What puts an accuracy in doubt: missing verdicts, failures of judges, biases, and problems of the data."""

from longrm.evaluation.summary_schema import AuditSummary, EvaluationSummary
from longrm.reading import short_name
from longrm.reporting.formatting import count, decimal, plural, points
from longrm.reporting.load import ReportData
from longrm.reporting.tables import Cell, Column, Row, Section, Table, estimate_cell, estimate_table
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
    Column("padding wins", lambda s: s.failures.padding_gained),
)
_ANSWER_TERMS = {
    "strict": "a comparison without a verdict counts as wrong",
    "with chance credit": "a comparison without a verdict earns what guessing would",
    "answered only": "comparisons without a verdict are excluded, which favors a judge that answers the easy ones",
    "contexts cut": "contexts that were cut to fit",
    "retried": "trials that took several attempts",
    "format missed": "no verdict in the text",
    "context ignored": "the same verdict without the context, or with another one; a judge that then guesses keeps its "
    "verdict on half of the pairs",
    "explanation contradicts": "it argues for another response than the verdict",
    "padding wins": "the worst response becomes the best when a sentence without content is repeated after it",
    "criteria against": "of the criteria that separate the responses, those by which another one is best",
}


def answers(data: ReportData) -> Section | None:
    """Missing verdicts under three readings, and the failures of judges that write.

    None if every comparison got a verdict at the first attempt, uncut, and no failure was measured.
    """
    incomplete, failing = [], []
    for model in data.models:
        counts, found = model.summary.counts, model.summary.failures
        unanswered = counts.trials.total - counts.trials.outcomes[Outcome.ANSWERED]
        if unanswered or counts.cut.comparisons or counts.retried:
            incomplete.append(model)
        measured = (
            found.context_ignored,
            found.contradicted,
            found.criteria_against,
            found.padding_gained,
        )
        if any(measured) or (found.format_missed and found.format_missed.value):
            failing.append(model)
    tables = []
    if incomplete:
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
        caption = "Share of trials with each failure, with 95% intervals"
        if failures := estimate_table(caption, failing, _FAILURES):
            tables.append(failures)
    return Section("Answers", tables=tables, terms=_ANSWER_TERMS) if tables else None


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
)
_AGREEMENT = (
    Column("agrees with gold", lambda s: s.gold_agreement.raw if s.gold_agreement else None),
    Column("Cohen's kappa", lambda s: s.gold_agreement.kappa if s.gold_agreement else None, decimal),
    Column("agrees with its repeats", lambda s: s.repeats.raw if s.repeats else None),
    Column("Krippendorff's alpha", lambda s: s.repeats.alpha if s.repeats else None, decimal),
)
_FEW_TIES = 0.01  # from which ties are shown
_TIES = (Column("tied", lambda s: s.ties),)

_BIAS_TERMS = {
    "same verdict in every order": "100% without position bias",
    "prefers the first shown": "share of decided trials of pairs; 50% without position bias",
    "of all orders together": "cancels position bias",
    "difference, points": "chosen is longer minus chosen is shorter: above 0 if the judge favors long responses, or if "
    "such pairs are easier",
}


def biases(data: ReportData) -> Section | None:
    """Effects of the presented order and of the responses' length on verdicts; None if nothing was measured."""
    models = data.models
    order = estimate_table("Order of presentation, with 95% intervals", models, _ORDER)
    positions = [model.summary.position.by_place for model in models if model.summary.position]
    sizes = sorted({int(size) for by_place in positions for size in by_place if int(size) > 2})
    places = [_place_column(size, place) for size in sizes for place in range(size)]
    by_place = estimate_table("Share of trials that prefer the response at each place", models, places)
    length = estimate_table("Accuracy by length of the chosen response", models, _LENGTH)
    # Scores of scalar models hardly ever tie, and a column of zeros would say nothing.
    tied = [model for model in models if (model.summary.ties.value or 0) >= _FEW_TIES]
    ties = estimate_table("Share of gold pairs with equal scores", tied, _TIES)
    tables = [table for table in (order, by_place, length, ties) if table]
    return Section("Biases", tables=tables, terms=_BIAS_TERMS) if tables else None


_AGREEMENT_TERMS = {
    "agrees with gold": "share of pairs with gold's verdict, ties included",
    "Cohen's kappa": "the same beyond chance: 0 for guesses, 1 for full agreement",
    "agrees with its repeats": "share of pairs of trials in the same order with equal verdicts",
    "Krippendorff's alpha": "the same beyond chance",
}


def agreement(data: ReportData) -> Section | None:
    """Agreement with gold and of repeats, raw and beyond chance; None without pairs and repeats."""
    table = estimate_table("Equal verdicts, with 95% intervals", data.models, _AGREEMENT)
    return Section("Agreement", tables=[table], terms=_AGREEMENT_TERMS) if table else None


def _place_column(size: int, place: int) -> Column:
    def find(summary: EvaluationSummary) -> Estimate | None:
        return summary.position.by_place.get(str(size), {}).get(str(place)) if summary.position else None

    return Column(f"place {place + 1} of {size}", find)


def audit(data: ReportData) -> Section | None:
    """What the audit of the benchmark found; None if no benchmark was audited."""
    audits: list[tuple[str, AuditSummary]] = []
    for model in data.models:
        found = model.summary.audit
        if found is not None and (model.summary.bench, found) not in audits:
            audits.append((model.summary.bench, found))  # once for all models that judged the same data
    if not audits:
        return None
    tables = []
    for bench, found in audits:
        rows = [
            Row(one.what, [Cell(count(one.count)), Cell("; ".join(one.examples[:5]))])
            for one in found.findings.values()
            if one.count
        ]
        clean = [kind.replace("_", " ") for kind, one in found.findings.items() if not one.count]
        if clean:
            rows.append(Row("checked, none found", [Cell("0"), Cell("; ".join(clean))]))
        caption = f"{short_name(bench)}: {plural(found.comparisons, 'comparison')} audited"
        tables.append(Table(caption, ["finding", "count", "examples"], rows))
    return Section("Data", tables=tables)
