"""Makes token trees of encoded prompts and responses: which tokens the model reads once, and for whom."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from longrm.data.joining import Encoded, common_prefix
from longrm.errors import DataError
from longrm.modeling.shapes import TokenTree

if TYPE_CHECKING:  # trees are planned without torch
    from longrm.modeling.heads import TransformersModel


def check_embedded(ids: Iterable[int], model: "TransformersModel") -> None:
    """Refuses tokens that a tokenizer was given behind those that the model has embeddings for.

    Raises:
        DataError: There is such a token. On a GPU it would end the process.
    """
    rows = model.get_input_embeddings().num_embeddings
    highest = max(ids, default=0)
    if highest >= rows:
        raise DataError(f"the token {highest:,} has no place in the model's {rows:,} embeddings: resize them")


def build_trees(items: Sequence[Encoded], budget: float = math.inf) -> list[TokenTree]:
    """Makes token trees whose branches are all responses of all items, in order.

    Neighbors whose prompts begin alike for at least half of their length become one tree, where that saves
    tokens: its prefix is what they share (a document), and a branch is the rest of a prompt (a question) and a
    response. A tree that holds several items has no more tokens than the budget, and they have one salt.
    """
    runs: list[tuple[list[Encoded], int]] = []
    for item in items:
        alone = [item], len(item.prompt)
        if runs:
            run, shared = runs[-1]
            common = min(shared, common_prefix(run[0].prompt, item.prompt))
            alike = item.salt == run[0].salt and 2 * common >= max(len(item.prompt), len(run[0].prompt))
            size = _size([*run, item], common)
            if alike and size <= budget and size < _size(run, shared) + _size(*alone):
                runs[-1] = [*run, item], common
                continue
        runs.append(alone)
    trees = []
    for run, shared in runs:
        branches = [[*item.prompt[shared:], *response] for item in run for response in item.responses]
        trees.append(TokenTree(run[0].prompt[:shared], branches, run[0].salt))
    return trees


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


SizedItem = TypeVar("SizedItem", bound=_Sized)


def within_budget(items: Iterable[SizedItem], budget: int) -> Iterator[list[SizedItem]]:
    """Cuts a series into runs of at most `budget` tokens by the sizes of its items; a larger one stands alone."""
    run: list[SizedItem] = []
    tokens = 0
    for item in items:
        if run and tokens + item.size > budget:
            yield run
            run, tokens = [], 0
        run.append(item)
        tokens += item.size
    if run:
        yield run


def _size(run: Sequence[Encoded], shared: int) -> int:
    """Counts the tokens of a run's tree: what a prompt does not share stands in every branch."""
    return shared + sum(len(item.prompt) - shared + len(own) for item in run for own in item.responses)
