"""An audit as text for the terminal and as one self-contained HTML page; `Audit.as_dict` is its JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from longrm import __version__
from longrm.auditing.result import FINDINGS, Audit, Bias, Lengths
from longrm.report.palette import style_sheet
from longrm.report.wording import plural, tokens

_SHOWN = 12  # kinds of a count; the rest is summed up, and stands in the JSON
_BAR = 30  # characters
_CLEAN = ("unreadable_rows",)  # told even where it is 0


@dataclass(frozen=True, slots=True)
class Part:
    """One table.

    Attributes:
        title: What it shows.
        note: What must be known to read it; may be empty.
        columns: Heads of the columns, one more than each row has cells behind its head.
        rows: A head, and the cells.
        bars: One share from 0 to 1 a row, drawn as a bar; empty where there are none.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bars: tuple[float, ...] = ()


def headline(found: Audit) -> str:
    """What was read, in one sentence."""
    kinds = ", ".join(plural(count, kind) for kind, count in found.kinds.items())
    odd = [kind for kind, finding in found.findings.items() if finding.count]
    told = f"{plural(len(odd), 'kind')} of findings" if odd else "nothing odd found"
    return f"{kinds} in {plural(found.groups, 'group')}, format '{found.format}': {told}"


def parts(found: Audit) -> tuple[Part, ...]:
    """All tables of an audit, those without a row left out."""
    every = [
        _findings(found),
        *(_lengths(name, measured) for name, measured in found.lengths.items()),
        *_buckets(found),
        _depths(found),
        _biases(found),
        *(_count(f"Rows by {name}", counts) for name, counts in found.counts.items()),
        _count("What is to be learned", found.labels, "score or metric", keep_order=True),
    ]
    return tuple(part for part in every if part.rows)


def as_text(found: Audit) -> str:
    """The whole audit as lines of at most about 100 characters, for a terminal or a log."""
    lines = [f"{found.path}", headline(found)]
    for part in parts(found):
        lines += ["", part.title, *_table(part)]
        if part.note:
            lines.append(f"  {part.note}")
    clean = _clean(found)
    return "\n".join([*lines, *(["", clean] if clean else [])]) + "\n"


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
    return environment.get_template("page.html.j2").render(
        path=found.path,
        headline=headline(found),
        parts=parts(found),
        clean=_clean(found),
        settings=found.settings,
        version=__version__,
        style=style_sheet() + style,
    )


def _findings(found: Audit) -> Part:
    rows = [
        (FINDINGS[kind], tokens(finding.count), "; ".join(finding.examples[:3]))
        for kind, finding in found.findings.items()
        if finding.count or kind in _CLEAN
    ]
    return Part("What was found", "", ("finding", "count", "the first of them"), tuple(rows))


def _clean(found: Audit) -> str:
    names = [
        kind.replace("_", " ")
        for kind, finding in found.findings.items()
        if not finding.count and kind not in _CLEAN
    ]
    return f"Looked for and not found: {', '.join(names)}." if names else ""


def _lengths(name: str, measured: Mapping[str, Lengths]) -> Part:
    shares = ("0", "0.05", "0.25", "0.5", "0.75", "0.95", "1")
    rows = [
        (
            part,
            tokens(lengths.texts),
            tokens(lengths.total),
            *(tokens(lengths.quantiles[share]) for share in shares),
        )
        for part, lengths in measured.items()
    ]
    heads = ("", "texts", "tokens", "least", "5%", "25%", "median", "75%", "95%", "most")
    note = "Of the bare text: a chat template adds to it."
    return Part(f"Lengths in tokens, measured by {name}", note, heads, tuple(rows))


def _buckets(found: Audit) -> Iterator[Part]:
    for name, measured in found.lengths.items():
        buckets = measured["prompts"].buckets
        most = max(buckets.values(), default=1)
        rows = [(f"up to {tokens(size)}", tokens(count)) for size, count in buckets.items()]
        bars = tuple(count / most for count in buckets.values())
        yield Part(f"Prompts by length in tokens ({name})", "", ("tokens", "rows"), tuple(rows), bars)


def _depths(found: Audit) -> Part:
    depths = found.depths
    if not depths.known:
        return Part("", "", (), ())
    most = max(depths.tenths)
    rows = [
        (f"{place / 10:.1f} to {(place + 1) / 10:.1f}", tokens(count))
        for place, count in enumerate(depths.tenths)
    ]
    even = ""
    if depths.even is not None:
        chance = "less than 0.001" if depths.even < 0.001 else f"{depths.even:.3f}"
        even = f" Depths drawn evenly spread as unevenly with a probability of {chance}."
    known = f"{plural(depths.known, 'piece')} known, mean {depths.mean:.2f}."
    note = f"0 is the start and 1 the end of the context; {known}"
    bars = tuple(count / most for count in depths.tenths)
    return Part("Evidence by depth", note + even, ("depth", "pieces"), tuple(rows), bars)


def _biases(found: Audit) -> Part:
    told = (
        ("the best response is listed first", found.first),
        ("the better response is the longer one", found.longer),
    )
    rows = [(name, *_cells(bias)) for name, bias in told if bias.value is not None]
    return Part(
        "What should not give the better response away",
        "95% intervals (bootstrap over groups); a share that excludes chance helps a judge that reads nothing.",
        ("", "share", "95% interval", "chance", "n"),
        tuple(rows),
    )


def _cells(bias: Bias) -> tuple[str, ...]:
    assert bias.value is not None, "nothing was measured"
    assert bias.chance is not None, "what was measured has a chance level"
    interval = "" if bias.low is None or bias.high is None else f"{bias.low:.2f} to {bias.high:.2f}"
    return f"{bias.value:.2f}", interval, f"{bias.chance:.2f}", tokens(bias.n)


def _count(title: str, counts: Mapping[str, int], head: str = "", *, keep_order: bool = False) -> Part:
    ordered = list(counts.items()) if keep_order else sorted(counts.items(), key=lambda item: -item[1])
    shown = ordered if len(ordered) <= _SHOWN else ordered[: _SHOWN - 1]
    rows = [(name, tokens(count)) for name, count in shown]
    if len(shown) < len(ordered):
        rest = sum(count for _, count in ordered[len(shown) :])
        rows.append((f"{len(ordered) - len(shown)} others", tokens(rest)))
    most = max(counts.values(), default=1)
    bars = tuple(count / most for _, count in shown) + (0.0,) * (len(rows) - len(shown))
    return Part(title, "", (head, "rows"), tuple(rows), bars)


def _table(part: Part) -> list[str]:
    """A table in plain text: numbers to the right, the last column of words as it is."""
    words = part.title == "What was found"
    bars = [f"  {'█' * round(share * _BAR)}" for share in part.bars] or [""] * len(part.rows)
    lines: list[Sequence[str]] = [part.columns, *part.rows]
    if words:
        return [line for row in part.rows for line in _finding_lines(row)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(part.columns))]
    shown = []
    for head, *cells in lines:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        shown.append("  ".join([head.ljust(widths[0]), *padded]))
    return [f"  {line}{bar}".rstrip() for line, bar in zip(shown, ["", *bars], strict=True)]


def _finding_lines(row: Sequence[str]) -> list[str]:
    what, count, examples = row
    return [f"  {count:>7}  {what}", *([f"           {examples}"] if examples else [])]
