"""Reveals how far a reward model's judgment reaches into a long context, and pushes that boundary out."""

import os
from typing import TYPE_CHECKING

if os.name != "posix":
    raise ImportError("longrm needs a POSIX system (Linux, macOS); on Windows use it within WSL")

if TYPE_CHECKING:
    from longrm.evaluation.items import read_run
    from longrm.reward_models import RewardModel, load, reward_function

__all__ = ["RewardModel", "load", "read_run", "reward_function"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Imports what the package offers when it is asked for: the command line begins before that takes its time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = "longrm.evaluation.items" if name == "read_run" else "longrm.reward_models"
    return getattr(import_module(home), name)
