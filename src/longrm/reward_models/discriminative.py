"""Reward models with a scalar head: all responses are scored over one encoded prompt."""

from collections.abc import Sequence
from typing import Self

from jaxtyping import Float
from torch import Tensor

from longrm.data.joining import Encoded, encode
from longrm.modeling.heads import scores
from longrm.modeling.loading import load_scorer
from longrm.modeling.shared_prefix import Packed
from longrm.reward_models.judge_settings import JudgeSettings
from longrm.reward_models.packed import PackedRewardModel
from longrm.types import Query, Scale


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
        return cls(load_scorer(model), model, settings)

    def _items(self, query: Query) -> Sequence[Encoded]:
        return [encode(self._tokenizer, query.prompt, query.responses)]

    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches 1"]:
        return scores(self._model, packed)[:, None]
