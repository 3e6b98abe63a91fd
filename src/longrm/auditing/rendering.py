"""An audit as text for the terminal and as one self-contained HTML page; `Audit.as_dict` is its JSON."""

from longrm.auditing.audit_tables import facts, headline, not_found, shown_findings, tables
from longrm.auditing.result import DataSetAudit
from longrm.reading import visible
from longrm.report.html_page import html_page
from longrm.text_tables import fact_lines, table_lines, wrapped

_NARROWEST = 40


def as_text(audit: DataSetAudit, width: int = 80) -> str:
    """The whole audit as lines for a terminal or a log; a word or a row of numbers that is wider stays whole."""
    width = max(width, _NARROWEST)
    lines = [*wrapped(audit.path, width), *wrapped(headline(audit), width), ""]
    lines += fact_lines(facts(audit), width, indent="  ")
    for one in shown_findings(audit):
        lines += ["", *wrapped(f"{one.name}: {one.count}", width, "! "), *wrapped(one.what, width, "  ")]
        for example in one.examples:
            lines += wrapped(example, width, "  - ", "    ")
    lines += ["", *wrapped(not_found(audit), width)] if not_found(audit) else []
    for table in tables(audit):
        lines += [
            "",
            *wrapped(table.title, width),
            *table_lines(table.columns, table.rows, width, indent="  ", bars=table.bars),
        ]
        lines += wrapped(table.note, width, "  ") if table.note else []
    return "\n".join(lines) + "\n"


def as_html(audit: DataSetAudit) -> str:
    """The whole audit as one page that holds all it needs and loads nothing. Equal audits give equal bytes."""
    page = html_page(
        "auditing/page.html.j2",
        command="longrm audit",
        title=f"Audit of {audit.path}",
        heading=audit.path,
        headline=headline(audit),
        facts=facts(audit),
        findings=shown_findings(audit),
        not_found=not_found(audit),
        tables=tables(audit),
        settings=audit.settings,
    )
    return visible(
        page
    )  # no name in the data turns the direction of a line, or steers a terminal that shows the page
