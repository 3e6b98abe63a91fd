"""The one way to the terminal. What is printed may come from files of others: nothing in it steers the terminal."""

import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import click

from longrm.reading import STEERING, visible

_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in STEERING}


def echo(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Prints a text."""
    click.echo(visible(text) + end, err=err, nl=False)


def print_json(value: Mapping[str, Any]) -> None:
    """Prints a summary as one JSON object."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False).translate(_JSON_ESCAPES))


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines, each broken where words end if the terminal is narrower."""
    from rich.console import Console  # slow to import, and not needed by help and JSON

    console = Console(highlight=False)
    for line in lines:
        console.print(visible(line), markup=False)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    caption: str | None = None,
) -> None:
    """Prints a table: names to the left, numbers to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(Text(visible(column)), justify="right" if index else "left")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    Console().print(table)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Prints names, and what is to be said of each beside it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, told in facts:
        table.add_row(Text(visible(name)), Text(visible(told)))
    Console(highlight=False).print(table)


class MessageHandler(logging.StreamHandler[TextIO]):
    """Prints what the package logs to standard error."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def format(self, record: logging.LogRecord) -> str:
        """The message alone, and a traceback where it has one."""
        return visible(super().format(record))
