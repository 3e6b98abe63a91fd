"""Everything that is printed. It may come from files of others: nothing in it steers the terminal."""

import json
import logging
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import click

from longrm.reading import CONTROL_CHARACTERS, visible
from longrm.text_tables import fact_lines, table_lines, wrapped

_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in CONTROL_CHARACTERS}


def echo(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Prints a text."""
    click.echo(visible(text) + end, err=err, nl=False)


def print_json(value: Mapping[str, Any]) -> None:
    """Prints a summary as one JSON object."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False).translate(_JSON_ESCAPES))


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines, each broken where words end if the terminal is narrower."""
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        echo("\n".join(wrapped(visible(line.strip()), _width(), indent)))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    caption: str | None = None,
) -> None:
    """Prints a table: names to the left, numbers to the right."""
    shown = [[visible(cell) for cell in row] for row in rows]
    print_lines(filter(None, [title]))
    echo("\n".join(table_lines([visible(column) for column in columns], shown, _width(), indent="  ")))
    print_lines(filter(None, [caption]))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Prints names, and their values beside them."""
    echo("\n".join(fact_lines([(visible(name), visible(value)) for name, value in facts], _width())))


def _width() -> int:
    return shutil.get_terminal_size().columns


class MessageHandler(logging.StreamHandler[TextIO]):
    """Prints what the package logs to standard error."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def format(self, record: logging.LogRecord) -> str:
        """The message alone, and a traceback where it has one."""
        return visible(super().format(record))
