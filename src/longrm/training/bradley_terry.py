"""The objective of discriminative reward models: gold-ordered responses, scored by a linear head."""

import math
from collections.abc import Sequence
from typing import Any, Literal, assert_never

from pydantic import Field, model_validator
from torch import Tensor

from longrm.config import Config
from longrm.errors import DataError
from longrm.modeling.heads import scores
from longrm.training import losses
from longrm.training.batches import Example, MicroBatch
from longrm.training.settings import Training


class RankingLoss(Config):
    """How scores and gold ranks become a loss.

    The margins and probabilities that rows of the data carry are read as they are; the whole ranking has none.

    Attributes:
        kind: "bradley_terry" is the mean over gold-ordered pairs; "hardest" takes the best response against the
            highest scored worse one; "mean_inside" against the mean score of the worse ones, as the release of
            LongRM does; "plackett_luce" takes the whole ranking.
        label_smoothing: The share of labels that are taken to be wrong, where a row has no probability of its own.
        ties: Pairs of tied responses count as half won and half lost, which pulls their scores together.
        centering: Weight of (2 x mean score)^2 of a comparison, which keeps scores around zero (Eisenstein et al.
            2023).
    """

    kind: Literal["bradley_terry", "hardest", "mean_inside", "plackett_luce"] = "bradley_terry"
    label_smoothing: float = Field(0.0, ge=0.0, lt=0.5)
    ties: bool = False
    centering: float = Field(0.0, ge=0.0)

    @model_validator(mode="after")
    def _fits(self) -> "RankingLoss":
        if self.ties and self.kind != "bradley_terry":
            raise ValueError(
                f'ties are pairs, and kind = "{self.kind}" takes none: set kind = "bradley_terry"'
            )
        if self.label_smoothing and self.kind == "plackett_luce":
            raise ValueError('label_smoothing is of pairs, and kind = "plackett_luce" ranks: leave it out')
        return self


class BradleyTerryTraining(Training):
    """Settings of `longrm train bradley-terry`.

    Attributes:
        objective: Which recipe this is.
        loss: How scores and gold ranks become a loss.
    """

    trains = "scorer"
    reads = "comparison"

    objective: Literal["bradley_terry"] = "bradley_terry"
    loss: RankingLoss = RankingLoss()


class BradleyTerry:
    """Scores over shared prefixes, ordered by gold ranks; a mean over comparisons.

    Args:
        settings: How scores and gold ranks become a loss.
        graded: Whether examples have margins or probabilities.
    """

    def __init__(self, settings: RankingLoss, *, graded: bool = False) -> None:
        plain = settings == RankingLoss(kind=settings.kind) and not graded
        # Only so is the loss of equal scores that of a coin, and a model that learns soon below it.
        self.chance = math.log(2.0) if plain and settings.kind != "plackett_luce" else None
        self._settings = settings

    def select(self, example: Example) -> Example:
        """All responses are compared.

        Raises:
            DataError: The example has a margin or a probability, which the loss cannot read.
        """
        ranking = self._settings.kind == "plackett_luce"
        if ranking and (example.margin is not None or example.probability is not None):
            raise DataError(
                f"'{example.id}' has a margin or a probability, and loss.kind = \"plackett_luce\" reads ranks only; "
                'take kind = "bradley_terry", or leave the column out'
            )
        return example

    def weight(self, example: Example) -> float:
        """Every comparison counts the same."""
        return 1.0

    def loss(self, model: Any, micro: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        """The loss of a micro-batch."""
        values = scores(model, micro.packed.to(model.device))
        ranks = [example.ranks for example in micro.examples]
        loss, figures = self._ranking(values, ranks, micro.examples)
        return loss + self._settings.centering * losses.centering(values, ranks), figures

    def _ranking(
        self, values: Tensor, ranks: Sequence[Sequence[int]], examples: Sequence[Example]
    ) -> tuple[Tensor, dict[str, float]]:
        own = self._settings
        margins = [example.margin or 0.0 for example in examples]
        sure = [
            1.0 - own.label_smoothing if example.probability is None else example.probability
            for example in examples
        ]
        match own.kind:
            case "plackett_luce":
                return losses.plackett_luce(values, ranks)
            case "bradley_terry":
                return losses.bradley_terry(values, ranks, margins=margins, probabilities=sure, ties=own.ties)
            case "hardest":
                return losses.hardest(values, ranks, margins=margins, probabilities=sure)
            case "mean_inside":
                return losses.mean_inside(values, ranks, margins=margins, probabilities=sure)
            case unknown:
                assert_never(unknown)
