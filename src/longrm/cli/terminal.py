"""Prints results and progress. Control characters are escaped, because texts of models are not trusted."""

import json
import logging
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

import click

from longrm.reading import CONTROL_CHARACTERS, visible
from longrm.runs.freed_memory import keep_freed_memory
from longrm.runs.progress import Progress, no_progress
from longrm.runs.workers import WorkerGroup, world_size
from longrm.text_tables import fact_lines, table_lines, wrapped

_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in CONTROL_CHARACTERS}
_SECONDS_PER_LINE = 10.0


def echo(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Prints a text."""
    click.echo(visible(text) + end, err=err, nl=False)


def print_json(value: Mapping[str, Any]) -> None:
    """Prints one JSON object."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False).translate(_JSON_ESCAPES))


def print_lines(*lines: str) -> None:
    """Prints lines, wrapped at words to the width of the terminal; empty ones are left out."""
    for line in filter(None, lines):
        indent = line[: len(line) - len(line.lstrip())]
        echo("\n".join(wrapped(line.strip(), terminal_width(), indent)))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table: names to the left, numbers to the right."""
    echo("\n".join(table_lines(columns, list(rows), terminal_width(), indent="  ")))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Prints names and their values."""
    echo("\n".join(fact_lines(list(facts), terminal_width())))


def terminal_width() -> int:
    """The width of the terminal in characters; 80 without one."""
    return shutil.get_terminal_size().columns


class MessageHandler(logging.StreamHandler[TextIO]):
    """Prints the package's log messages to standard error."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def format(self, record: logging.LogRecord) -> str:
        """The message alone, and its traceback if it has one."""
        return visible(super().format(record))


def print_next(*words: object, err: bool = False) -> None:
    """Prints the `longrm` command that users run next, except with `longrm --quiet`.

    Args:
        words: The command's words, unquoted; placeholders are in capitals, such as MODEL.
        err: Whether standard output has data, so that the line belongs on standard error.
    """
    if not _is_quiet():
        echo(f"next: {shlex.join(['longrm', *map(str, words)])}", err=err)


def _is_quiet() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get("quiet"))


@contextmanager
def progress() -> Iterator[Progress]:
    """Yields the callable that long work reports to: a bar in a terminal, a line every ten seconds elsewhere.

    With `longrm --quiet` it shows nothing.
    """
    if _is_quiet():
        yield no_progress
    elif sys.stderr.isatty():
        with _progress_bars() as report:
            yield report
    else:
        lines = _ProgressLines()
        yield lines
        lines.close()


@contextmanager
def _progress_bars() -> Iterator[Progress]:
    # rich.progress takes 60 ms to import, which only a terminal needs.
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[note]}", markup=False),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, rich_progress.TaskID] = {}

        def report(label: str, done: int, total: int, note: str = "") -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(visible(label), total=total or None, note="")
            bars.update(tasks[label], completed=done, total=total or None, note=visible(note))

        yield report


class _ProgressLines:
    """Prints a line for each piece of work at its start, at its end and every ten seconds.

    Work that starts again, as the sampling of every training step, has its own rate, and no line at every end.
    """

    def __init__(self) -> None:
        self._started: dict[str, tuple[float, int]] = {}  # time, and what was done before
        self._printed: dict[str, float] = {}
        self._last = ""
        self._repeated: set[str] = set()
        self._pending: dict[str, tuple[int, int, str]] = {}

    def __call__(self, label: str, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        again = label in self._started and done <= self._started[label][1]
        if again or label not in self._started:
            self._started[label] = now, done
        if again:
            self._repeated.add(label)
        self._pending[label] = done, total, note
        # Without a known total, a line at the start would only show a count of one.
        printed = self._printed.setdefault(label, -_SECONDS_PER_LINE if total else now)
        if (done == total and label not in self._repeated) or now - printed >= _SECONDS_PER_LINE:
            self._print(label)

    def close(self) -> None:
        """Prints the last progress of all unfinished work."""
        for label in [*self._pending]:
            self._print(label)

    def _print(self, label: str) -> None:
        done, total, note = self._pending.pop(label)
        started, before = self._started[label]
        self._printed[label] = now = time.monotonic()
        parts = [f"{done}/{total}" if total else f"{done}"]
        if now - started >= 1 and done > before:
            rate = (done - before) / (now - started)
            parts.append(f"{rate:.3g} per second")
            if done < total:
                left = (total - done) / rate
                unit = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min"
                parts.append(f"{unit if left < 6000 else f'{left / 3600:.1f} h'} left")
        text = f"{label}: {', '.join([*parts, *filter(None, [note])])}"
        if text != self._last:  # waiting, for example for the first batch, adds no lines
            echo(text, err=True)
        self._last = text


@contextmanager
def shared_work() -> Iterator[tuple[WorkerGroup, Progress]]:
    """Joins the processes that torchrun started; only the main process shows progress. Models are read, not trained."""
    keep_freed_memory()
    if world_size() > 1:
        from longrm.modeling.process_group import join  # imports torch, which one process may not need

        workers = join()
    else:
        workers = nullcontext(WorkerGroup())  # type: ignore[assignment]  # another context manager of the same type
    with workers as group, progress() as report:
        yield group, report if group.is_main_process else no_progress
