"""Reward models with a scalar head: all responses are scored over one encoded prompt."""

import math
from collections.abc import Sequence
from typing import Self

import torch

from longrm.data.joining import Encoded, encode
from longrm.errors import DataError
from longrm.judging import fit, why_uncut
from longrm.modeling.device_memory import concerns_one_query
from longrm.modeling.encoding import build_trees, check_embedded, within_budget
from longrm.modeling.heads import scores
from longrm.modeling.loading import Scorer, load_scorer
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import pack
from longrm.reward_models.judge_settings import JudgeSettings
from longrm.reward_models.protocol import RewardModel
from longrm.types import Cut, Judgment, Outcome, Query, Scale

# Tokens of one forward pass. Short contexts are packed up to it; a longer one is read alone.
_TOKENS_PER_FORWARD = 16_384


class DiscriminativeRewardModel(RewardModel):
    """A one-label sequence classifier, read where transformers reads it: at the last token that is not padding.

    Scores are raw logits of the fp32 head; they depend on neither the batch nor any padding. Of the settings
    `cut` and `max_length` say what becomes of a context that does not fit.
    """

    scale: Scale = "logit"

    def __init__(self, scorer: Scorer, name: str, settings: JudgeSettings | None = None) -> None:
        settings = settings or JudgeSettings()
        self.name = name
        self.provenance = scorer.provenance
        self._scorer = scorer
        self._policy = settings.cut
        reads = int(scorer.model.config.max_position_embeddings)
        self._limit = reads if settings.max_length is None else min(settings.max_length, reads)

    @classmethod
    def load(cls, model: str, settings: JudgeSettings | None = None) -> Self:
        """Loads a folder or Hub id.

        Raises:
            ModelError: It cannot be loaded, or its architecture is not supported; the message says why.
        """
        return cls(load_scorer(model), model, settings)

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Scores all responses of all queries; neighbors that share a context share its encoding."""
        encoded = [self._open(query) for query in queries]
        items = [one[0] for one in encoded if not isinstance(one, Judgment)]
        values = iter(self._scores(items))
        judgments = []
        for one in encoded:
            if isinstance(one, Judgment):
                judgments.append(one)
                continue
            item, cut = one
            judgments.append(_judgment(item, [next(values) for _ in item.responses], cut))
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
            for ids in (item.prompt, *item.responses):
                check_embedded(ids, self._scorer.model)
        except DataError as error:
            return Judgment(Outcome.ERROR, detail=str(error))
        return item, cut

    def _encode(self, query: Query) -> Encoded:
        return encode(self._scorer.tokenizer, query.prompt, query.responses)

    def _scores(self, items: Sequence[Encoded]) -> list[float | None]:
        """One number a response; None for all of an item that memory does not do for."""
        self._scorer.model.eval()
        values: list[float | None] = []
        rest = iter(items)
        for trees in within_budget(build_trees(items), _TOKENS_PER_FORWARD):
            together, open_branches = [], sum(len(tree.branches) for tree in trees)
            while open_branches:
                together.append(next(rest))
                open_branches -= len(together[-1].responses)
            values += self._read(together, trees)
        return values

    def _read(self, items: Sequence[Encoded], trees: Sequence[TokenTree]) -> list[float | None]:
        """Reads items together; what fails is read apart, so that each fails for itself alone.

        A number that is none passes over to whatever a mask hides it from, for nothing times it is none.
        """
        values = self._forward(trees)
        if all(value is not None and math.isfinite(value) for value in values):
            return values
        apart = list(items)
        if len(apart) == 1 and None not in values:
            apart = [Encoded(items[0].prompt, [response]) for response in items[0].responses]
        if len(apart) == 1:
            return values
        return [value for one in apart for value in self._read([one], build_trees([one]))]

    @torch.inference_mode()
    def _forward(self, trees: Sequence[TokenTree]) -> list[float | None]:
        model = self._scorer.model
        try:
            values: list[float | None] = scores(model, pack(trees).to(model.device)).tolist()
            return values
        except (MemoryError, RuntimeError) as error:
            if not concerns_one_query(error, model):
                raise
        return [None for tree in trees for _ in tree.branches]


def _judgment(item: Encoded, values: Sequence[float | None], cut: Cut | None) -> Judgment:
    scored = tuple(value for value in values if value is not None)
    if len(scored) == len(values):
        return Judgment(Outcome.ANSWERED, scores=scored, prompt_tokens=len(item.prompt), cut=cut)
    detail = (
        f"the {item.size:,} tokens of the prompt and its {len(values)} responses need more memory than there is; lower "
        "judge.max_length, name a judge.cut, or take a larger device"
    )
    return Judgment(Outcome.ERROR, detail=detail, prompt_tokens=len(item.prompt), cut=cut)


def _too_long(item: Encoded, limit: int, reason: str) -> Judgment:
    return Judgment(
        Outcome.TOO_LONG,
        detail=f"prompt and longest response have {item.longest} tokens, the model reads {limit}{reason}",
        prompt_tokens=len(item.prompt),
    )
