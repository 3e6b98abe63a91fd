"""Token trees and the layout of packed sequences: sizes, positions and indices, without torch.

Everything that training, scoring and `longrm plan` must agree on before a tensor exists is here.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from longrm.errors import ModelError

if TYPE_CHECKING:  # the help of `longrm train` reads settings that use this module, and loads no tokenizer
    from longrm.data.joining import Encoded

HeadForm = Literal["linear", "mlp"]
"""A scalar head of one linear layer, or of two with SiLU in between."""

LOGITS_AT_ONCE = 2**26
"""Elements of fp32 logits that are computed at once (256 MiB): 2,000 tokens of a vocabulary of 32K. Their gradient
takes twice as much again."""

SHORTEST = 1024
"""The least tokens of a feed-forward tile; fewer would leave a GPU idle."""

PINNED_PIECE = 2**26
"""Bytes of one piece of pinned CPU memory for offloaded activations."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a small Llama. `init_std` is the standard deviation of its random weights."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 32
    intermediate: int = 128
    attention_bias: bool = False
    rope_theta: float = 10_000.0
    init_std: float = 0.02
    max_positions: int = 131_072

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}")
        if self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head_dim, got {self.head_dim}")


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Token ids of a prefix and of the branches that continue it.

    A branch is usually one response. Where several questions share a document, the prefix ends where the questions
    differ, and a branch is the rest of a question and a response. Cached keys and values of the prefix are shared only
    with trees of the same salt.
    """

    prefix: Sequence[int]
    branches: Sequence[Sequence[int]]
    salt: str = ""

    @property
    def size(self) -> int:
        """Tokens of the prefix and of all branches."""
        return len(self.prefix) + sum(map(len, self.branches))


def seen_pairs(before: int, tokens: int, window: int | None) -> int:
    """Pairs of a token and one that it sees, itself included, among `tokens` that follow on `before` others."""
    if window is None:
        window = before + tokens
    full = min(tokens, max(0, window - before))  # tokens that see all before them
    return full * before + full * (full + 1) // 2 + (tokens - full) * window


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The lengths of a prefix and of its branches in tokens.

    `cached` tokens precede the prefix. Their keys and values are cached: positions count them, and the packed sequence
    does not contain them.
    """

    prefix: int
    branches: tuple[int, ...]
    cached: int = 0

    @property
    def forks(self) -> bool:
        """Whether the prefix has several branches; with one the tree is a plain causal sequence."""
        return len(self.branches) > 1

    def pairs(self, window: int | None = None) -> int:
        """Pairs of a token of the tree and one that it sees, itself included."""
        branches = sum(seen_pairs(self.prefix, length, window) for length in self.branches)
        return seen_pairs(0, self.prefix, window) + branches

    @property
    def branch_tokens(self) -> int:
        """Tokens of all branches."""
        return sum(self.branches)

    @property
    def tokens(self) -> int:
        """Tokens of the tree in the packed sequence: the prefix is counted once."""
        return self.prefix + self.branch_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest separate sequence."""
        return self.cached + self.prefix + max(self.branches, default=0)


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The shapes of the trees of one packed sequence, in order.

    Hashable, so that whatever attention derives from it is computed once and cached for all layers. S is the number of
    tokens of the packed sequence.
    """

    trees: tuple[TreeShape, ...]

    @property
    def tokens(self) -> int:
        """S, the length of the packed sequence."""
        return sum(tree.tokens for tree in self.trees)

    @property
    def longest(self) -> int:
        """Tokens of the longest separate sequence: a window as long shows all of it."""
        return max(tree.longest for tree in self.trees)

    def roots(self) -> Iterator[int]:
        """Yields the index of the first token of every tree."""
        return accumulate((tree.tokens for tree in self.trees[:-1]), initial=0)

    def branches(self) -> Iterator[tuple[int, int, int]]:
        """Yields three indices for every branch: the last token of its prefix, its first token, one past its last."""
        for root, tree in zip(self.roots(), self.trees, strict=True):
            begin = fork = root + tree.prefix
            for length in tree.branches:
                yield fork - 1, begin, begin + length
                begin += length

    def branch_ends(self) -> list[int]:
        """The index of the last token of every branch."""
        return [end - 1 for _, _, end in self.branches()]

    def written_tokens(self, written: Sequence[Sequence[int]]) -> list[list[int]]:
        """Indices of some tokens of every branch, given as offsets from its end (it may begin with a prompt's rest)."""
        ends = (end for _, _, end in self.branches())
        return [[end + offset for offset in own] for end, own in zip(ends, written, strict=True)]

    def predictors(self, targets: Sequence[int]) -> list[int]:
        """The index whose hidden state predicts each target: the token before it *in its own sequence*.

        The first token of every branch is predicted by the last token of the prefix, not by its neighbor in the packed
        sequence, which ends another branch. The first token of a prefix has no predictor.
        """
        forks = {begin: last for last, begin, _ in self.branches()}
        roots = set(self.roots())
        for target in targets:
            if target in roots or not 0 <= target < self.tokens:
                raise ValueError(f"token {target} of {self.tokens} has no predictor in this layout")
        return [forks.get(target, target - 1) for target in targets]

    def position_ids(self) -> list[int]:
        """Positions of all S tokens: they restart at the fork for every branch.

        tokens     p0 p1 p2 p3 | a0 a1 | b0 b1 b2
        positions   0  1  2  3 |  4  5 |  4  5  6

        So rotary embeddings see each branch directly after its prefix, as in a separate sequence. If the first `cached`
        tokens of the prompt are in a prefix cache, positions start at `cached`.
        """
        positions: list[int] = []
        for tree in self.trees:
            fork = tree.cached + tree.prefix
            positions.extend(range(tree.cached, fork))
            for length in tree.branches:
                positions.extend(range(fork, fork + length))
        return positions


def build_trees(items: "Sequence[Encoded]", budget: float = math.inf) -> list[TokenTree]:
    """Makes token trees whose branches are all responses of all items, in order.

    Neighboring items become one tree where that saves tokens and their prompts share at least half of their length (a
    document with several questions): the shared tokens are the prefix, and a branch is the rest of a prompt with a
    response. A tree of several items has at most `budget` tokens, and all its items have the same salt.
    """
    from longrm.data.joining import common_prefix

    runs: list[tuple[list[Encoded], int]] = []
    for item in items:
        alone = [item], len(item.prompt)
        if runs:
            run, shared = runs[-1]
            common = min(shared, common_prefix(run[0].prompt, item.prompt))
            alike = item.salt == run[0].salt and 2 * common >= max(len(item.prompt), len(run[0].prompt))
            size = _tree_size([*run, item], common)
            if alike and size <= budget and size < _tree_size(run, shared) + _tree_size(*alone):
                runs[-1] = [*run, item], common
                continue
        runs.append(alone)
    trees = []
    for run, shared in runs:
        branches = [[*item.prompt[shared:], *response] for item in run for response in item.responses]
        trees.append(TokenTree(run[0].prompt[:shared], branches, run[0].salt))
    return trees


def _tree_size(run: "Sequence[Encoded]", shared: int) -> int:
    # The part of a prompt that is not shared is repeated in each of its branches.
    return shared + sum(len(item.prompt) - shared + len(own) for item in run for own in item.responses)


Sized = TypeVar("Sized", bound=Any)


def within_budget(items: Iterable[Sized], budget: int) -> Iterator[list[Sized]]:
    """Splits items with a `size` in tokens into runs of at most `budget`; a larger item is a run of its own."""
    run: list[Sized] = []
    tokens = 0
    for item in items:
        if run and tokens + item.size > budget:
            yield run
            run, tokens = [], 0
        run.append(item)
        tokens += item.size
    if run:
        yield run


def check_frozen_layers(count: int, layers: int) -> None:
    """Refuses to freeze all layers of a model."""
    if count >= layers:
        raise ModelError(
            f"model.frozen_layers = {count}: the model has {layers} layers, and one must be trained"
        )


def tile_length(hidden: int) -> int:
    """Tokens of a feed-forward tile: the hidden size, so that a tile's activations are no larger than the weights."""
    return max(SHORTEST, hidden)
