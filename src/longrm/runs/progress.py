"""How long-running work reports its progress."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import Any, Protocol


class Progress(Protocol):
    """Called now and then with what is done of a total, in the same unit; a total of 0 is unknown."""

    def __call__(self, label: str, done: int, total: int, note: str = "") -> None:
        """Takes a report; `label` names the work and stays the same, `note` adds for example what was spent."""


def no_progress(label: str, done: int, total: int, note: str = "") -> None:
    """Shows nothing."""


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yields what shows the progress of a call from Python: bars in a notebook or a terminal, elsewhere nothing."""
    from tqdm.auto import tqdm  # here, as the command line has its own

    bars: dict[str, Any] = {}
    # None shows no bar where standard error is a file. Worker processes show none, as their parent does.
    hidden = None if parent_process() is None else True

    def report(label: str, done: int, total: int, note: str = "") -> None:
        bar = bars.get(label)
        if bar is None:
            bar = bars[label] = tqdm(desc=label, total=total or None, initial=done, disable=hidden)
        if note:
            bar.set_postfix_str(note, refresh=False)
        bar.update(done - bar.n)

    try:
        yield report
    finally:
        for bar in bars.values():
            bar.close()
