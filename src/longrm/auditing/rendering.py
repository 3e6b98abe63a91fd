"""An audit as text for the terminal and as a self-contained HTML page, from the same tables."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from longrm.auditing.data_set_audit import DataSetAudit
from longrm.auditing.rows import NOT_READ
from longrm.reading import visible
from longrm.reporting.formatting import count as tokens
from longrm.reporting.formatting import decimal, few_note, html_page, interval, plural
from longrm.text_tables import fact_lines, table_lines, wrapped

_MAX_ROWS = 21  # of a count; the rest is summed up, and listed in the JSON
_MAX_EXAMPLES = 3
_QUANTILES = {
    "least": "0",
    "5%": "0.05",
    "25%": "0.25",
    "median": "0.5",
    "75%": "0.75",
    "95%": "0.95",
    "most": "1",
}


@dataclass(frozen=True, slots=True)
class AuditTable:
    """A table; its first column has the names of the rows. `bars` are shares from 0 to 1, one per row, or empty."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    bars: tuple[float, ...] = ()


def as_text(audit: DataSetAudit, width: int = 80) -> str:
    """The audit as lines for a terminal or a log; a word or a row of numbers that is wider is not broken."""
    width = max(width, 40)
    lines = [*wrapped(audit.path, width), *wrapped(headline(audit), width), ""]
    lines += fact_lines(facts(audit), width, indent="  ")
    for kind, finding in audit.findings.items():
        if finding.count:
            lines += ["", *wrapped(f"{_name(kind)}: {tokens(finding.count)}", width, "! ")]
            lines += wrapped(finding.what, width, "  ")
            for example in finding.examples[:_MAX_EXAMPLES]:
                lines += wrapped(example, width, "  - ", "    ")
    lines += ["", *wrapped(not_found(audit), width)] if not_found(audit) else []
    for table in tables(audit):
        lines += ["", *wrapped(table.title, width)]
        lines += table_lines(table.columns, table.rows, width, indent="  ", bars=table.bars)
        lines += wrapped(table.note, width, "  ") if table.note else []
    return "\n".join(lines) + "\n"


def as_html(audit: DataSetAudit) -> str:
    """The audit as one page that loads nothing. Equal audits give equal bytes."""
    page = html_page(
        "auditing/page.html.j2",
        command="longrm audit",
        title=f"Audit of {audit.path}",
        heading=audit.path,
        headline=headline(audit),
        facts=facts(audit),
        findings={_name(kind): finding for kind, finding in audit.findings.items() if finding.count},
        examples=_MAX_EXAMPLES,
        not_found=not_found(audit),
        tables=tables(audit),
        settings=audit.settings,
    )
    # A name in the data must not reverse the direction of a line, or control a terminal that shows the page.
    return visible(page)


def headline(audit: DataSetAudit) -> str:
    """What was read and whether anything was found, in one sentence."""
    kinds = ", ".join(plural(count, kind) for kind, count in audit.kinds.items())
    found = sum(1 for finding in audit.findings.values() if finding.count)
    findings = f"{plural(found, 'kind')} of findings" if found else "no findings"
    return f"{kinds} about {plural(audit.groups, 'text')}: {findings}"


def facts(audit: DataSetAudit) -> list[tuple[str, str]]:
    """Names and values: the format, and what all rows share."""
    lines = [("format", audit.format)]
    lines += [(name, next(iter(counts))) for name, counts in audit.counts.items() if len(counts) == 1]
    return lines


def not_found(audit: DataSetAudit) -> str:
    """What was looked for and not found, in one sentence; empty where everything was found."""
    names = [_name(kind) for kind, finding in audit.findings.items() if not finding.count]
    return f"Looked for and not found: {', '.join(names)}." if names else ""


def tables(audit: DataSetAudit) -> list[AuditTable]:
    """All tables of an audit that have rows."""
    found = []
    for name, parts in audit.lengths.items():
        rows = [
            ("texts", *(tokens(part.texts) for part in parts.values())),
            ("tokens", *(tokens(part.total) for part in parts.values())),
        ]
        for head, share in _QUANTILES.items():
            rows.append((head, *(tokens(part.quantiles[share]) for part in parts.values())))
        note = "Without the chat template."
        found.append(AuditTable(f"Lengths in tokens ({name})", ("", *parts), tuple(rows), note))
    for name, parts in audit.lengths.items():
        buckets = {f"up to {tokens(size)}": count for size, count in parts["prompts"].buckets.items()}
        found.append(_count_table(f"Prompts by length ({name})", ("tokens", "rows"), buckets))

    biases = [
        (name, decimal(bias.value), interval(bias, decimal), decimal(bias.chance), tokens(bias.n))
        for name, bias in (("listed first", audit.first), ("the longer one", audit.longer))
        if bias.value is not None
    ]
    note = (
        "95% intervals (bootstrap over texts). If chance is outside, a judge can gain from this without reading. "
        "Length is in characters; equal lengths count half."
    )
    heads = ("", "share", "95% interval", "chance", "n")
    found.append(AuditTable("The better response is …", heads, tuple(biases), note))
    places = {str(place): count for place, count in audit.places.items()}
    found.append(_count_table("Place of the best response in the list", ("place", "rows"), places))

    depths = audit.depths
    if depths.known:
        tenths = {f"{at / 10:.1f} to {(at + 1) / 10:.1f}": count for at, count in enumerate(depths.tenths)}
        note = (
            "0 is the start and 1 the end of the context; rows with the same context count once. "
            f"{plural(depths.known, 'piece')} known, mean {depths.mean:.2f}."
        )
        if depths.even is not None:
            p = "p < 0.001" if depths.even < 0.001 else f"p = {depths.even:.3f}"
            note += f" Chi-squared test against uniform depths: {p}."
        found.append(_count_table("Evidence by depth", ("depth", "pieces"), tenths, note))

    for name, some in audit.counts.items():
        if len(some) > 1:
            found.append(_count_table(f"Rows by {name}", (name, "rows"), some))
    if [*audit.kinds] == ["document"]:
        found.append(_count_table("Rows by metric of the gold answer", ("metric", "rows"), audit.labels))
    elif "trajectory" in audit.kinds:
        found.append(_count_table("Trajectories by labels and outcome", ("labels", "rows"), audit.labels))
    elif [*audit.labels] != [NOT_READ]:
        found.append(_count_table("Scores of the target judgments", ("score", "rows"), audit.labels))

    shown = [table for table in found if table.rows]
    for place, table in enumerate(shown):
        if mark := few_note(cell for row in table.rows for cell in row):
            shown[place] = replace(table, note=f"{table.note} {mark}".strip())
    return shown


def _name(kind: str) -> str:
    return kind.replace("_", " ")


def _count_table(
    title: str, columns: tuple[str, str], counts: Mapping[str, int], note: str = ""
) -> AuditTable:
    """A table of counts with bars; its last row sums up what is beyond `_MAX_ROWS`."""
    names, most = list(counts), max(counts.values(), default=1)
    shown = names if len(names) <= _MAX_ROWS else names[: _MAX_ROWS - 1]
    rows = [(tokens(int(name)) if name.isdecimal() else name, tokens(counts[name])) for name in shown]
    bars = [counts[name] / most for name in shown]
    if len(shown) < len(names):
        rest = sum(counts[name] for name in names[len(shown) :])
        rows.append((f"{len(names) - len(shown)} others", tokens(rest)))
        bars.append(0.0)
    return AuditTable(title, columns, tuple(rows), note, tuple(bars))
