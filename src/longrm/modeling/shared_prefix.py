"""The layout of a shared prefix: a prompt is encoded once, whatever the number of its responses.

A *tree* is a prefix and its branches. Several trees lie in one sequence, `[tree 1 | tree 2 | ...]`, where a
tree is `[prefix | branch 1 | branch 2 | ...]`. Positions restart at the end of the prefix for every branch,
and a branch sees its prefix and itself, so that every branch is computed as if it followed the prefix alone.

Letters: S tokens of the packed sequence, P tokens of a prefix, R tokens of a branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from longrm.modeling.shapes import PackedLayout, TokenTree, TreeShape


class KeptOfModels(Protocol):
    """Keys and values that models computed of tokens before these."""

    def of(self, model: Any) -> object:
        """What the attention of one model is handed as `kept`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One packed sequence, ready for a model whose attention is `longrm_shared_prefix`.

    `kept` holds the keys and values of tokens before the prefixes, where the layout says that there are any.
    """

    input_ids: Int[Tensor, "1 S"]
    position_ids: Int[Tensor, "1 S"]
    layout: PackedLayout
    kept: "KeptOfModels | None" = None

    def to(self, device: torch.device | str) -> "Packed":
        """The same sequence on a device."""
        return Packed(self.input_ids.to(device), self.position_ids.to(device), self.layout, self.kept)

    def scored_tokens(self, padding: int | None) -> Int[Tensor, " branches"]:
        """The index at which every branch is scored: where transformers reads the score of its sequence.

        That is the last token that is not padding (the `pad_token_id` of the model's config, if any), even of a
        sequence that nothing was added to. Where a branch is padding throughout, the token lies in its prefix, and
        where that is too, it is the prefix's first.
        """
        ids = self.input_ids[0]
        last = torch.tensor(self.layout.branch_ends(), device=ids.device)
        if padding is None:
            return last
        forks, begins, _ = zip(*self.layout.branches(), strict=True)
        trees = zip(self.layout.roots(), self.layout.trees, strict=True)
        roots = [root for root, tree in trees for _ in tree.branches]
        fork, begin, root = (torch.tensor(places, device=ids.device) for places in (forks, begins, roots))
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
    layout = PackedLayout(tuple(TreeShape(len(t.prefix), tuple(len(b) for b in t.branches)) for t in trees))
    ids = [token for tree in trees for part in (tree.prefix, *tree.branches) for token in part]
    return Packed(torch.tensor([ids]), torch.tensor([layout.position_ids()]), layout)
