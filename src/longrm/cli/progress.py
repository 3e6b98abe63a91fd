"""Progress of long work on standard error: a bar in a terminal, a line every ten seconds elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from longrm.runs.progress import Progress

_LINE_EVERY_SECONDS = 10.0


@contextmanager
def progress() -> Iterator[Progress]:
    """Yields the callable that long work reports to."""
    if not sys.stderr.isatty():
        yield _Lines().report
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total or None)
            bars.update(tasks[label], completed=done, total=total or None)

        yield report


class _Lines:
    """Says at the start, at the end and every ten seconds how far a piece of work is."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def report(self, label: str, done: int, total: int) -> None:
        now = time.monotonic()
        if label in self._last and done != total and now - self._last[label] < _LINE_EVERY_SECONDS:
            return
        self._last[label] = now
        print(f"{label}: {done}/{total}" if total else f"{label}: {done}", file=sys.stderr, flush=True)
