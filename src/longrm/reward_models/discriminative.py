"""Reward models with a scalar head: all responses are scored over one encoded prompt."""

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
from longrm.reward_models.judge_settings import JudgeSettings
from longrm.reward_models.packed import PackedRewardModel
from longrm.types import Judgment, Query, Scale


class DiscriminativeRewardModel(PackedRewardModel):
    """A one-label sequence classifier, read where transformers reads it: at the last token that is not padding.

    Scores are raw logits of the fp32 head.
    """

    scale: Scale = "logit"

    @classmethod
    def load(cls, model: str, settings: JudgeSettings | None = None) -> Self:
        """Loads a folder or Hub id.

        Raises:
            ModelError: It cannot be loaded, or its architecture is not supported; the message says why.
        """
        settings = settings or JudgeSettings()
        scorer = load_scorer(model, dtype=settings.dtype, device=settings.device, weights=settings.weights)
        return cls(scorer, model, settings)

    @torch.inference_mode()
    def head_deviation(self, query: Query) -> float | None:
        """How many standard deviations the lead of the first of two responses is away from that of a random head.

        A head of this norm in a random direction gives a lead of mean 0 and of standard deviation
        |w| |h1 - h2| / sqrt(d), where h1 and h2 are the d numbers of the hidden states that the scores are read from.

        Returns:
            The deviation; None where the query cannot be read, or the two states are one.
        """
        opened = self.open(query)
        if isinstance(opened, Judgment):
            return None
        states = scored_states(self._model, pack(build_trees(opened.items)).to(self._model.device)).float()
        weight, apart = self._model.score.weight[0].float(), states[0] - states[1]
        spread = float(weight.norm() * apart.norm()) / math.sqrt(len(weight))
        return float(weight @ apart) / spread if spread else None

    @property
    def scorer(self) -> Scorer:
        """The model and its tokenizer."""
        return Scorer(self._model, self._tokenizer)

    def _items(self, query: Query) -> Sequence[Encoded]:
        return [encode(self._tokenizer, query.prompt, query.responses, query.tools)]

    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches 1"]:
        return scores(self._model, packed)[:, None]
