"""Reward models with a scalar head."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from longrm.data.joining import Encoded, encode
from longrm.modeling.loading import Scorer, load_scorer
from longrm.modeling.shapes import build_trees
from longrm.modeling.shared_prefix import Packed, pack, scored_states, scores
from longrm.reward_models.kinds import JudgeSettings
from longrm.reward_models.packed import PackedRewardModel
from longrm.types import Judgment, Query, Scale


class DiscriminativeRewardModel(PackedRewardModel):
    """A one-label sequence classifier, read at the last token that is not padding, as transformers does.

    Scores are raw logits of the fp32 head.
    """

    scale: Scale = "logit"

    @classmethod
    def load(cls, model: str, settings: JudgeSettings | None = None) -> Self:
        """Loads a folder or Hub id."""
        settings = settings or JudgeSettings()
        scorer = load_scorer(model, dtype=settings.dtype, device=settings.device, weights=settings.weights)
        return cls(scorer, model, settings)

    @torch.inference_mode()
    def head_deviation(self, query: Query) -> float | None:
        """The lead of the first of two responses, in standard deviations of the lead under a random head.

        With a head w of the same norm in a random direction, the lead has mean 0 and standard deviation
        |w| |h1 - h2| / sqrt(d), where h1 and h2 are the d-dimensional hidden states that the scores are read from. None
        if the query cannot be read, or the two states are equal.
        """
        opened = self.open(query)
        if isinstance(opened, Judgment):
            return None
        states = scored_states(self._model, pack(build_trees(opened.items)).to(self._model.device)).float()
        weight, difference = self._model.score.weight[0].float(), states[0] - states[1]
        deviation = float(weight.norm() * difference.norm()) / math.sqrt(len(weight))
        return float(weight @ difference) / deviation if deviation else None

    @property
    def scorer(self) -> Scorer:
        """The model and its tokenizer."""
        return Scorer(self._model, self.tokenizer)

    def _encode(self, query: Query) -> Sequence[Encoded]:
        return [encode(self.tokenizer, query.prompt, query.responses, query.tools)]

    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches 1"]:
        return scores(self._model, packed)[:, None]
