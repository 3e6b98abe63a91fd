"""Every error a user can cause. Each message says what was wrong, where, and what to do."""

from collections.abc import Collection
from difflib import get_close_matches


class LongRMError(Exception):
    """The root: the command line prints its message as one line and exits with status 1."""


class ConfigError(LongRMError, ValueError):
    """An unknown key, a wrong unit, or an impossible combination of settings."""


class DataError(LongRMError, ValueError):
    """A file or row of data that cannot be read."""


class ModelError(LongRMError, ValueError):
    """A model or tokenizer that cannot be loaded, or whose architecture is not supported."""


class RunError(LongRMError):
    """A run that cannot go on: its folder cannot be used, its budget is spent, its server is lost."""


class TrainingError(LongRMError):
    """Training that stopped because it could not succeed: a NaN, a stalled loss."""


def nearest(name: str, known: Collection[str]) -> str:
    """What a message about an unknown name ends with: the known name next to it, or all of them."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known) or 'none'}"


def first_line(error: BaseException) -> str:
    """The first line of what an error of a library says, or its name where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
