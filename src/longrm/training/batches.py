"""From examples to what goes through the model at once: trees of shared prefixes, packed to a token budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from longrm.errors import DataError
from longrm.modeling.encoding import Encoded, plant
from longrm.modeling.shared_prefix import Packed, TokenTree, TreeShape, pack
from longrm.training.curriculum import Curriculum


@dataclass(frozen=True, slots=True)
class Example:
    """A row of training data as token ids: a comparison, or a demonstration with its one completion.

    Attributes:
        id: The row's id.
        tokens: Prompt and responses, tokenized apart.
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
        lengths = [len(response) for example in self.examples for response in example.tokens.responses]
        ends = (end for _, _, end in self.packed.layout.branches())
        return [list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True)]


@dataclass(frozen=True, slots=True)
class Step:
    """What one optimizer step reads.

    Attributes:
        micro_batches: Its parts.
        length: Tokens of its longest prompt.
        digests: Of the contexts it reads.
    """

    micro_batches: Sequence[MicroBatch]
    length: int
    digests: tuple[str, ...]


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
    """

    def __init__(
        self, source: Source, objective: Objective, *, budget: int, limit: int, curriculum: Curriculum | None
    ) -> None:
        self._source = source
        self._objective = objective
        self._budget = budget
        self._limit = limit
        self._curriculum = curriculum

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
        return Step(self._parts(examples), longest, digests)

    def _parts(self, examples: Sequence[Example]) -> list[MicroBatch]:
        """Fills micro-batches with trees, the largest first, each into the first that has room for it."""
        total = sum(map(self._objective.weight, examples))
        filled: list[list[_Planted]] = []
        room: list[int] = []
        for planted in sorted(_planted(examples, self._budget), key=_size_and_shape):
            size = planted.shape.tokens
            at = next((index for index, left in enumerate(room) if size <= left), len(room))
            if at == len(room):
                filled.append([])
                room.append(self._budget)
            filled[at].append(planted)
            room[at] -= size
        parts = []
        for held in filled:
            own = [example for planted in held for example in planted.examples]
            weight = sum(map(self._objective.weight, own)) / total
            parts.append(MicroBatch(pack([planted.tree for planted in held]), own, weight))
        return parts


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


def _size_and_shape(planted: _Planted) -> tuple[int, int, tuple[int, ...]]:
    """Trees of one shape come together: side by side they are computed as a batch."""
    shape = planted.shape
    return -shape.tokens, shape.prefix, shape.branches
