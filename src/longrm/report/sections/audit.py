"""What the audit of the benchmark found."""

from collections.abc import Sequence

from longrm.evaluation.summaries import AuditSummary
from longrm.reading import short_name
from longrm.report.formatting import count, listed, plural
from longrm.report.load import Model
from longrm.report.tables import Cell, Row, Section, Table


def audit(models: Sequence[Model]) -> Section | None:
    """Left out where no benchmark was audited."""
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
                rows.append(
                    Row(finding.what, [Cell(count(finding.count)), Cell("; ".join(finding.examples[:5]))])
                )
        caption = f"{short_name(bench)}: {plural(found.comparisons, 'comparison')} audited"
        if rows:
            tables.append(Table(caption, ["finding", "count", "examples"], rows))
    clean = sorted({kind for _, found in audits for kind in found.findings} - odd)
    checked = listed([kind.replace("_", " ") for kind in clean])
    return Section(
        "Audit of the data",
        "Data",
        f"Checked, without findings: {checked}." if checked else "",
        tables=tables,
    )
