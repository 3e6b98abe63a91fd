"""The objectives of training, by the name that a recipe's `objective` gives them. Nothing here imports torch.

An objective is one file, with its settings and what it minimizes, and one entry of `OBJECTIVES`.
"""

from collections.abc import Mapping
from typing import Any

from longrm.errors import ConfigError
from longrm.training.objectives.bradley_terry import BRADLEY_TERRY
from longrm.training.objectives.preference import PREFERENCE
from longrm.training.objectives.sft import SFT
from longrm.training.objectives.spec import ObjectiveSpec

OBJECTIVES: dict[str, ObjectiveSpec] = {
    "sft": SFT,
    "preference": PREFERENCE,
    "bradley_terry": BRADLEY_TERRY,
}
"""Every objective."""


def objective_named_in(settings: Mapping[str, Any], where: object) -> ObjectiveSpec:
    """The objective that plain settings name.

    Raises:
        ConfigError: They name none, or one that is not known.
    """
    name = settings.get("objective")
    if not isinstance(name, str) or name not in OBJECTIVES:
        known = " or ".join(f'objective = "{name}"' for name in OBJECTIVES)
        raise ConfigError(f"{where} does not name its objective: begin the file with {known}")
    return OBJECTIVES[name]
