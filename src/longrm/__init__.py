"""Reveals how far a reward model's judgment reaches into a long context, and pushes that boundary out."""

import os
import sys
from typing import TYPE_CHECKING

if os.name != "posix":
    raise ImportError("longrm needs a POSIX system (Linux, macOS); on Windows use it within WSL")

if TYPE_CHECKING:
    from longrm import data as data
    from longrm import types as types
    from longrm.attribution.api import attribute
    from longrm.auditing import audit
    from longrm.evaluation.compare import compare
    from longrm.evaluation.evaluate import evaluate
    from longrm.evaluation.probe import probe
    from longrm.evaluation.read_run import read_run
    from longrm.modeling.sharing import share_prefixes, shared_tokens, unshare
    from longrm.reporting import report
    from longrm.reward_models import RewardModel, load, reward_function
    from longrm.reward_models.verdict_rewards import verdict_reward
    from longrm.scoring.scored_file import score
    from longrm.training.api import train

__all__ = [
    "RewardModel",
    "attribute",
    "audit",
    "compare",
    "evaluate",
    "load",
    "probe",
    "read_run",
    "report",
    "reward_function",
    "score",
    "share_prefixes",
    "shared_tokens",
    "train",
    "unshare",
    "verdict_reward",
]
__version__ = "0.3.0"

_NAMES = {
    "RewardModel": "longrm.reward_models",
    "attribute": "longrm.attribution.api",
    "audit": "longrm.auditing",
    "compare": "longrm.evaluation.compare",
    "evaluate": "longrm.evaluation.evaluate",
    "load": "longrm.reward_models",
    "probe": "longrm.evaluation.probe",
    "read_run": "longrm.evaluation.read_run",
    "report": "longrm.reporting",
    "reward_function": "longrm.reward_models",
    "score": "longrm.scoring.scored_file",
    "share_prefixes": "longrm.modeling.sharing",
    "shared_tokens": "longrm.modeling.sharing",
    "train": "longrm.training.api",
    "unshare": "longrm.modeling.sharing",
    "verdict_reward": "longrm.reward_models.verdict_rewards",
}

_MODULES = ("data", "types")  # whose names are used as longrm.data.read


def __getattr__(name: str) -> object:
    """Imports a public name at its first use, because importing all of them would delay the command line."""
    from importlib import import_module

    from longrm.plugins import load_plugins

    if name in _NAMES:
        load_plugins()
        if "ipykernel" in sys.modules:
            import_module("longrm.reporting")  # so that a notebook shows the curve of a run
        return getattr(import_module(_NAMES[name]), name)
    if name in _MODULES:
        return import_module(f"longrm.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
