"""Imitation of judgments: stage 1 of a generative reward model (LongRM, SFT)."""

from typing import Any, Literal

import torch
from torch import Tensor

from longrm.modeling.heads import hidden_states, token_logprobs
from longrm.training import losses
from longrm.training.batches import Example, MicroBatch
from longrm.training.settings import Training


class SFTTraining(Training):
    """Settings of `longrm train sft`.

    Attributes:
        objective: Which recipe this is.
    """

    trains = "language_model"
    reads = "demonstration"

    objective: Literal["sft"] = "sft"


class SFT:
    """The negative log-likelihood of completions; a mean over their tokens, whatever the documents."""

    chance: float | None = None

    def select(self, example: Example) -> Example:
        """A demonstration has one completion."""
        return example

    def weight(self, example: Example) -> float:
        """Every token of a completion counts the same."""
        return float(sum(example.tokens.written))

    def loss(self, model: Any, micro: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        """The loss of a micro-batch."""
        packed = micro.packed.to(model.device)
        targets = [index for own in micro.response_targets() for index in own]
        return losses.sft(token_logprobs(model, hidden_states(model, packed), packed, targets))


def response_logprobs(model: Any, micro: MicroBatch) -> list[Tensor]:
    """The fp32 log-probabilities of every response's tokens, response by response, of all examples in order."""
    packed = micro.packed.to(model.device)
    targets = micro.response_targets()
    flat = [index for own in targets for index in own]
    logprobs = token_logprobs(model, hidden_states(model, packed), packed, flat)
    return list(torch.split(logprobs, [len(own) for own in targets]))
