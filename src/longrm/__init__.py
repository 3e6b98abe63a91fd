"""Reveals how far a reward model's judgment reaches into a long context, and pushes that boundary out."""

import os

if os.name != "posix":
    raise ImportError("longrm needs a POSIX system (Linux, macOS); on Windows use it within WSL")

from longrm.reward_models import RewardModel, load

__all__ = ["RewardModel", "load"]
__version__ = "0.1.0"
