"""How long work says how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with a label that stays the same, what is done, and what there is to do in the same unit; 0 if unknown."""


def silent(label: str, done: int, total: int) -> None:
    """The progress that says nothing."""
