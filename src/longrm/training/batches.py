"""From examples to micro-batches: trees of shared prefixes, packed to a token budget.

Torch is imported where trees are packed; `longrm plan` needs only their shapes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

from longrm.data.training_rows import Example
from longrm.errors import DataError, TrainingError
from longrm.modeling.shapes import PackedLayout, TokenTree, TreeShape, build_trees
from longrm.training.objectives import Objective
from longrm.training.sampling import Curriculum

if TYPE_CHECKING:
    from torch import Tensor

    from longrm.modeling.shared_prefix import Packed


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of a step that goes through the model at once."""

    packed: "Packed"  # the token trees; their leaves are the responses of the examples, in order
    examples: Sequence[Example]
    weight: float  # its share of the step; those of a step sum to 1 if all of its examples have a gradient

    def response_logprobs(self, model: Any, temperature: float = 1.0) -> "list[Tensor]":
        """The fp32 log-probabilities of every response's tokens, response by response, of all examples in order."""
        from longrm.modeling.shared_prefix import response_logprobs

        return response_logprobs(model, self.packed.to(model.device), self.written, temperature)

    @property
    def written(self) -> list[Sequence[int]]:
        """For every leaf, the places of the tokens that the model wrote, without tool results and user turns."""
        return [own for example in self.examples for own in example.tokens.completion_tokens]


@dataclass(frozen=True, slots=True)
class Step:
    """The data of one optimizer step."""

    micro_batches: Sequence[MicroBatch]  # of several processes, those of this process
    tokens: int  # of the whole step
    length: int  # tokens of its longest prompt
    digests: tuple[str, ...]  # of its contexts

    @property
    def examples(self) -> list[Example]:
        """The examples that this process reads."""
        return [example for micro in self.micro_batches for example in micro.examples]


class ExampleSource(Protocol):
    """Examples for every step."""

    def batch(self, step: int, length: int | None) -> list[Example]:
        """The examples of a step, counted from 0, at the curriculum's length if there is one."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The steps of a training; each a pure function of its number."""

    source: ExampleSource
    objective: Objective
    _: KW_ONLY
    budget: int  # tokens of a micro-batch; a longer example is a micro-batch of its own
    limit: int  # the model's context window in tokens
    curriculum: Curriculum | None = None
    dp_rank: int = 0  # which share of every step this process reads: its data-parallel rank
    dp_size: int = 1
    pair_cost: float = 0.0  # operations of attention for two tokens, over those of all matrices for one
    # Whether processes wait for each other in every micro-batch: weights or gradients are sharded.
    aligned: bool = False

    def prepare(self, step: int) -> Step:
        """Draws and packs the examples of a step, counted from 0."""
        examples = self._examples(step)
        total = sum(map(self.objective.weight, examples))
        trees = self._trees(
            [example for example in examples if self.objective.learns(example)] or examples[:1]
        )
        return Step(
            micro_batches=self._micro_batches(trees, total),
            tokens=sum(tree.size for tree, _ in trees),
            length=max(len(example.tokens.prompt) for example in examples),
            digests=tuple(dict.fromkeys(example.digest for example in examples)),
        )

    def layouts(self, step: int) -> list[tuple[PackedLayout, int]]:
        """The layout of every micro-batch of a step, and the number of its examples, without packing any."""
        trees = self._trees(self._examples(step))
        shapes = [tree.shape for tree, _ in trees]
        return [
            (
                PackedLayout(tuple(shapes[index] for index in held)),
                sum(len(trees[index][1]) for index in held),
            )
            for held in _fill(range(len(trees)), shapes, self.budget)
        ]

    def _examples(self, step: int) -> list[Example]:
        length = self.curriculum.length(step) if self.curriculum else None
        examples = [self.objective.select(example) for example in self.source.batch(step, length)]
        for example in examples:
            if example.tokens.longest > self.limit:
                raise DataError(
                    f"'{example.id}' has {example.tokens.longest} tokens and the context window is {self.limit}: "
                    "remove the row, or raise max_position_embeddings in the model's config.json"
                )
        return examples

    def _trees(self, examples: Sequence[Example]) -> list["_ExampleTree"]:
        """Trees of the examples, the largest first; prompts that begin alike share a tree."""
        # Sorted by prompt, examples of one document are neighbors, where build_trees looks for shared prefixes.
        ordered = sorted(examples, key=lambda example: list(example.tokens.prompt))
        remaining = iter(ordered)
        trees: list[_ExampleTree] = []
        for tree in build_trees([example.tokens for example in ordered], self.budget):
            own: list[Example] = []
            leaves = len(tree.shape.leaves)
            while sum(len(example.tokens.responses) for example in own) < leaves:
                own.append(next(remaining))
            trees.append((tree, own))

        def by_shape(entry: _ExampleTree) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
            shape = entry[0].shape
            return -shape.tokens, shape.prefix, shape.branches, shape.parents

        # Trees of one shape become neighbors: the kernel for CPUs computes sequences of equal length as a batch, and
        # copies nothing if they follow each other.
        return sorted(trees, key=by_shape)

    def _micro_batches(self, trees: Sequence["_ExampleTree"], total: float) -> list[MicroBatch]:
        """The micro-batches of this process; every process gets the same number. `total` is the weight of the step."""
        shapes = [tree.shape for tree, _ in trees]
        dealt = deal(shapes, self.dp_size, self.budget, self.pair_cost, aligned=self.aligned)
        own = [self._micro_batch([trees[index] for index in held], total) for held in dealt[self.dp_rank]]
        # Where weights are sharded all processes take part in every forward pass: one with fewer micro-batches repeats
        # the smallest tree of the step with weight 0.
        idle = replace(self._micro_batch(trees[-1:], total), weight=0.0)
        return own + [idle] * (max(map(len, dealt)) - len(own))

    def _micro_batch(self, trees: Sequence["_ExampleTree"], total: float) -> MicroBatch:
        from longrm.modeling.shared_prefix import pack

        examples = [example for _, own in trees for example in own]
        weight = sum(map(self.objective.weight, examples)) / total
        return MicroBatch(pack([tree for tree, _ in trees]), examples, weight)


_ExampleTree = tuple[TokenTree, list[Example]]
"""A tree and the examples whose responses are its leaves, in order."""


def deal(
    shapes: Sequence[TreeShape], dp_size: int, budget: int, pair_cost: float, *, aligned: bool
) -> list[list[list[int]]]:
    """The micro-batches of every data-parallel rank, as indices of trees, so that all finish at about the same time.

    Trees are assigned greedily, the largest first, to the rank with the smallest sum. Sums of operations balance the
    work best: attention takes two thirds of the operations at 128K tokens, and a tenth at 4K. `aligned` ranks wait for
    the slowest one in every round of micro-batches; then sums of tokens, which need fewer rounds, may be faster.
    """
    costs = [operations(shape, pair_cost) for shape in shapes]

    def cost(held: Sequence[int]) -> float:
        return sum(costs[index] for index in held)

    dealt = []
    for sizes in (costs, [float(shape.tokens) for shape in shapes]):
        shares: list[list[int]] = [[] for _ in range(dp_size)]
        totals = [0.0] * dp_size
        for index in sorted(range(len(shapes)), key=lambda index: -sizes[index]):
            least = totals.index(min(totals))
            shares[least].append(index)
            totals[least] += sizes[index]
        # Sorted, trees of one shape stay together.
        filled = [_fill(sorted(share), shapes, budget) for share in shares]
        dealt.append([sorted(own, key=cost, reverse=True) for own in filled])
    return min(dealt, key=lambda own: duration(own, costs, aligned=aligned))


def operations(shape: TreeShape, pair_cost: float) -> float:
    """Operations of a tree, over those of the matrices for one token."""
    return shape.tokens + pair_cost * shape.pairs()


def duration(dealt: Sequence[Sequence[Sequence[int]]], costs: Sequence[float], *, aligned: bool) -> float:
    """Operations of the slowest rank in a step; of `aligned` ranks, the sum over rounds of the slowest rank in each."""
    work = [[sum(costs[index] for index in held) for held in own] for own in dealt]
    return sum(map(max, zip_longest(*work, fillvalue=0.0))) if aligned else max(map(sum, work))


def _fill(indices: Iterable[int], shapes: Sequence[TreeShape], budget: int) -> list[list[int]]:
    """Puts every tree, the largest first, into the first micro-batch with room for it (first-fit decreasing)."""
    filled: list[list[int]] = []
    room: list[int] = []
    for index in indices:
        size = shapes[index].tokens
        at = next((number for number, left in enumerate(room) if size <= left), len(room))
        if at == len(room):
            filled.append([])
            room.append(budget)
        filled[at].append(index)
        room[at] -= size
    return filled


def list_ids(examples: Sequence[Example]) -> str:
    """The ids of the first examples, and how many more there are."""
    named = ", ".join(f"'{example.id}'" for example in examples[:3])
    return f"{named} and {len(examples) - 3} more" if len(examples) > 3 else named


def out_of_memory(where: str, examples: Sequence[Example]) -> TrainingError:
    """The error for examples that do not fit into memory; names the longest one, and what saves memory."""
    which = ""
    if examples:
        longest = max(examples, key=lambda example: example.size)
        responses = len(longest.tokens.responses)
        which = (
            f"; the longest example is '{longest.id}' ({longest.size:,} tokens with {responses} responses)"
        )
    return TrainingError(
        f"out of memory {where}{which}. Try, in this order: a smaller memory.max_tokens_per_microbatch, "
        "memory.gradient_checkpointing, memory.tiled_mlp, memory.activation_offloading, "
        "model.lora, model.bf16 = true; longrm plan computes what each saves"
    )
