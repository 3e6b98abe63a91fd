"""How long-running work reports its progress."""

from typing import Protocol


class Progress(Protocol):
    """Called now and then with what is done of a total, in the same unit; a total of 0 is unknown."""

    def __call__(self, label: str, done: int, total: int, note: str = "") -> None:
        """Takes a report; `label` names the work and stays the same, `note` adds for example what was spent."""


def no_progress(label: str, done: int, total: int, note: str = "") -> None:
    """Shows nothing."""
