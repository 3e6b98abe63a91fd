"""Reward models with a scalar head: all responses are scored over one encoded prompt."""

from collections.abc import Sequence
from typing import Self

import torch

from longrm.data.joining import Encoded, encode
from longrm.errors import DataError
from longrm.judging import fit, why_uncut
from longrm.modeling.encoding import plant, within_budget
from longrm.modeling.heads import scores
from longrm.modeling.loading import Scorer, load_scorer
from longrm.modeling.shared_prefix import pack
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.settings import Judge
from longrm.types import Cut, Judgment, Outcome, Query, Scale

# Tokens of one forward pass. Short contexts are packed up to it; a longer one is read alone.
_TOKENS_PER_FORWARD = 16_384


class DiscriminativeRewardModel(RewardModel):
    """A one-label sequence classifier, read at the last token of every response.

    Scores are raw logits of the fp32 head; they depend on neither the batch nor any padding. Of the settings
    `cut` and `max_length` say what becomes of a context that does not fit.
    """

    scale: Scale = "logit"

    def __init__(self, scorer: Scorer, name: str, settings: Judge | None = None) -> None:
        settings = settings or Judge()
        self.name = name
        self._scorer = scorer
        self._policy = settings.cut
        reads = int(scorer.model.config.max_position_embeddings)
        self._limit = reads if settings.max_length is None else min(settings.max_length, reads)

    @classmethod
    def load(cls, model: str, settings: Judge | None = None) -> Self:
        """Loads a folder or Hub id.

        Raises:
            ModelError: It cannot be loaded, or its architecture is not supported; the message says why.
        """
        return cls(load_scorer(model), model, settings)

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Scores all responses of all queries; neighbors that share a context share its encoding."""
        opened = [self._open(query) for query in queries]
        items = [one[0] for one in opened if not isinstance(one, Judgment)]
        values = iter(self._scores(items))
        judgments = []
        for one in opened:
            if isinstance(one, Judgment):
                judgments.append(one)
                continue
            item, cut = one
            own = tuple(next(values) for _ in item.responses)
            judgments.append(Judgment(Outcome.ANSWERED, scores=own, prompt_tokens=len(item.prompt), cut=cut))
        return judgments

    def _open(self, query: Query) -> tuple[Encoded, Cut | None] | Judgment:
        """The tokens of a query and what was cut out of it; a judgment at once where it cannot be read."""
        try:
            item, cut = self._encode(query), None
            if item.longest > self._limit:
                tokenizer, policy = self._scorer.tokenizer, self._policy
                fitted = fit(query, lambda one: self._encode(one).longest, self._limit, tokenizer, policy)
                if fitted is None:
                    return _too_long(item, self._limit, why_uncut(query, policy))
                query, cut = fitted
                item = self._encode(query)
        except DataError as error:
            return Judgment(Outcome.ERROR, detail=str(error))
        return item, cut

    def _encode(self, query: Query) -> Encoded:
        return encode(self._scorer.tokenizer, query.prompt, query.responses)

    @torch.inference_mode()
    def _scores(self, items: Sequence[Encoded]) -> list[float]:
        values: list[float] = []
        model = self._scorer.model
        model.eval()
        for trees in within_budget(plant(items), _TOKENS_PER_FORWARD):
            values += scores(model, pack(trees).to(model.device)).tolist()
        return values


def _too_long(item: Encoded, limit: int, reason: str) -> Judgment:
    return Judgment(
        Outcome.TOO_LONG,
        detail=f"prompt and longest response have {item.longest} tokens, the model reads {limit}{reason}",
        prompt_tokens=len(item.prompt),
    )
