"""What reads all responses over one encoded prompt: queries are packed beside each other, and each fails for itself."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from longrm.data.joining import Encoded
from longrm.errors import DataError
from longrm.judging import fit, too_long
from longrm.modeling.device_memory import concerns_one_query
from longrm.modeling.encoding import build_trees, check_embedded, within_budget
from longrm.modeling.loading import LoadedModel
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import Packed, pack
from longrm.reward_models.judge_settings import JudgeSettings
from longrm.reward_models.protocol import RewardModel
from longrm.types import Cut, Judgment, Outcome, Query

# Tokens of one forward pass. Short contexts are packed up to it; a longer one is read alone.
_TOKENS_PER_FORWARD = 16_384

Row = tuple[float, ...]
"""What the model says at one branch."""


class PackedRewardModel(RewardModel):
    """A model of transformers that reads several responses, or several questions, over one shared prefix.

    What it says depends on neither the batch nor any padding, except for rounding. Of the settings `cut` and
    `max_length` say what becomes of a context that does not fit.

    Args:
        loaded: The model, whose attention is `longrm_shared_prefix`, and its tokenizer.
        name: How summaries and reports call it.
        settings: How it is asked.
    """

    def __init__(self, loaded: LoadedModel, name: str, settings: JudgeSettings | None = None) -> None:
        settings = settings or JudgeSettings()
        self.name = name
        self.provenance = loaded.provenance
        self._model, self._tokenizer = loaded.model, loaded.tokenizer
        self._policy = settings.cut
        reads = int(loaded.model.config.max_position_embeddings)
        self._limit = reads if settings.max_length is None else min(settings.max_length, reads)

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Reads all queries; neighbors that share a context share its encoding."""
        opened = [self._open(query) for query in queries]
        items = [item for one in opened if not isinstance(one, Judgment) for item in one.items]
        rows = iter(self._rows(items))
        return [
            one if isinstance(one, Judgment) else self._judgment(query, one, rows)
            for query, one in zip(queries, opened, strict=True)
        ]

    @abstractmethod
    def _items(self, query: Query) -> Sequence[Encoded]:
        """What is read about a query: prompts with what follows each of them.

        Raises:
            DataError: The query cannot be read; the message says why.
        """

    @abstractmethod
    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches values"]:
        """Reads packed items by one forward, for every branch some numbers."""

    def _verdict(self, query: Query, rows: Sequence[Row]) -> tuple[Row, str]:
        """The scores of a query's responses and an explanation; by default what was read at each response."""
        return tuple(row[0] for row in rows), ""

    def _prompt_tokens(self, items: Sequence[Encoded]) -> int:
        """Tokens of the longest prompt."""
        return max(len(item.prompt) for item in items)

    def _open(self, query: Query) -> "_Opened | Judgment":
        """What is read about a query, and what was cut out of it; a judgment at once where it cannot be read."""
        try:
            opened = _Opened(self._items(query))
            if opened.longest > self._limit:
                fitted = fit(query, self._longest, self._limit, self._tokenizer, self._policy)
                if fitted is None:
                    tokens = self._prompt_tokens(opened.items)
                    return too_long(query, self._policy, opened.longest, self._limit, tokens)
                opened = _Opened(self._items(fitted[0]), fitted[1])
            for item in opened.items:
                for ids in (item.prompt, *item.responses):
                    check_embedded(ids, self._model)
        except DataError as error:
            return Judgment(Outcome.ERROR, detail=str(error))
        return opened

    def _longest(self, query: Query) -> int:
        return _Opened(self._items(query)).longest

    def _rows(self, items: Sequence[Encoded]) -> list[Row | None]:
        """One row a branch; None for all of an item that memory does not do for."""
        self._model.eval()
        rows: list[Row | None] = []
        rest = iter(items)
        for trees in within_budget(build_trees(items), _TOKENS_PER_FORWARD):
            together, open_branches = [], sum(len(tree.branches) for tree in trees)
            while open_branches:
                together.append(next(rest))
                open_branches -= len(together[-1].responses)
            rows += self._apart_where_needed(together, trees)
        return rows

    def _apart_where_needed(self, items: Sequence[Encoded], trees: Sequence[TokenTree]) -> list[Row | None]:
        """Reads items together; what fails is read apart, so that each fails for itself alone.

        A number that is none passes over to whatever a mask hides it from, for nothing times it is none.
        """
        rows = self._forward(items, trees)
        if all(row is not None and all(map(math.isfinite, row)) for row in rows):
            return rows
        apart = list(items)
        if len(apart) == 1 and None not in rows:
            apart = [items[0].only([at]) for at in range(len(items[0].responses))]
        if len(apart) == 1:
            return rows
        return [row for one in apart for row in self._apart_where_needed([one], build_trees([one]))]

    @torch.inference_mode()
    def _forward(self, items: Sequence[Encoded], trees: Sequence[TokenTree]) -> list[Row | None]:
        try:
            values = self._read(pack(trees).to(self._model.device), items)
            return [tuple(row) for row in values.tolist()]
        except (MemoryError, RuntimeError) as error:
            if not concerns_one_query(error, self._model):
                raise
        return [None for tree in trees for _ in tree.branches]

    def _judgment(self, query: Query, opened: "_Opened", stream: Iterator[Row | None]) -> Judgment:
        rows = [next(stream) for item in opened.items for _ in item.responses]
        read = [row for row in rows if row is not None]
        tokens = self._prompt_tokens(opened.items)
        if len(read) == len(rows):
            scores, explanation = self._verdict(query, read)
            return Judgment(
                Outcome.ANSWERED, scores, explanation=explanation, prompt_tokens=tokens, cut=opened.cut
            )
        size = sum(item.size for item in opened.items)
        detail = (
            f"the {size:,} tokens of the prompt and its {len(query.responses)} responses need more memory than there "
            "is; lower judge.max_length, name a judge.cut, or take a larger device"
        )
        return Judgment(Outcome.ERROR, detail=detail, prompt_tokens=tokens, cut=opened.cut)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What is read about a query.

    Attributes:
        items: Prompts with what follows each of them.
        cut: What was cut out of the context.
    """

    items: Sequence[Encoded]
    cut: Cut | None = None

    @property
    def longest(self) -> int:
        return max(item.longest for item in self.items)
