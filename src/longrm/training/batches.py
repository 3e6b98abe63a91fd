"""From examples to what goes through the model at once: trees of shared prefixes, packed to a token budget.

Torch is imported where trees are packed; a plan needs no more than their shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from longrm.data.joining import Encoded
from longrm.errors import DataError
from longrm.modeling.shapes import PackedLayout, TokenTree, TreeShape, build_trees
from longrm.training.objectives.spec import Objective
from longrm.training.sampler import Curriculum

if TYPE_CHECKING:
    from torch import Tensor

    from longrm.modeling.shared_prefix import Packed


@dataclass(frozen=True, slots=True)
class Example:
    """A row of training data as token ids: a comparison, or a demonstration with its one completion.

    Attributes:
        ranks: Gold ranks of the responses, 1 = best; (1,) for a demonstration.
        digest: Of its context, for the log of what was trained on.
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
        weight: Its share of the step; the weights of a step sum to 1.
    """

    packed: "Packed"
    examples: Sequence[Example]
    weight: float

    def response_targets(self) -> list[list[int]]:
        """For every response, the indices of its tokens in the packed sequence.

        A branch may begin with the rest of a prompt, whose tokens are no part of the response, and neither are results
        of tools and turns of users within it.
        """
        return self.packed.layout.written_tokens(self._written())

    def response_logprobs(self, model: Any) -> "list[Tensor]":
        """The fp32 log-probabilities of every response's tokens, response by response, of all examples in order."""
        from longrm.modeling.shared_prefix import response_logprobs  # late, for torch

        return response_logprobs(model, self.packed.to(model.device), self._written())

    def _written(self) -> list[Sequence[int]]:
        return [own for example in self.examples for own in example.tokens.written]


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
    """Which of the parts of every step a process reads, counted from 0."""

    index: int = 0
    parts: int = 1


WHOLE = Share()
"""A step that one process reads alone."""


class ExampleSource(Protocol):
    """Examples for every step."""

    def batch(self, step: int, length: int | None) -> list[Example]:
        """The examples of a step, counted from 0, at the curriculum's length if there is one."""


class Batches:
    """The steps of a training; each a pure function of its number.

    Args:
        budget: Tokens of a micro-batch; a longer example stands alone.
        limit: Tokens that the model reads.
    """

    def __init__(
        self,
        source: ExampleSource,
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
        examples = self._examples(step)
        digests = tuple(dict.fromkeys(example.digest for example in examples))
        longest = max(len(example.tokens.prompt) for example in examples)
        trees = self._trees(examples)
        tokens = sum(tree.shape.tokens for tree in trees)
        return Step(self._micro_batches(trees), tokens, longest, digests)

    def layouts(self, step: int) -> list[tuple[PackedLayout, int]]:
        """The layout of every micro-batch of a step, and how many examples it holds; nothing is packed.

        Raises:
            DataError: An example is longer than the model reads; nothing is cut.
        """
        filled = _fill(self._trees(self._examples(step)), self._budget)
        return [
            (PackedLayout(tuple(tree.shape for tree in trees)), sum(len(tree.examples) for tree in trees))
            for trees in filled
        ]

    def _examples(self, step: int) -> list[Example]:
        length = self._curriculum.length(step) if self._curriculum else None
        examples = [self._objective.select(example) for example in self._source.batch(step, length)]
        for example in examples:
            if example.tokens.longest > self._limit:
                raise DataError(
                    f"'{example.id}' has {example.tokens.longest} tokens and the model reads {self._limit}; leave it "
                    "out, or raise max_position_embeddings in the model's config.json"
                )
        return examples

    def _trees(self, examples: Sequence[Example]) -> list["_ExampleTree"]:
        """Each example whole in one tree, where prompts that begin alike stand side by side; the largest tree first.

        Trees of one shape come together, for side by side they are computed as a batch.
        """
        ordered = sorted(examples, key=lambda example: list(example.tokens.prompt))
        rest = iter(ordered)
        trees: list[_ExampleTree] = []
        for tree in build_trees([example.tokens for example in ordered], self._budget):
            own: list[Example] = []
            while sum(len(example.tokens.responses) for example in own) < len(tree.branches):
                own.append(next(rest))
            trees.append(_ExampleTree(tree, own))
        return sorted(trees, key=lambda one: (-one.shape.tokens, one.shape.prefix, one.shape.branches))

    def _micro_batches(self, trees: Sequence["_ExampleTree"]) -> list[MicroBatch]:
        """The micro-batches of this process, as many as the other processes have.

        Under ZeRO all processes take part in every forward pass, so one with fewer repeats the smallest tree of the
        step, which then counts nothing.
        """
        total = sum(self._objective.weight(own) for tree in trees for own in tree.examples)
        filled = [_fill(part, self._budget) for part in _share_out(trees, self._share.parts)]
        own = [self._micro_batch(held, total) for held in filled[self._share.index]]
        idle = replace(self._micro_batch(trees[-1:], total), weight=0.0)
        return own + [idle] * (max(map(len, filled)) - len(own))

    def _micro_batch(self, trees: Sequence["_ExampleTree"], total: float) -> MicroBatch:
        from longrm.modeling.shared_prefix import pack

        examples = [example for tree in trees for example in tree.examples]
        weight = sum(map(self._objective.weight, examples)) / total
        return MicroBatch(pack([tree.tree for tree in trees]), examples, weight)


@dataclass(frozen=True, slots=True)
class _ExampleTree:
    """A tree and the examples whose responses are its branches, in order."""

    tree: TokenTree
    examples: Sequence[Example]

    @property
    def shape(self) -> TreeShape:
        return TreeShape(len(self.tree.prefix), tuple(map(len, self.tree.branches)))


def _share_out(trees: Sequence[_ExampleTree], parts: int) -> list[list[_ExampleTree]]:
    """Gives trees, the largest first, each to the part that holds the fewest tokens."""
    shared: list[list[_ExampleTree]] = [[] for _ in range(parts)]
    tokens = [0] * parts
    for tree in trees:
        least = tokens.index(min(tokens))
        shared[least].append(tree)
        tokens[least] += tree.shape.tokens
    return shared


def _fill(trees: Sequence[_ExampleTree], budget: int) -> list[list[_ExampleTree]]:
    """Fills micro-batches with trees, given the largest first, each into the first that has room for it."""
    filled: list[list[_ExampleTree]] = []
    room: list[int] = []
    for tree in trees:
        size = tree.shape.tokens
        at = next((index for index, left in enumerate(room) if size <= left), len(room))
        if at == len(room):
            filled.append([])
            room.append(budget)
        filled[at].append(tree)
        room[at] -= size
    return filled
