"""Asking models, and stopping where one could not be asked."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from longrm.clients import Completion, Request
from longrm.errors import RunError
from longrm.runs.records import Trial
from longrm.synthesis.pipeline import Asked
from longrm.types import Outcome


async def ask_all(asked: Asked, groups: Sequence[Sequence[Request]]) -> list[list[Completion]]:
    """Asks all at once, and hands the answers back in their groups.

    Raises:
        RunError: One could not be asked; see `check_asked`.
    """
    flat = [request for group in groups for request in group]
    answered = await asked.ask(flat) if flat else []
    check_asked(asked, answered)
    answers = iter(answered)
    return [[next(answers) for _ in group] for group in groups]


class Named(Protocol):
    """Whatever is asked.

    Attributes:
        name: How messages call it.
    """

    name: str


def check_asked(asked: Named, answers: Iterable[Completion | Trial]) -> None:
    """Stops the run where a model could not be asked: else a repeated run would never ask again.

    Raises:
        RunError: An answer's outcome is `ERROR`. What was answered is in the cache.
    """
    failed = next((answer for answer in answers if answer.outcome is Outcome.ERROR), None)
    if failed is not None:
        raise RunError(f"{asked.name} could not be asked ({failed.detail}); run the same command again")
