"""From examples to what goes through the model at once: trees of shared prefixes, packed to a token budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from longrm.data.joining import Encoded
from longrm.errors import DataError
from longrm.modeling.encoding import plant
from longrm.modeling.shared_prefix import Packed, TokenTree, TreeShape, pack
from longrm.training.curriculum import Curriculum


@dataclass(frozen=True, slots=True)
class Example:
    """A row of training data as token ids: a comparison, or a demonstration with its one completion.

    Attributes:
        id: The row's id.
        tokens: Prompt and responses.
        ranks: Gold ranks of the responses, 1 = best; (1,) for a demonstration.
        digest: Of its context, so that it can be told what was trained on.
        source: The name of the data that it comes from.
        margin: By how much the score of a better response should exceed that of a worse one, where known.
        probability: How sure the gold order is, from 0.5 to 1, where known.
    """

    id: str
    tokens: Encoded
    ranks: tuple[int, ...]
    digest: str
    source: str = ""
    margin: float | None = None
    probability: float | None = None

    @property
    def size(self) -> int:
        """Tokens of the prompt and of all responses."""
        return self.tokens.size


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of a step that goes through the model at once.

    Attributes:
        packed: The token trees; their branches are the responses of the examples, in order.
        examples: Whose responses they are.
        weight: Its share of the step; the weights of a step sum to 1.
    """

    packed: Packed
    examples: Sequence[Example]
    weight: float

    def response_targets(self) -> list[list[int]]:
        """For every response, the indices of its tokens in the packed sequence.

        A branch may begin with the rest of a prompt, whose tokens are no part of the response.
        """
        lengths = [length for example in self.examples for length in example.tokens.written]
        ends = (end for _, _, end in self.packed.layout.branches())
        return [list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True)]


@dataclass(frozen=True, slots=True)
class Step:
    """What one optimizer step reads.

    Attributes:
        micro_batches: Its parts, where several processes share a step those of this process.
        tokens: Of the whole step.
        length: Tokens of its longest prompt.
        digests: Of the contexts it reads.
    """

    micro_batches: Sequence[MicroBatch]
    tokens: int
    length: int
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of every step a process reads.

    Attributes:
        index: Of the part, counted from 0.
        parts: How many there are.
    """

    index: int = 0
    parts: int = 1


WHOLE = Share()
"""A step that one process reads alone."""


class Objective(Protocol):
    """What training needs to know of what it minimizes.

    Attributes:
        chance: The loss of a model that knows nothing, where there is such a loss.
    """

    chance: float | None

    def select(self, example: Example) -> Example:
        """The example with the responses that the loss reads."""

    def weight(self, example: Example) -> float:
        """What the example counts in the mean over a step."""

    def loss(self, model: Any, micro: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        """The weighted mean over the examples of a micro-batch, and figures worth logging."""


class Source(Protocol):
    """Examples for every step."""

    def batch(self, step: int, length: int | None) -> list[Example]:
        """The examples of a step, counted from 0, at the curriculum's length if there is one."""


class Batches:
    """The steps of a training; each a pure function of its number.

    Args:
        source: Whose examples they are made of.
        objective: What is minimized.
        budget: Tokens of a micro-batch; a longer example stands alone.
        limit: Tokens that the model reads.
        curriculum: Lengths of generated data.
        share: What this process reads of every step.
    """

    def __init__(
        self,
        source: Source,
        objective: Objective,
        *,
        budget: int,
        limit: int,
        curriculum: Curriculum | None,
        share: Share = Share(),
    ) -> None:
        self._source = source
        self._objective = objective
        self._budget = budget
        self._limit = limit
        self._curriculum = curriculum
        self._share = share

    def prepare(self, step: int) -> Step:
        """Draws and packs the examples of a step, counted from 0.

        Raises:
            DataError: An example is longer than the model reads; nothing is cut.
        """
        length = self._curriculum.length(step) if self._curriculum else None
        examples = [self._objective.select(example) for example in self._source.batch(step, length)]
        for example in examples:
            if example.tokens.longest > self._limit:
                raise DataError(
                    f"'{example.id}' has {example.tokens.longest} tokens and the model reads {self._limit}; leave it "
                    "out, or raise max_position_embeddings in the model's config.json"
                )
        digests = tuple(dict.fromkeys(example.digest for example in examples))
        longest = max(len(example.tokens.prompt) for example in examples)
        planted = sorted(_planted(examples, self._budget), key=_size_and_shape)
        tokens = sum(one.shape.tokens for one in planted)
        return Step(self._parts(planted), tokens, longest, digests)

    def _parts(self, planted: Sequence["_Planted"]) -> list[MicroBatch]:
        """The micro-batches of this process, as many as the other processes have.

        Under ZeRO all processes take part in every forward pass, so one with fewer repeats the smallest tree of the
        step, which then counts nothing.
        """
        total = sum(self._objective.weight(own) for one in planted for own in one.examples)
        filled = [_fill(hand, self._budget) for hand in _deal(planted, self._share.parts)]
        own = [self._micro_batch(held, total) for held in filled[self._share.index]]
        idle = replace(self._micro_batch(planted[-1:], total), weight=0.0)
        return own + [idle] * (max(map(len, filled)) - len(own))

    def _micro_batch(self, held: Sequence["_Planted"], total: float) -> MicroBatch:
        own = [example for planted in held for example in planted.examples]
        weight = sum(map(self._objective.weight, own)) / total
        return MicroBatch(pack([planted.tree for planted in held]), own, weight)


@dataclass(frozen=True, slots=True)
class _Planted:
    """A tree and the examples whose responses are its branches, in order."""

    tree: TokenTree
    examples: Sequence[Example]

    @property
    def shape(self) -> TreeShape:
        return TreeShape(len(self.tree.prefix), tuple(map(len, self.tree.branches)))


def _planted(examples: Sequence[Example], budget: int) -> Iterator[_Planted]:
    """Makes trees of examples, each of them whole in one tree; prompts that begin alike stand side by side."""
    ordered = sorted(examples, key=lambda example: list(example.tokens.prompt))
    rest = iter(ordered)
    for tree in plant([example.tokens for example in ordered], budget):
        own: list[Example] = []
        while sum(len(example.tokens.responses) for example in own) < len(tree.branches):
            own.append(next(rest))
        yield _Planted(tree, own)


def _deal(planted: Sequence[_Planted], hands: int) -> list[list[_Planted]]:
    """Deals trees, given the largest first, each to the hand that holds the fewest tokens."""
    dealt: list[list[_Planted]] = [[] for _ in range(hands)]
    held = [0] * hands
    for one in planted:
        least = held.index(min(held))
        dealt[least].append(one)
        held[least] += one.shape.tokens
    return dealt


def _fill(planted: Sequence[_Planted], budget: int) -> list[list[_Planted]]:
    """Fills micro-batches with trees, given the largest first, each into the first that has room for it."""
    filled: list[list[_Planted]] = []
    room: list[int] = []
    for one in planted:
        size = one.shape.tokens
        at = next((index for index, left in enumerate(room) if size <= left), len(room))
        if at == len(room):
            filled.append([])
            room.append(budget)
        filled[at].append(one)
        room[at] -= size
    return filled


def _size_and_shape(planted: _Planted) -> tuple[int, int, tuple[int, ...]]:
    """Trees of one shape come together: side by side they are computed as a batch."""
    shape = planted.shape
    return -shape.tokens, shape.prefix, shape.branches
