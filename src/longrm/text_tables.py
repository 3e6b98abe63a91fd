"""Plain text for a terminal or a log: paragraphs, tables, and lists of facts."""

from collections.abc import Iterable, Sequence
from textwrap import wrap

from rich.cells import cell_len

_LONGEST_BAR, _SHORTEST_BAR = 30, 6  # characters
_NARROWEST_NAMES = 12
_GAP = "  "


def wrapped(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """Wraps a text, but no word that is longer than a line.

    The first line begins with `first`, the others with `rest`, by default as many spaces.
    """
    following = " " * cell_len(first) if rest is None else rest
    return wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table_lines(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int,
    *,
    indent: str = "",
    bars: Sequence[float] = (),
) -> list[str]:
    """A table: names to the left, wrapped if the line is too narrow; numbers to the right.

    Args:
        columns: Heads of the columns, that of the names first.
        rows: A name, and the cells.
        width: Characters of a line.
        indent: The beginning of every line.
        bars: One share from 0 to 1 per row, drawn as a bar if there is room.
    """
    lines = [columns, *rows]
    sizes = [max(cell_len(line[column]) for line in lines) for column in range(1, len(columns))]
    numbers = sum(sizes) + len(_GAP) * len(sizes) + len(indent)
    names = [wrapped(line[0], max(width - numbers, _NARROWEST_NAMES)) or [""] for line in lines]
    widest = max(cell_len(part) for parts in names for part in parts)
    room = min(_LONGEST_BAR, width - widest - numbers - len(_GAP))
    shown = []
    for parts, (_, *cells), share in zip(names, lines, [0.0, *(bars or [0.0] * len(lines[1:]))], strict=True):
        numbers_of_row = [
            " " * (size - cell_len(cell)) + cell for cell, size in zip(cells, sizes, strict=True)
        ]
        bar = ["█" * round(share * room)] if room >= _SHORTEST_BAR else []
        first = parts[0] + " " * (widest - cell_len(parts[0]))
        shown += [_GAP.join([first, *numbers_of_row, *bar]), *parts[1:]]
    return [f"{indent}{line}".rstrip() for line in shown]


def fact_lines(facts: Sequence[tuple[str, str]], width: int, *, indent: str = "") -> list[str]:
    """Names with their texts in a second column; a fact without a name continues the one above it."""
    heads = max(cell_len(name) for name, _ in facts) + len(_GAP)
    lines = []
    for name, value in facts:
        lines += wrapped(value, width, f"{indent}{name}{' ' * (heads - cell_len(name))}") or [indent + name]
    return lines
