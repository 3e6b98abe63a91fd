"""The layout of a shared prefix: a prompt is encoded once, whatever the number of its responses.

A *tree* is a prefix and its branches. Several trees lie in one sequence, `[tree 1 | tree 2 | ...]`, where a
tree is `[prefix | branch 1 | branch 2 | ...]`. Positions restart at the end of the prefix for every branch,
and a branch sees its prefix and itself, so that every branch is computed as if it followed the prefix alone.

Letters: S tokens of the packed sequence, P tokens of a prefix, R tokens of a branch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Token ids of a prefix and of the branches that continue it.

    A branch is usually one response. Where several questions share a document, the prefix ends where the
    questions part, and a branch is the rest of a question followed by a response.
    """

    prefix: Sequence[int]
    branches: Sequence[Sequence[int]]

    @property
    def size(self) -> int:
        """Tokens of the prefix and of all branches."""
        return len(self.prefix) + sum(map(len, self.branches))


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The lengths, in tokens, of a prefix and of its branches."""

    prefix: int
    branches: tuple[int, ...]

    @property
    def branch_tokens(self) -> int:
        """Tokens of all branches together."""
        return sum(self.branches)

    @property
    def tokens(self) -> int:
        """Tokens of the tree: each prefix token is counted once."""
        return self.prefix + self.branch_tokens


@dataclass(frozen=True, slots=True)
class Layout:
    """The shapes of the trees of one packed sequence, in order. Hashable; knows no tensor."""

    trees: tuple[TreeShape, ...]

    @property
    def tokens(self) -> int:
        """S, the length of the packed sequence."""
        return sum(tree.tokens for tree in self.trees)

    def runs(self) -> Iterator[tuple[TreeShape, int]]:
        """Consecutive trees of one shape, with their number: they can be computed as a batch."""
        for shape, same in groupby(self.trees):
            yield shape, sum(1 for _ in same)

    def branches(self) -> Iterator[tuple[int, int, int]]:
        """For every branch, three indices: its prefix's last token, its first token, one past its last."""
        start = 0
        for tree in self.trees:
            fork = start + tree.prefix
            begin = fork
            for length in tree.branches:
                yield fork - 1, begin, begin + length
                begin += length
            start = begin

    def branch_ends(self) -> list[int]:
        """The index of the last token of every branch."""
        return [end - 1 for _, _, end in self.branches()]

    def branch_roots(self) -> list[int]:
        """The index of the first token of every branch's prefix."""
        return [root for root, tree in zip(self._roots(), self.trees, strict=True) for _ in tree.branches]

    def branch_tokens(self) -> list[int]:
        """The indices of all branch tokens, branch after branch."""
        return [index for _, begin, end in self.branches() for index in range(begin, end)]

    def predictors(self, targets: Sequence[int]) -> list[int]:
        """The index whose hidden state predicts each target: the token before it *in its own sequence*.

        The first token of every branch is predicted by the last token of the prefix.

        Raises:
            ValueError: a target is the first token of a prefix, which nothing predicts, or lies outside.
        """
        forks = {begin: last for last, begin, _ in self.branches()}
        roots = set(self._roots())
        for target in targets:
            if target in roots or not 0 <= target < self.tokens:
                raise ValueError(f"token {target} of {self.tokens} has no predictor in this layout")
        return [forks.get(target, target - 1) for target in targets]

    def position_ids(self) -> list[int]:
        """Positions from 0 within every prefix; every branch continues its prefix's."""
        positions: list[int] = []
        for tree in self.trees:
            positions.extend(range(tree.prefix))
            for length in tree.branches:
                positions.extend(range(tree.prefix, tree.prefix + length))
        return positions

    def _roots(self) -> Iterator[int]:
        start = 0
        for tree in self.trees:
            yield start
            start += tree.tokens


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One packed sequence, ready for a model whose attention is `longrm_shared_prefix`."""

    input_ids: Int[Tensor, "1 S"]
    position_ids: Int[Tensor, "1 S"]
    layout: Layout

    def to(self, device: torch.device | str) -> "Packed":
        """The same sequence on a device."""
        return Packed(self.input_ids.to(device), self.position_ids.to(device), self.layout)

    def scored_tokens(self, padding: int | None) -> Int[Tensor, " branches"]:
        """The index at which every branch is scored: where transformers reads the score of its sequence.

        That is the last token that is not padding, even of a sequence that nothing was added to. Where a branch is
        padding throughout, the token lies in its prefix, and where that is too, it is the prefix's first.

        Args:
            padding: The `pad_token_id` of the model's config; with None every branch is scored at its last token.
        """
        ids = self.input_ids[0]
        last = torch.tensor(self.layout.branch_ends(), device=ids.device)
        if padding is None:
            return last
        forks, begins, _ = zip(*self.layout.branches(), strict=True)
        fork, begin, root = (
            torch.tensor(indices, device=ids.device)
            for indices in (forks, begins, self.layout.branch_roots())
        )
        places = torch.arange(len(ids), device=ids.device)
        latest = torch.where(ids == padding, -1, places).cummax(0).values
        return torch.where(latest[last] >= begin, latest[last], torch.maximum(latest[fork], root))


def pack(trees: Sequence[TokenTree]) -> Packed:
    """Lays trees in one sequence.

    Trees of equal shape that stand side by side are computed as a batch: sort by shape where you can.

    Raises:
        ValueError: there is no tree, or a prefix or branch is empty (names which).
    """
    if not trees:
        raise ValueError("nothing to pack: give at least one tree")
    for number, tree in enumerate(trees):
        if not tree.prefix:
            raise ValueError(f"tree {number} has an empty prefix: give it at least one token")
        if not tree.branches:
            raise ValueError(f"tree {number} has no branch: give it at least one response")
        for index, branch in enumerate(tree.branches):
            if not branch:
                raise ValueError(f"branch {index} of tree {number} is empty: it needs a token to score")
    layout = Layout(tuple(TreeShape(len(t.prefix), tuple(len(b) for b in t.branches)) for t in trees))
    ids = [token for tree in trees for part in (tree.prefix, *tree.branches) for token in part]
    return Packed(torch.tensor([ids]), torch.tensor([layout.position_ids()]), layout)
