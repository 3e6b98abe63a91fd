"""The objective of discriminative reward models: gold-ordered responses, scored by a linear head."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from longrm.errors import DataError
from longrm.training.losses import LossSettings, LossSpec
from longrm.training.objectives.spec import ObjectiveSpec
from longrm.training.training_settings import TrainingSettings

if TYPE_CHECKING:
    from torch import Tensor

    from longrm.training.batches import Example, MicroBatch


class RankingLossSettings(LossSettings):
    """How scores and gold ranks become a loss.

    The margins and probabilities that rows of the data carry are read as they are; the whole ranking has none.

    Attributes:
        kind: Which loss.
        label_smoothing: The share of labels that are taken to be wrong, where a row has no probability of its own.
        ties: Pairs of tied responses count as half won and half lost, which pulls their scores together.
        centering: Weight of (2 x mean score)^2 of a comparison, which keeps scores around zero (Eisenstein et al.
            2023).
    """

    objective = "bradley_terry"

    kind: str = "bradley_terry"
    label_smoothing: float = Field(0.0, ge=0.0, lt=0.5)
    ties: bool = False
    centering: float = Field(0.0, ge=0.0)


class BradleyTerrySettings(TrainingSettings):
    """Settings of `longrm train bradley-terry`.

    Attributes:
        objective: Which objective this is a recipe of.
        loss: How scores and gold ranks become a loss.
    """

    objective: Literal["bradley_terry"] = "bradley_terry"
    loss: RankingLossSettings = RankingLossSettings()

    @property
    def loss_spec(self) -> LossSpec | None:
        """The entry of its loss."""
        return self.loss.spec

    @property
    def reads_ties(self) -> bool:
        """Whether the loss learns from comparisons whose responses are all tied."""
        return self.loss.ties


class BradleyTerryObjective:
    """Scores over shared prefixes, ordered by gold ranks; a mean over comparisons.

    Args:
        graded: Whether examples have margins or probabilities.
    """

    def __init__(self, settings: RankingLossSettings, *, graded: bool = False) -> None:
        plain = settings == type(settings)(kind=settings.kind) and not graded
        # Only then do equal scores have the loss at chance, and a model that learns soon has less.
        self.chance = settings.spec.chance if plain else None
        self._settings = settings

    def select(self, example: "Example") -> "Example":
        """All responses are compared.

        Raises:
            DataError: The example has a margin or a probability, which the loss cannot read.
        """
        own = self._settings
        if not own.spec.reads_pairs and (example.margin is not None or example.probability is not None):
            raise DataError(
                f"'{example.id}' has a margin or a probability, and loss.kind = \"{own.kind}\" reads ranks only; "
                "take a loss of pairs, or leave the column out"
            )
        return example

    def weight(self, example: "Example") -> float:
        """Every comparison counts the same."""
        return 1.0

    def loss(self, model: Any, micro: "MicroBatch") -> "tuple[Tensor, dict[str, float]]":
        """The loss of a micro-batch."""
        from longrm.modeling.shared_prefix import scores  # late, for torch
        from longrm.training.losses.ranking_losses import centering

        spec, options = self._settings.spec, self._settings.options()
        smoothing = options.pop("label_smoothing", 0.0)
        if spec.reads_pairs:
            options["margins"] = [example.margin or 0.0 for example in micro.examples]
            options["probabilities"] = [
                1.0 - smoothing if example.probability is None else example.probability
                for example in micro.examples
            ]
        values = scores(model, micro.packed.to(model.device))
        ranks = [example.ranks for example in micro.examples]
        loss, figures = spec.load()(values, ranks, **options)
        return loss + self._settings.centering * centering(values, ranks), figures


BRADLEY_TERRY = ObjectiveSpec(
    settings=BradleyTerrySettings,
    build=lambda settings, counts, reference: BradleyTerryObjective(
        settings.loss, graded=bool(counts.get("margin") or counts.get("probability"))
    ),
    trains="scorer",
    reads="comparison",
    title="Train a discriminative reward model on comparisons.",
    help="""Trains a scalar head on gold-ordered responses, -log sigmoid(r_better - r_worse).

    \b
    longrm train bradley-terry --config mine.toml --out runs/mine
    longrm train bradley-terry --config mine.toml --out runs/other --set optimizer.learning_rate=1e-5
    """,
    card_text="a score for every response",
)
