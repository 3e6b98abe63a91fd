"""From messages to token trees: which tokens are encoded once, and for whom."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from longrm.data.tokenizing import Tokenizer
from longrm.modeling.shared_prefix import TokenTree
from longrm.types import Message


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a prompt and of every response to it, tokenized apart."""

    prompt: Sequence[int]
    responses: Sequence[Sequence[int]]

    @property
    def longest(self) -> int:
        """Tokens of the prompt and its longest response: what the model must be able to read."""
        return len(self.prompt) + max(map(len, self.responses))

    @property
    def size(self) -> int:
        """Tokens of the prompt and of all responses."""
        return len(self.prompt) + sum(map(len, self.responses))


def encode(
    tokenizer: Tokenizer, prompt: Sequence[Message], responses: Iterable[Sequence[Message]]
) -> Encoded:
    """Encodes a prompt and its responses.

    Raises:
        DataError: A response is empty, or the chat template cannot render the messages.
    """
    return Encoded(tokenizer.prompt_ids(prompt), [tokenizer.response_ids(prompt, one) for one in responses])


def plant(items: Sequence[Encoded], budget: float = math.inf) -> list[TokenTree]:
    """Makes token trees whose branches are all responses of all items, in order.

    Neighbors whose prompts begin alike for at least half of their length become one tree, where that saves
    tokens: its prefix is what they share (a document), and a branch is the rest of a prompt (a question) and a
    response.

    Args:
        items: Prompts and their responses.
        budget: A tree that holds several items has no more tokens than this.
    """
    runs: list[tuple[list[Encoded], int]] = []
    for item in items:
        alone = [item], len(item.prompt)
        if runs:
            run, shared = runs[-1]
            common = min(shared, common_prefix(run[0].prompt, item.prompt))
            alike = 2 * common >= max(len(item.prompt), len(run[0].prompt))
            size = _size([*run, item], common)
            if alike and size <= budget and size < _size(run, shared) + _size(*alone):
                runs[-1] = [*run, item], common
                continue
        runs.append(alone)
    return [_tree(run, shared) for run, shared in runs]


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


Item = TypeVar("Item", bound=_Sized)


def within_budget(items: Iterable[Item], budget: int) -> Iterator[list[Item]]:
    """Cuts a series into runs of at most `budget` tokens, as its items tell their sizes; a larger one stands alone."""
    run: list[Item] = []
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
    """Tokens of the tree of a run: what a prompt does not share stands in every branch."""
    return shared + sum(len(item.prompt) - shared + len(own) for item in run for own in item.responses)


def _tree(run: Sequence[Encoded], shared: int) -> TokenTree:
    branches = [[*item.prompt[shared:], *response] for item in run for response in item.responses]
    return TokenTree(run[0].prompt[:shared], branches)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """The number of leading tokens that two sequences share, by bisection over slices."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
