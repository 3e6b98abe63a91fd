"""An audit as text for the terminal and as one self-contained HTML page; `Audit.as_dict` is its JSON."""

from importlib.resources import files
from textwrap import wrap

from jinja2 import Environment, FunctionLoader, StrictUndefined

from longrm import __version__
from longrm.auditing.result import Audit
from longrm.auditing.tables import Part, clean, facts, headline, odd, parts
from longrm.reading import visible
from longrm.report.palette import style_sheet

_BAR, _LEAST_BAR = 30, 6  # characters
_NARROWEST = 40


def as_text(found: Audit, width: int = 80) -> str:
    """The whole audit as lines for a terminal or a log.

    Args:
        found: The audit.
        width: Characters of a line; a word or a row of numbers that is longer stays whole.
    """
    width = max(width, _NARROWEST)
    lines = [*_wrapped(found.path, width), *_wrapped(headline(found), width), ""]
    told = facts(found)
    heads = max(len(name) for name, _ in told) + 2
    for name, value in told:
        lines += _wrapped(value, width, f"  {name:<{heads}}", " " * (heads + 2))
    for one in odd(found):
        lines += ["", *_wrapped(f"{one.name}: {one.count}", width, "! "), *_wrapped(one.what, width, "  ")]
        for example in one.examples:
            lines += _wrapped(example, width, "  - ", "    ")
    lines += ["", *_wrapped(clean(found), width)] if clean(found) else []
    for part in parts(found):
        lines += ["", *_wrapped(part.title, width), *_table(part, width)]
        lines += _wrapped(part.note, width, "  ") if part.note else []
    return "\n".join(lines) + "\n"


def as_html(found: Audit) -> str:
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


def _wrapped(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """Lines of a text, which is never empty, behind what the first and the other lines begin with."""
    following = " " * len(first) if rest is None else rest
    return wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(part: Part, width: int) -> list[str]:
    """A table in plain text: names to the left, numbers to the right, and bars in the room that is left."""
    lines = [part.columns, *part.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(part.columns))]
    room = min(_BAR, width - sum(widths) - 2 * len(widths) - 2)
    shown = []
    for head, *cells in lines:
        padded = [cell.rjust(size) for cell, size in zip(cells, widths[1:], strict=True)]
        shown.append("  ".join([head.ljust(widths[0]), *padded]))
    bars = [f"  {'█' * round(share * room)}" if room >= _LEAST_BAR else "" for share in part.bars]
    return [
        f"  {line}{bar}".rstrip()
        for line, bar in zip(shown, ["", *(bars or [""] * len(part.rows))], strict=True)
    ]
