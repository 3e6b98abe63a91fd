"""Local models that read all responses over one encoded prompt, with several queries packed into one forward pass."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from longrm.data.joining import Encoded, TokenQuery
from longrm.data.tokenizing import UnknownTokens
from longrm.errors import DataError
from longrm.judging import Policy, fit, too_long
from longrm.modeling.device_memory import concerns_one_query
from longrm.modeling.loading import LoadedModel
from longrm.modeling.prefix_cache import BLOCK, PrefixCache, block_keys
from longrm.modeling.shapes import TokenTree, build_trees, within_budget
from longrm.modeling.shared_prefix import Packed, TransformersModel, check_embedded, pack
from longrm.reward_models.kinds import JudgeSettings
from longrm.reward_models.protocol import RewardModel
from longrm.types import Cut, Judgment, Outcome, Query

# Tokens of one forward pass. Short contexts are packed up to it; a longer one is read alone.
_TOKENS_PER_FORWARD = 16_384

# The limit for `choose` on a CPU, which gains nothing from larger batches, while other requests wait.
_TOKENS_PER_FORWARD_CPU = 2048

Row = tuple[float, ...]
"""The numbers that the model computes for one branch."""

_Branch = tuple[Row | None, int]
"""The row of a branch, None if out of memory, and how many tokens of its prompt were in the prefix cache."""


@dataclass(frozen=True, slots=True)
class OpenedQuery:
    """A tokenized query."""

    query: Query  # before any cut
    items: Sequence[Encoded]  # prompts, each with its branches
    cut: Cut | None = None
    keys: Sequence[
        Sequence[bytes]
    ] = ()  # the cache keys of each prompt's blocks; empty without a prefix cache

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: a prompt and its longest branch."""
        return max(item.longest for item in self.items)

    @property
    def size(self) -> int:
        """Tokens of all prompts and branches."""
        return sum(item.size for item in self.items)


class PackedRewardModel(RewardModel):
    """A transformers model that reads several responses, or several questions, over one shared prefix.

    Its results depend on neither the batch nor padding, except for rounding. `judge` opens queries (renders, tokenizes,
    cuts) and reads them in packed forward passes. A server calls `open`, `choose` and `read` itself.

    Args:
        loaded: The model, whose attention is `longrm_shared_prefix`, and its tokenizer.
        name: Its name in summaries and reports.
        settings: `cut` and `max_length` apply to all subclasses.

    Attributes:
        tokenizer: The model's tokenizer.
        limit: The context window in tokens.
        kept: The prefix cache; None unless `keep_prefixes` was called.
    """

    def __init__(self, loaded: LoadedModel, name: str, settings: JudgeSettings | None = None) -> None:
        settings = settings or JudgeSettings()
        self.name = name
        self.provenance = loaded.provenance
        self.tokenizer = loaded.tokenizer
        self.kept: PrefixCache | None = None
        self._model = loaded.model
        self._policy = settings.cut
        reads = int(loaded.model.config.max_position_embeddings)
        self.limit = reads if settings.max_length is None else min(settings.max_length, reads)
        self._unknown = UnknownTokens(loaded.tokenizer, name)

    def keep_prefixes(self, budget: int) -> None:
        """Caches the keys and values of prompts from now on, so that a shared prefix is encoded once.

        Scores change by rounding only: in fp32 by less than 5e-5 of max(1, their size).

        Args:
            budget: Bytes of memory, of one block of tokens or more; the least recently used blocks are evicted.
        """
        self.kept = PrefixCache(self._models(), budget)

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Reads all queries; neighbors with the same context share its encoding."""
        opened = [self.open(query) for query in queries]
        judged = iter(self.read([one for one in opened if isinstance(one, OpenedQuery)]))
        return [one if isinstance(one, Judgment) else next(judged) for one in opened]

    @abstractmethod
    def _encode(self, query: Query) -> Sequence[Encoded]:
        """The token ids of a query: prompts, each with its branches. `DataError` if it cannot be rendered."""

    @abstractmethod
    def _read(self, packed: Packed, items: Sequence[Encoded]) -> Float[Tensor, "branches values"]:
        """Runs one forward pass over packed items; returns the same number of values for every branch."""

    def _verdict(self, query: Query, rows: Sequence[Row]) -> tuple[Row, str]:
        """The scores of a query's responses and an explanation, from the rows of all of its branches."""
        return tuple(row[0] for row in rows), ""

    def _prompt_tokens(self, items: Sequence[Encoded]) -> int:
        """Tokens of the longest prompt."""
        return max(len(item.prompt) for item in items)

    def _given(self, query: TokenQuery) -> Sequence[Encoded]:
        """The token ids of a query whose client sends token ids; errors as in `_encode`."""
        return [query.encoded]

    def _items(self, query: Query) -> Sequence[Encoded]:
        return self._given(query) if isinstance(query, TokenQuery) else self._encode(query)

    def _models(self) -> list[TransformersModel]:
        """All models that read the same tokens, whose prefixes are cached together."""
        return [self._model]

    def open(self, query: Query, cut: Policy | None = None, salt: str = "") -> OpenedQuery | Judgment:
        """Tokenizes a query and cuts it if needed; returns a judgment if it cannot be read.

        Args:
            query: The query.
            cut: Replaces the setting `judge.cut`.
            salt: Cached prefixes are shared only between queries with the same salt.
        """
        policy = self._policy if cut is None else cut
        try:
            opened = OpenedQuery(query, self._items(query))
            self._unknown.check(ids for item in opened.items for ids in (item.prompt, *item.responses))
            if opened.longest > self.limit:

                def measure(candidate: Query) -> int:
                    return OpenedQuery(candidate, self._items(candidate)).longest

                fitted = fit(query, measure, self.limit, self.tokenizer, policy)
                if fitted is None:
                    tokens = self._prompt_tokens(opened.items)
                    return too_long(query, policy, opened.longest, self.limit, tokens)
                opened = OpenedQuery(query, self._items(fitted[0]), fitted[1])
            for item in opened.items:
                for ids in (item.prompt, *item.responses):
                    for model in self._models():
                        check_embedded(ids, model)
        except DataError as error:
            return Judgment(Outcome.ERROR, detail=str(error))
        if self.kept is None:
            return opened
        items = [replace(item, salt=salt) for item in opened.items]
        return replace(opened, items=items, keys=[block_keys(item.prompt, salt) for item in items])

    def choose(self, waiting: Sequence[OpenedQuery]) -> list[int]:
        """The indices of the queries for the next forward pass: the first one, and others that fit with it.

        Equal prompts are neighbors in the result, so that packing shares them. A query whose prompt shares an uncached
        prefix with a chosen one, but is not equal to it, is left for a later pass, which finds the prefix in the cache.
        """
        budget = _TOKENS_PER_FORWARD_CPU if self._model.device.type == "cpu" else _TOKENS_PER_FORWARD
        chosen: list[int] = []
        # Chosen prompts by the key of their first uncached block. Keys are hashes of all tokens up to the block's end,
        # so another prompt with the same key begins alike.
        begun: dict[bytes, Sequence[int]] = {}
        for index, one in enumerate(waiting):
            size, waits, first_keys = 0, False, []
            for item, keys in zip(one.items, one.keys or [()] * len(one.items), strict=True):
                cached = 0 if self.kept is None else self.kept.usable(item.prompt, keys)
                first_keys.append(keys[cached] if cached < len(keys) else b"")
                same = begun.get(first_keys[-1])
                waits = waits or (same is not None and same != item.prompt)
                size += item.size - (cached * BLOCK if same is None else len(item.prompt))
            if waits or (chosen and size > budget):
                continue
            budget -= size
            chosen.append(index)
            begun.update({key: item.prompt for key, item in zip(first_keys, one.items, strict=True) if key})
        return sorted(chosen, key=lambda index: list(waiting[index].items[0].prompt))

    def read(self, opened: Sequence[OpenedQuery]) -> list[Judgment]:
        """Judges queries that `open` has opened."""
        all_branches = iter(self._rows([item for one in opened for item in one.items]))
        judgments = []
        for one in opened:
            branches = [next(all_branches) for item in one.items for _ in item.responses]
            rows = [row for row, _ in branches if row is not None]
            tokens = self._prompt_tokens(one.items)
            if len(rows) < len(branches):
                detail = (
                    f"out of memory: {one.size:,} tokens of the prompt and its {len(one.query.responses)} responses; "
                    "lower judge.max_length, set judge.cut, or use a larger device"
                )
                judgments.append(Judgment(Outcome.ERROR, detail=detail, prompt_tokens=tokens, cut=one.cut))
                continue
            scores, explanation = self._verdict(one.query, rows)
            judgments.append(
                Judgment(
                    Outcome.ANSWERED,
                    scores,
                    explanation=explanation,
                    prompt_tokens=tokens,
                    cached_tokens=min(cached for _, cached in branches),
                    cut=one.cut,
                )
            )
        return judgments

    def _rows(self, items: Sequence[Encoded]) -> list[_Branch]:
        """Reads all items in as few forward passes as their sizes allow; one result for each branch."""
        if self._model.training:  # a model that is evaluated during its training
            self._model.eval()
        rows: list[_Branch] = []
        rest = iter(items)
        branches = sum(len(item.responses) for item in items)
        for trees in within_budget(build_trees(items), _TOKENS_PER_FORWARD):
            # Neighboring items with one prompt are one tree, so the items of these trees are found by their branches.
            together, open_branches = [], sum(len(tree.branches) for tree in trees)
            while open_branches:
                together.append(next(rest))
                open_branches -= len(together[-1].responses)
            rows += self._read_together(together, trees)
            self.on_progress(len(rows) / branches)
        return rows

    def _read_together(self, items: Sequence[Encoded], trees: Sequence[TokenTree]) -> list[_Branch]:
        """Reads items in one forward pass, and again separately if any fails, so that only those fail that must.

        A NaN in one branch spreads to others although the mask hides it: 0 * NaN is NaN.
        """
        rows = self._forward(items, trees)
        in_memory = all(row is not None for row, _ in rows)
        if in_memory and all(math.isfinite(value) for row, _ in rows for value in row or ()):
            return rows
        parts = list(items)
        if len(parts) == 1 and in_memory:
            parts = [items[0].only([at]) for at in range(len(items[0].responses))]
        if len(parts) == 1:
            return rows
        return [row for part in parts for row in self._read_together([part], build_trees([part]))]

    @torch.inference_mode()
    def _forward(self, items: Sequence[Encoded], trees: Sequence[TokenTree]) -> list[_Branch]:
        branches = sum(len(tree.branches) for tree in trees)
        rows: Sequence[Row | None] = [None] * branches
        cached = [0] * branches
        try:
            packed = pack(trees) if self.kept is None else self.kept.pack(trees)
            cached = [shape.cached for shape in packed.layout.trees for _ in shape.branches]
            values = self._read(packed.to(self._model.device), items)
            rows = [tuple(row) for row in values.tolist()]
            # NaN must not reach the cache, where it would spread to later queries.
            if self.kept is not None and bool(values.isfinite().all()):
                self.kept.keep(packed)
        except (MemoryError, RuntimeError) as error:
            if not concerns_one_query(error, self._model):
                raise
        return list(zip(rows, cached, strict=True))
