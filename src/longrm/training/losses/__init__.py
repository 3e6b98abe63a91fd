"""The losses of training, by the name that `loss.kind` gives them. Nothing here imports torch.

A loss is a pure function of tensors and an entry of `LOSSES`, which carries all that others need to know of it.
Losses and figures are means over comparisons, in which every comparison weighs the same whatever its number of
responses (`sft`: means over tokens). So a step that is cut into parts has the weighted mean of its parts' values.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator, model_validator

from longrm.config import Config
from longrm.errors import ConfigError, nearest

if TYPE_CHECKING:  # settings are read, and wrong ones refused, without torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossSpec:
    """An entry of `LOSSES`.

    Attributes:
        objective: The objective whose `loss.kind` may name the loss.
        function: Where the function is, as "module:name". It returns the loss and figures worth logging.
        title: What the loss is called where it is reported.
        card_text: What it compares, for the model card.
        options: The settings of `[loss]` that the loss takes, with its defaults.
        chance: Its value for a model that knows nothing, where there is one.
        needs_reference: Whether it compares with the model that training starts from.
        reads_pairs: Whether it is of pairs, so that the margins and probabilities of rows apply.
    """

    objective: str
    function: str
    title: str
    card_text: str
    options: Mapping[str, float]
    chance: float | None = None
    needs_reference: bool = False
    reads_pairs: bool = True

    def load(self) -> "Callable[..., tuple[Tensor, dict[str, float]]]":
        """Imports the function, and torch with it."""
        module, _, name = self.function.partition(":")
        function: Callable[..., tuple[Tensor, dict[str, float]]] = getattr(import_module(module), name)
        return function


_LIKELIHOOD, _RANKING = (f"longrm.training.losses.{name}_losses" for name in ("likelihood", "ranking"))
_MARGIN = {"beta": 2.5, "gamma": 0.5, "nll": 0.05, "label_smoothing": 0.0}

LOSSES = {
    "logo": LossSpec(
        "preference",
        f"{_LIKELIHOOD}:logo",
        "LOGO",
        "the chosen response against the mean over the rejected ones, inside one sigmoid (LongRM, stage 2; Tang et al. "
        "2024)",
        _MARGIN,
    ),
    "simpo": LossSpec(
        "preference",
        f"{_LIKELIHOOD}:simpo",
        "SimPO",
        "the chosen response against each rejected one (Meng et al. 2024)",
        _MARGIN,
    ),
    "dpo": LossSpec(
        "preference",
        f"{_LIKELIHOOD}:dpo",
        "DPO",
        "the chosen response against each rejected one, relative to the model that training starts from (Rafailov et "
        "al. 2023)",
        {"beta": 0.1, "nll": 0.0, "label_smoothing": 0.0},
        chance=math.log(2.0),
        needs_reference=True,
    ),
    "bradley_terry": LossSpec(
        "bradley_terry",
        f"{_RANKING}:bradley_terry",
        "Bradley-Terry",
        "every gold-ordered pair (Bradley and Terry 1952)",
        {"label_smoothing": 0.0, "ties": False},
        chance=math.log(2.0),
    ),
    "hardest": LossSpec(
        "bradley_terry",
        f"{_RANKING}:hardest",
        "hardest rival",
        "the best response against the highest scored worse one",
        {"label_smoothing": 0.0},
        chance=math.log(2.0),
    ),
    "mean_inside": LossSpec(
        "bradley_terry",
        f"{_RANKING}:mean_inside",
        "mean inside",
        "the best response against the mean score of the worse ones, as the release of LongRM does",
        {"label_smoothing": 0.0},
        chance=math.log(2.0),
    ),
    "plackett_luce": LossSpec(
        "bradley_terry",
        f"{_RANKING}:plackett_luce",
        "Plackett-Luce",
        "the likelihood of the whole ranking (Plackett 1975; Luce 1959)",
        {},
        reads_pairs=False,
    ),
}
"""Every loss among which an objective lets its settings choose."""


class LossSettings(Config):
    """The group `[loss]` of an objective: which loss, and its options.

    Attributes:
        kind: Which loss.
    """

    # A setting that no loss has among its options is the objective's own; an option of `None` is the loss's default.
    objective: ClassVar[str]

    kind: str

    @classmethod
    def kinds(cls) -> dict[str, LossSpec]:
        """The losses that `kind` may name."""
        return {name: spec for name, spec in LOSSES.items() if spec.objective == cls.objective}

    @property
    def spec(self) -> LossSpec:
        """The entry of the loss."""
        return LOSSES[self.kind]

    def options(self) -> dict[str, Any]:
        """The options of the loss, defaults filled in."""
        given = {name: getattr(self, name) for name in self.spec.options}
        return {name: self.spec.options[name] if value is None else value for name, value in given.items()}

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in cls.kinds():
            near = nearest(kind, cls.kinds())
            raise ConfigError(f'got {kind!r}; objective = "{cls.objective}" has no such loss; {near}')
        return kind

    @model_validator(mode="after")
    def _takes_its_options(self) -> "LossSettings":
        missing = {*self.spec.options} - type(self).model_fields.keys()
        assert not missing, (
            f"the loss {self.kind} has options that are no settings of {type(self).__name__}: {missing}"
        )
        of_others = {name for spec in self.kinds().values() for name in spec.options} - {*self.spec.options}
        for name in sorted(of_others):
            if getattr(self, name) != type(self).model_fields[name].default:
                takes = ", ".join(self.spec.options) or "no options"
                raise ConfigError(
                    f'loss.{name} is no option of loss.kind = "{self.kind}", which takes {takes}: leave it out'
                )
        return self
