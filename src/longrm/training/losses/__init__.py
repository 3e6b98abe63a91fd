"""Losses as pure functions of tensors: each returns the loss and figures worth logging.

Losses and figures are means over comparisons, in which every comparison weighs the same whatever its number of
responses (`sft`: means over tokens). So a step that is cut into parts has the weighted mean of its parts' values.
"""

from longrm.training.losses.likelihood import dpo, logo, sft, simpo
from longrm.training.losses.ranking import bradley_terry, centering, hardest, mean_inside, plackett_luce

__all__ = [
    "bradley_terry",
    "centering",
    "dpo",
    "hardest",
    "logo",
    "mean_inside",
    "plackett_luce",
    "sft",
    "simpo",
]
