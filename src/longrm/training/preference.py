"""Preference optimization of generative reward models: stage 2 (LongRM, LOGO / SimPO), and DPO."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, assert_never

from pydantic import Field, model_validator
from torch import Tensor

from longrm.config import Config
from longrm.training import losses
from longrm.training.batches import Example, MicroBatch
from longrm.training.settings import Training
from longrm.training.sft import response_logprobs


class PreferenceLoss(Config):
    """How log-probabilities of chosen and rejected responses become a loss.

    Attributes:
        kind: "logo" compares the chosen response with the mean over the rejected ones inside one sigmoid (LongRM,
            stage 2; Tang et al. 2024); "simpo" takes the mean over pairs (Meng et al. 2024); "dpo" the mean over
            pairs of log-ratios to the model that training starts from (Rafailov et al. 2023).
        rejected: V, the most rejected responses of a comparison that are read, the first of them; all by default.
        beta: Scale of the log-probabilities; 2.5, and 0.1 for "dpo".
        gamma: The margin that is asked for; 0.5, and none for "dpo".
        nll: Weight of the negative log-likelihood of the chosen response, per token; 0.05, and none for "dpo".
        label_smoothing: The share of preferences that are taken to be wrong.
    """

    kind: Literal["logo", "simpo", "dpo"] = "logo"
    rejected: int | None = Field(None, ge=1)
    beta: float | None = Field(None, gt=0.0)
    gamma: float | None = Field(None, ge=0.0)
    nll: float | None = Field(None, ge=0.0)
    label_smoothing: float = Field(0.0, ge=0.0, lt=0.5)

    @model_validator(mode="after")
    def _fits(self) -> "PreferenceLoss":
        if self.kind == "dpo" and self.gamma is not None:
            raise ValueError('gamma is of "logo" and "simpo"; "dpo" has no margin')
        return self

    @property
    def nll_weight(self) -> float:
        """The weight of the negative log-likelihood, defaults filled in."""
        if self.nll is not None:
            return self.nll
        match self.kind:
            case "dpo":
                return 0.0
            case "logo" | "simpo":
                return 0.05
            case unknown:
                assert_never(unknown)


class PreferenceTraining(Training):
    """Settings of `longrm train preference`.

    Attributes:
        objective: Which recipe this is.
        loss: How log-probabilities become a loss.
    """

    trains = "language_model"
    reads = "comparison"

    objective: Literal["preference"] = "preference"
    loss: PreferenceLoss = PreferenceLoss()

    @model_validator(mode="after")
    def _ends(self) -> "PreferenceTraining":
        if self.loss.kind == "dpo" and self.data.world is not None:
            raise ValueError(
                'loss.kind = "dpo" asks the model at its start about every row once, and generated data has no end: '
                'take data.path, or loss.kind = "logo" or "simpo"'
            )
        return self


class Preference:
    """Chosen against rejected responses by their log-probabilities over a shared prefix; a mean over comparisons.

    Args:
        settings: Which loss.
        reference: For "dpo", the reference model's summed log-probability of every selected response, by example id.
    """

    def __init__(
        self, settings: PreferenceLoss, reference: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        self.chance = math.log(2.0) if settings.kind == "dpo" and not settings.nll_weight else None
        self._settings = settings
        self._reference = reference

    def select(self, example: Example) -> Example:
        """The best response, then worse ones in their order, V at most."""
        best = example.ranks.index(min(example.ranks))
        worse = [at for at, rank in enumerate(example.ranks) if rank > example.ranks[best]]
        kept = [best, *worse[: self._settings.rejected]]
        tokens = example.tokens.only(kept)
        return replace(example, tokens=tokens, ranks=tuple(example.ranks[at] for at in kept))

    def weight(self, example: Example) -> float:
        """Every comparison counts the same."""
        return 1.0

    def loss(self, model: Any, micro: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        """The loss of a micro-batch."""
        own = self._settings
        counts = [len(example.ranks) for example in micro.examples]
        logprobs = response_logprobs(model, micro)
        match own.kind:
            case "dpo":
                assert self._reference is not None, "dpo needs a reference"
                reference = [value for example in micro.examples for value in self._reference[example.id]]
                return losses.dpo(
                    logprobs,
                    counts,
                    reference,
                    beta=own.beta or 0.1,
                    nll=own.nll_weight,
                    label_smoothing=own.label_smoothing,
                )
            case "logo":
                loss = losses.logo
            case "simpo":
                loss = losses.simpo
            case unknown:
                assert_never(unknown)
        return loss(
            logprobs,
            counts,
            beta=own.beta or 2.5,
            gamma=0.5 if own.gamma is None else own.gamma,
            nll=own.nll_weight,
            label_smoothing=own.label_smoothing,
        )
