"""How long work reports its progress."""

from typing import Protocol


class Progress(Protocol):
    """Called as a piece of work goes on."""

    def __call__(self, label: str, done: int, total: int, note: str = "") -> None:
        """Takes a report.

        Args:
            label: Names the work, and stays the same.
            done: What is done.
            total: What there is to do in the same unit; 0 if unknown.
            note: What else is worth saying now, such as what was spent.
        """


def no_progress(label: str, done: int, total: int, note: str = "") -> None:
    """The progress that shows nothing."""
