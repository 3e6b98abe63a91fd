"""What reads all responses over one encoded prompt: queries are packed beside each other, and each fails for itself."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from longrm.data.joining import Encoded, TokenQuery
from longrm.data.tokenizing import Tokenizer, UnknownTokens
from longrm.errors import DataError
from longrm.judging import Policy, fit, too_long
from longrm.modeling.device_memory import concerns_one_query
from longrm.modeling.kept_prefixes import BLOCK, KeptPrefixes, block_keys
from longrm.modeling.loading import LoadedModel
from longrm.modeling.shapes import TokenTree, build_trees, within_budget
from longrm.modeling.shared_prefix import Packed, TransformersModel, check_embedded, pack
from longrm.reward_models.judge_settings import JudgeSettings
from longrm.reward_models.protocol import RewardModel
from longrm.types import Cut, Judgment, Outcome, Query

# Tokens of one forward pass. Short contexts are packed up to it; a longer one is read alone.
_TOKENS_PER_FORWARD = 16_384

# Where others wait: a CPU gains nothing by more.
_TOKENS_PER_FORWARD_CPU = 2048

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
        self._kept: KeptPrefixes | None = None
        self._unknown = UnknownTokens(loaded.tokenizer, name)

    def keep_prefixes(self, budget: int) -> None:
        """Keeps the keys and values of prompts from now on, so that those which begin alike are read once.

        Scores stay what they are but for rounding: in fp32 by less than 5e-5 of their size, or of 1 where they
        are smaller. Only one thread may judge at a time, as ever.

        Args:
            budget: Bytes of memory; what was not used for longest gives way.

        Raises:
            ConfigError: The budget does not do for one block of tokens.
        """
        self._kept = KeptPrefixes(self._models(), budget)

    @property
    def kept(self) -> KeptPrefixes | None:
        """The keys and values of prompts that are kept; None unless `keep_prefixes` was called."""
        return self._kept

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Reads all queries; neighbors that share a context share its encoding."""
        opened = [self.open(query) for query in queries]
        judged = iter(self.read([one for one in opened if isinstance(one, OpenedQuery)]))
        return [one if isinstance(one, Judgment) else next(judged) for one in opened]

    def read(self, opened: Sequence["OpenedQuery"]) -> list[Judgment]:
        """Judges queries that `open` has opened."""
        rows = iter(self._rows([item for one in opened for item in one.items]))
        return [self._judgment(one, rows) for one in opened]

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

    def _given(self, query: TokenQuery) -> Sequence[Encoded]:
        """What is read where a client gives the token ids; likewise."""
        return [query.encoded]

    def _asked(self, query: Query) -> Sequence[Encoded]:
        return self._given(query) if isinstance(query, TokenQuery) else self._items(query)

    def _models(self) -> list[TransformersModel]:
        """All models that read the same tokens."""
        return [self._model]

    def open(self, query: Query, cut: Policy | None = None, salt: str = "") -> "OpenedQuery | Judgment":
        """What is read about a query, and what was cut out of it; a judgment at once where it cannot be read.

        Args:
            query: The query.
            cut: What may be cut out of its context; by default what the settings say.
            salt: What is kept of its prompt serves queries of the same salt alone.
        """
        policy = self._policy if cut is None else cut
        try:
            opened = OpenedQuery(query, self._asked(query))
            self._unknown.check(ids for item in opened.items for ids in (item.prompt, *item.responses))
            if opened.longest > self._limit:
                fitted = fit(query, self._longest, self._limit, self._tokenizer, policy)
                if fitted is None:
                    tokens = self._prompt_tokens(opened.items)
                    return too_long(query, policy, opened.longest, self._limit, tokens)
                opened = OpenedQuery(query, self._items(fitted[0]), fitted[1])
            for item in opened.items:
                for ids in (item.prompt, *item.responses):
                    check_embedded(ids, self._model)
        except DataError as error:
            return Judgment(Outcome.ERROR, detail=str(error))
        if self._kept is None:
            return opened
        items = [replace(item, salt=salt) for item in opened.items]
        return replace(opened, items=items, keys=[block_keys(item.prompt, salt) for item in items])

    def open_whole(self, query: Query) -> "OpenedQuery":
        """Likewise, where nothing may be cut out of the context.

        Raises:
            DataError: The query cannot be read, or not whole.
        """
        opened = self.open(query, cut="refuse")
        if isinstance(opened, Judgment):
            raise DataError(f"{opened.outcome}: {opened.detail}")
        return opened

    def choose(self, waiting: Sequence["OpenedQuery"]) -> list[int]:
        """Which queries to read next, by one forward: the first, and what goes with it, like prompts side by side.

        Queries that begin alike with what is not kept yet wait until the first of them has been read, unless their
        prompts are the same: nothing is read twice.
        """
        budget = _TOKENS_PER_FORWARD_CPU if self._model.device.type == "cpu" else _TOKENS_PER_FORWARD
        chosen: list[int] = []
        begun: dict[bytes, Sequence[int]] = {}
        for index, one in enumerate(waiting):
            blocks: Sequence[Sequence[bytes]] = one.keys or [()] * len(one.items)
            starts = [self._unread(*pair) for pair in zip(one.items, blocks, strict=True)]
            like = [begun.get(key) for key, _ in starts]
            if any(prompt not in (None, item.prompt) for prompt, item in zip(like, one.items, strict=True)):
                continue
            size = sum(
                item.size - (known if prompt is None else len(item.prompt))
                for item, prompt, (_, known) in zip(one.items, like, starts, strict=True)
            )
            if chosen and size > budget:
                continue
            budget -= size
            chosen.append(index)
            begun.update({key: item.prompt for item, (key, _) in zip(one.items, starts, strict=True) if key})
        return sorted(chosen, key=lambda index: list(waiting[index].items[0].prompt))

    def _unread(self, item: Encoded, keys: Sequence[bytes]) -> tuple[bytes, int]:
        """The key of a prompt's first block that is not kept, empty where there is none, and the tokens before it."""
        known = 0 if self._kept is None else self._kept.usable(item.prompt, keys)
        return (keys[known] if known < len(keys) else b""), known * BLOCK

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def limit(self) -> int:
        """The most tokens that are read together."""
        return self._limit

    def _longest(self, query: Query) -> int:
        return OpenedQuery(query, self._asked(query)).longest

    def _rows(self, items: Sequence[Encoded]) -> "list[_Branch]":
        """What was read at every branch of all items."""
        if self._model.training:  # as one is that judges while it is trained
            self._model.eval()
        rows: list[_Branch] = []
        rest = iter(items)
        branches = sum(len(item.responses) for item in items)
        for trees in within_budget(build_trees(items), _TOKENS_PER_FORWARD):
            together, open_branches = [], sum(len(tree.branches) for tree in trees)
            while open_branches:
                together.append(next(rest))
                open_branches -= len(together[-1].responses)
            rows += self._apart_where_needed(together, trees)
            self.on_progress(len(rows) / branches)
        return rows

    def _apart_where_needed(self, items: Sequence[Encoded], trees: Sequence[TokenTree]) -> "list[_Branch]":
        """Reads items together; what fails is read apart, so that each fails for itself alone.

        A number that is none passes over to whatever a mask hides it from, for nothing times it is none.
        """
        rows = self._forward(items, trees)
        if all(one.row is not None and all(map(math.isfinite, one.row)) for one in rows):
            return rows
        apart = list(items)
        if len(apart) == 1 and all(one.row is not None for one in rows):
            apart = [items[0].only([at]) for at in range(len(items[0].responses))]
        if len(apart) == 1:
            return rows
        return [row for one in apart for row in self._apart_where_needed([one], build_trees([one]))]

    @torch.inference_mode()
    def _forward(self, items: Sequence[Encoded], trees: Sequence[TokenTree]) -> "list[_Branch]":
        branches = sum(len(tree.branches) for tree in trees)
        found: Sequence[Row | None] = [None] * branches
        cached = [0] * branches
        try:
            packed = pack(trees) if self._kept is None else self._kept.pack(trees)
            cached = [shape.kept for shape in packed.layout.trees for _ in shape.branches]
            values = self._read(packed.to(self._model.device), items)
            found = [tuple(row) for row in values.tolist()]
            if self._kept is not None and bool(values.isfinite().all()):
                self._kept.keep(packed)
        except (MemoryError, RuntimeError) as error:
            if not concerns_one_query(error, self._model):
                raise
        return [_Branch(*one) for one in zip(found, cached, strict=True)]

    def _judgment(self, opened: "OpenedQuery", stream: "Iterator[_Branch]") -> Judgment:
        query, branches = opened.query, [next(stream) for item in opened.items for _ in item.responses]
        read = [one.row for one in branches if one.row is not None]
        tokens = self._prompt_tokens(opened.items)
        if len(read) == len(branches):
            scores, explanation = self._verdict(query, read)
            return Judgment(
                Outcome.ANSWERED,
                scores,
                explanation=explanation,
                prompt_tokens=tokens,
                cached_tokens=min(one.cached for one in branches),
                cut=opened.cut,
            )
        detail = (
            f"the {opened.size:,} tokens of the prompt and its {len(query.responses)} responses need more memory than "
            "there is; lower judge.max_length, name a judge.cut, or take a larger device"
        )
        return Judgment(Outcome.ERROR, detail=detail, prompt_tokens=tokens, cut=opened.cut)


class _Branch(NamedTuple):
    """What was read at one branch, None where memory did not do, and how many tokens before it were kept."""

    row: Row | None
    cached: int


@dataclass(frozen=True, slots=True)
class OpenedQuery:
    """What is read about a query.

    Attributes:
        query: The query as it was asked.
        items: Prompts with what follows each of them.
        cut: What was cut out of the context.
        keys: The keys of each prompt's blocks, where prefixes are kept.
    """

    query: Query
    items: Sequence[Encoded]
    cut: Cut | None = None
    keys: Sequence[Sequence[bytes]] = ()

    @property
    def longest(self) -> int:
        """Tokens of a prompt and its longest response: what the model must be able to read."""
        return max(item.longest for item in self.items)

    @property
    def size(self) -> int:
        """Tokens of all prompts and of what follows them."""
        return sum(item.size for item in self.items)
