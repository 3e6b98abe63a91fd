"""Token trees and the layout of packed sequences: sizes, positions and indices, without torch.

Everything that training, scoring and `longrm plan` must agree on before a tensor exists is here.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count, repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from longrm.errors import ModelError

if TYPE_CHECKING:  # the help of `longrm train` reads settings that use this module, and loads no tokenizer
    from longrm.data.joining import Encoded

SHARED_PREFIX = "longrm_shared_prefix"
"""The `attn_implementation` of packed sequences over shared prefixes."""

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
    """Token ids of a node, and the trees that continue it; without branches it is a leaf.

        TokenTree(prompt, [response, response])                                        # one prompt, its responses
        TokenTree(context, [TokenTree(order, judgments) for order, judgments in ...])  # both orders of a comparison
        TokenTree(start, [closing, TokenTree(turn, [closing, ...])])                   # a score after every turn

    Every path from the root to a leaf is the text of one sequence. A branch that is a leaf may be given by its tokens
    alone. Cached keys and values of the root are shared only with trees of the same salt.
    """

    tokens: Sequence[int]
    branches: "Sequence[TokenTree | Sequence[int]]" = ()
    salt: str = ""

    def nodes(self) -> Iterator[tuple[Sequence[int], int]]:
        """Yields the tokens of every node and the number of its parent, depth-first; the root's is -1."""
        open_nodes: list[tuple[TokenTree | Sequence[int], int]] = [(self, -1)]
        for number in count():
            if not open_nodes:
                return
            node, parent = open_nodes.pop()
            tokens, branches = (node.tokens, node.branches) if isinstance(node, TokenTree) else (node, ())
            yield tokens, parent
            open_nodes += [(branch, number) for branch in reversed(branches)]

    @property
    def shape(self) -> "TreeShape":
        """The lengths of its nodes."""
        (root, _), *rest = self.nodes()
        return TreeShape(
            len(root), tuple(len(ids) for ids, _ in rest), 0, tuple(parent for _, parent in rest)
        )

    @property
    def size(self) -> int:
        """Tokens of all nodes."""
        return sum(len(ids) for ids, _ in self.nodes())


def seen_pairs(before: int, tokens: int, window: int | None) -> int:
    """Pairs of a token and one that it sees, itself included, among `tokens` that follow on `before` others."""
    if window is None:
        window = before + tokens
    full = min(tokens, max(0, window - before))  # tokens that see all before them
    return full * before + full * (full + 1) // 2 + (tokens - full) * window


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The lengths of the nodes of a tree in tokens: `TreeShape(500, (61, 37))` is a prefix with two branches.

    `branches` are all nodes below the root, depth-first. `parents` has the number of the parent of each, where 0 is the
    root and n the n-th of the branches; it is empty if the root is the parent of all.

    `cached` tokens precede the root. Their keys and values are cached: positions count them, and the packed sequence
    does not contain them.
    """

    prefix: int
    branches: tuple[int, ...] = ()
    cached: int = 0
    parents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert not self.parents or len(self.parents) == len(self.branches)
        if not any(self.parents):  # one form of every shape, as shapes are compared and counted
            object.__setattr__(self, "parents", ())

    @property
    def nodes(self) -> list[tuple[int, int, int]]:
        """The length of every node, the number of its parent (-1 for the root), and the tokens above it."""
        nodes = [(self.prefix, -1, self.cached)]
        for length, parent in zip(self.branches, self.parents or repeat(0), strict=False):
            above, _, before = nodes[parent]
            nodes.append((length, parent, before + above))
        return nodes

    @property
    def leaves(self) -> list[int]:
        """The length of every leaf's sequence, from the first token of the root to the last of the leaf."""
        nodes = self.nodes
        inner = {parent for _, parent, _ in nodes}
        return [
            before + length - self.cached
            for number, (length, _, before) in enumerate(nodes)
            if number not in inner
        ]

    @property
    def forks(self) -> bool:
        """Whether a node has several branches; otherwise the tree is a plain causal sequence."""
        return len(self.leaves) > 1

    def pairs(self, window: int | None = None) -> int:
        """Pairs of a token of the tree and one that it sees, itself included; cached tokens are not counted."""
        return sum(seen_pairs(before - self.cached, length, window) for length, _, before in self.nodes)

    @property
    def branch_tokens(self) -> int:
        """Tokens of all nodes below the root."""
        return sum(self.branches)

    @property
    def tokens(self) -> int:
        """Tokens of the tree in the packed sequence: every node is counted once."""
        return self.prefix + self.branch_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest separate sequence."""
        return self.cached + max(self.leaves)


class Node(NamedTuple):
    """Where a node of a tree is in the packed sequence: tokens `begin` to `end`, all its descendants up to `reach`."""

    begin: int
    end: int
    parent: int | None  # its number among all nodes; None for a root
    position: int  # of its first token
    reach: int  # one past the last token of its last descendant; equal to `end` for a leaf


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The shapes of the trees of one packed sequence, in order.

    The nodes of a tree are written depth-first, so that all descendants of a node follow it directly:

    tree        p0 p1 p2 p3 +- a0 a1 +- c0
                            |        +- d0 d1
                            +- b0 b1 b2
    tokens      p0 p1 p2 p3 | a0 a1 | c0 | d0 d1 | b0 b1 b2
    positions    0  1  2  3 |  4  5 |  6 |  6  7 |  4  5  6

    A token sees the nodes above its own, and its own up to itself. So the key of a token of a node is seen by what
    follows it, up to the node's `reach`.

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

    def nodes(self, *, joined: bool = False) -> list[Node]:
        """All nodes of all trees in the order of their tokens, parents before their branches.

        With `joined`, a node and its only branch count as one.
        """
        found: list[Node] = []
        begin = 0
        for tree in self.trees:
            numbers: list[int] = []  # in `found`, of the nodes of the tree
            nodes = tree.nodes
            branches = Counter(parent for _, parent, _ in nodes)
            for length, parent, position in nodes:
                end = begin + length
                above = None if parent < 0 else numbers[parent]
                if joined and above is not None and branches[parent] == 1:
                    numbers.append(above)
                    found[above] = found[above]._replace(end=end, reach=end)
                else:
                    numbers.append(len(found))
                    found.append(Node(begin, end, above, position, end))
                begin = end
        for node in reversed(found):
            if node.parent is not None and found[node.parent].reach < node.reach:
                found[node.parent] = found[node.parent]._replace(reach=node.reach)
        return found

    def leaves(self) -> list[Node]:
        """The nodes without branches, in order: sequences are scored at their ends."""
        return [node for node in self.nodes() if node.reach == node.end]

    def paths(self) -> list[list[range]]:
        """Where the tokens of every leaf's sequence are: those of the root first, those of the leaf last."""
        nodes = self.nodes()
        above: list[list[range]] = []  # and the node itself
        for node in nodes:
            before = [] if node.parent is None else above[node.parent]
            above.append([*before, range(node.begin, node.end)])
        return [path for node, path in zip(nodes, above, strict=True) if node.reach == node.end]

    def branch_ends(self) -> list[int]:
        """The index of the last token of every leaf."""
        return [node.end - 1 for node in self.leaves()]

    def written_tokens(self, written: Sequence[Sequence[int]]) -> list[list[int]]:
        """Indices of some tokens of every leaf's sequence, given as offsets from its end.

        They may be in nodes above the leaf, and the leaf may begin with the rest of a prompt.
        """
        found = []
        for path, own in zip(self.paths(), written, strict=True):
            deepest = path[-1]
            if min(own, default=-1) >= -len(deepest):
                found.append([deepest.stop + offset for offset in own])
            else:
                places = [*chain.from_iterable(path)]
                found.append([places[offset] for offset in own])
        return found

    def predictors(self, targets: Sequence[int]) -> list[int]:
        """The index whose hidden state predicts each target: the token before it *in its own sequence*.

        The first token of every node is predicted by the last token of its parent, not by its neighbor in the packed
        sequence, which ends another branch. The first token of a tree has no predictor.
        """
        nodes = self.nodes()
        last = {node.begin: nodes[node.parent].end - 1 for node in nodes if node.parent is not None}
        roots = set(self.roots())
        for target in targets:
            if target in roots or not 0 <= target < self.tokens:
                raise ValueError(f"token {target} of {self.tokens} has no predictor in this layout")
        return [last.get(target, target - 1) for target in targets]

    def position_ids(self) -> list[int]:
        """Positions of all S tokens: those of a node continue its parent's, those of a root begin after the cache.

        So rotary embeddings see each node directly behind its parent, as in a separate sequence.
        """
        return [
            at for node in self.nodes() for at in range(node.position, node.position + node.end - node.begin)
        ]


def build_trees(items: "Sequence[Encoded]", budget: float = math.inf) -> list[TokenTree]:
    """Makes token trees whose leaves are all responses of all items, in order.

    Neighboring items of the same salt become one tree where their prompts share at least half of their length: several
    questions about a document, both orders of a comparison; or where one prompt continues the other: the steps of a
    trajectory. What they share is a node, with a branch for the rest of each prompt. A tree of several items has at
    most `budget` tokens.
    """
    from longrm.data.joining import common_prefix

    runs: list[list[tuple[Encoded, int]]] = []  # each item with what it shares with the one before it
    size = 0
    for whole in items:
        # The steps of one item stay together, whatever the budget.
        item, *later = whole.parts()
        shared, joins = 0, False
        if runs:
            last, _ = runs[-1][-1]
            shared = common_prefix(last.prompt, item.prompt) if item.salt == last.salt else 0
            continues = shared > 0 and shared == len(last.prompt)
            much = 2 * shared >= max(len(last.prompt), len(item.prompt), 1)
            joins = (continues or much) and size + whole.size - shared <= budget
        if not joins:
            runs.append([])
            size = shared = 0
        runs[-1].append((item, shared))
        size += whole.size - shared
        for step in later:
            runs[-1].append((step, min(len(runs[-1][-1][0].prompt), len(step.prompt))))
    return [_tree_of(run) for run in runs]


def _tree_of(run: "Sequence[tuple[Encoded, int]]") -> TokenTree:
    """The tree of items, each with the tokens that it shares with the one before it; all share some."""
    (first, _), *others = run
    branches: list[TokenTree | Sequence[int]] = [*first.responses]
    # The nodes of the last item, from the root on: where each begins, and its branches.
    path = [(0, TokenTree(first.prompt, branches, first.salt), branches)]
    for item, shared in others:
        while path[-1][0] >= shared:
            path.pop()
        begin, node, branches = path.pop()
        if shared < begin + len(node.tokens):  # a prompt ends or forks within the node
            below = TokenTree(node.tokens[shared - begin :], branches)
            branches = [below]
            node = TokenTree(node.tokens[: shared - begin], branches, node.salt)
            if path:
                path[-1][2][-1] = node
        path.append((begin, node, branches))
        if shared < len(item.prompt):
            own: list[TokenTree | Sequence[int]] = []
            node = TokenTree(item.prompt[shared:], own)
            branches.append(node)
            path.append((shared, node, own))
        path[-1][2].extend(item.responses)
    return path[0][1]


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
