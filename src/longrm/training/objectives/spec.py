"""What an objective is to the rest of training. Nothing here imports torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from longrm.training.training_settings import TrainingSettings

if TYPE_CHECKING:
    from torch import Tensor

    from longrm.training.batches import Example, MicroBatch

ModelKind = Literal["scorer", "language_model"]
"""A model with a scalar head, or a language model."""

ReferenceLogprobs = Mapping[str, Sequence[float]]
"""By example id, the summed log-probability that the reference model gives to each response."""


class Objective(Protocol):
    """What training needs to know of what it minimizes.

    Attributes:
        chance: The loss of a model that knows nothing, where there is such a loss.
    """

    chance: float | None

    def select(self, example: "Example") -> "Example":
        """The example with the responses that the loss reads."""

    def weight(self, example: "Example") -> float:
        """What the example counts in the mean over a step."""

    def loss(self, model: Any, micro: "MicroBatch") -> "tuple[Tensor, dict[str, float]]":
        """The weighted mean over the examples of a micro-batch, and figures worth logging."""


@dataclass(frozen=True, slots=True)
class ObjectiveSpec:
    """An entry of `OBJECTIVES`.

    Attributes:
        settings: The class of its settings.
        build: Makes the objective of settings, of the counts of the data, and of the log-probabilities of the
            reference model where the loss needs them.
        trains: The kind of model that is trained.
        reads: The kind of rows that are read.
        title: What it does, in one line, for `longrm train --help`.
        help: What `longrm train OBJECTIVE --help` says.
        card_text: What was trained, for the model card.
    """

    settings: type[TrainingSettings]
    build: Callable[[Any, Mapping[str, int], ReferenceLogprobs | None], Objective]
    trains: ModelKind
    reads: Literal["comparison", "demonstration"]
    title: str
    help: str
    card_text: str
