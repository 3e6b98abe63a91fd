"""Reward models with a scalar head: all responses are scored over one encoded prompt."""

from collections.abc import Sequence
from typing import Self

import torch

from longrm.errors import DataError
from longrm.modeling.encoding import Encoded, encode, plant, within_budget
from longrm.modeling.heads import scores
from longrm.modeling.loading import Scorer, load_scorer
from longrm.modeling.shared_prefix import pack
from longrm.reward_models.protocol import RewardModel
from longrm.types import Judgment, Outcome, Query

# Tokens of one forward pass. Short contexts are packed up to it; a longer one is read alone.
_TOKENS_PER_FORWARD = 16_384


class DiscriminativeRewardModel(RewardModel):
    """A one-label sequence classifier, read at the last token of every response.

    Scores are raw logits of the fp32 head; they depend on neither the batch nor any padding.
    """

    def __init__(self, scorer: Scorer, name: str) -> None:
        self.name = name
        self._scorer = scorer
        self._limit = int(scorer.model.config.max_position_embeddings)

    @classmethod
    def load(cls, model: str) -> Self:
        """Loads a folder or Hub id.

        Raises:
            ModelError: It cannot be loaded, or its architecture is not supported; the message says why.
        """
        return cls(load_scorer(model), model)

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Scores all responses of all queries; neighbors that share a context share its encoding."""
        judgments: dict[int, Judgment] = {}
        items: dict[int, Encoded] = {}
        for index, query in enumerate(queries):
            try:
                item = encode(self._scorer.tokenizer, query.prompt, query.responses)
            except DataError as error:
                judgments[index] = Judgment(Outcome.ERROR, detail=str(error))
                continue
            if item.longest > self._limit:
                judgments[index] = _too_long(item, self._limit)
            else:
                items[index] = item
        values = iter(self._scores(list(items.values())))
        for index, item in items.items():
            own = tuple(next(values) for _ in item.responses)
            judgments[index] = Judgment(Outcome.ANSWERED, scores=own, prompt_tokens=len(item.prompt))
        return [judgments[index] for index in range(len(queries))]

    @torch.inference_mode()
    def _scores(self, items: Sequence[Encoded]) -> list[float]:
        values: list[float] = []
        model = self._scorer.model
        model.eval()
        for trees in within_budget(plant(items), _TOKENS_PER_FORWARD):
            values += scores(model, pack(trees).to(model.device)).tolist()
        return values


def _too_long(item: Encoded, limit: int) -> Judgment:
    return Judgment(
        Outcome.TOO_LONG,
        detail=f"prompt and longest response have {item.longest} tokens, the model reads {limit}",
        prompt_tokens=len(item.prompt),
    )
