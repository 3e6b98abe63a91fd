"""An audit as text for the terminal and as one self-contained HTML page; `Audit.as_dict` is its JSON."""

from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from longrm import __version__
from longrm.auditing.audit_tables import AuditTable, clean, facts, headline, odd, parts
from longrm.auditing.result import DataSetAudit
from longrm.reading import visible
from longrm.report.palette import style_sheet
from longrm.text_tables import fact_lines, table_lines, wrapped

_NARROWEST = 40


def as_text(found: DataSetAudit, width: int = 80) -> str:
    """The whole audit as lines for a terminal or a log.

    Args:
        found: The audit.
        width: Characters of a line; a word or a row of numbers that is longer stays whole.
    """
    width = max(width, _NARROWEST)
    lines = [*wrapped(found.path, width), *wrapped(headline(found), width), ""]
    lines += fact_lines(facts(found), width, indent="  ")
    for one in odd(found):
        lines += ["", *wrapped(f"{one.name}: {one.count}", width, "! "), *wrapped(one.what, width, "  ")]
        for example in one.examples:
            lines += wrapped(example, width, "  - ", "    ")
    lines += ["", *wrapped(clean(found), width)] if clean(found) else []
    for part in parts(found):
        lines += [
            "",
            *wrapped(part.title, width),
            *table_lines(part.columns, part.rows, width, indent="  ", bars=part.bars),
        ]
        lines += wrapped(part.note, width, "  ") if part.note else []
    return "\n".join(lines) + "\n"


def as_html(found: DataSetAudit) -> str:
    """The whole audit as one page that holds all it needs and loads nothing. Equal audits give equal bytes."""
    environment = Environment(
        loader=FunctionLoader(lambda name: (files("longrm.auditing") / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (files("longrm.report") / "report.css").read_text(encoding="utf-8")
    page = environment.get_template("page.html.j2").render(
        path=found.path,
        headline=headline(found),
        facts=facts(found),
        odd=odd(found),
        clean=clean(found),
        parts=parts(found),
        settings=found.settings,
        version=__version__,
        style=style_sheet() + style,
    )
    return visible(
        page
    )  # no name in the data turns the direction of a line, or steers a terminal that shows the page
