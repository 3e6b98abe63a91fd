"""What a training step reads: a pure function of the seed, the step and the curriculum's length.

Because no state hides in an iterator, a resumed run draws what an uninterrupted one would have drawn.
"""

import hashlib
from dataclasses import replace
from typing import Literal, Protocol

from pydantic import Field, model_validator

from longrm.config import Config
from longrm.data import read
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.types import Comparison, message_text, text_of
from longrm.worlds import Plan, group
from longrm.worlds.draws import Draws


class World(Config):
    """Training data generated as it is needed, never twice the same.

    Attributes:
        name: A generated world's name.
        responses: Responses per comparison; several numbers alternate from context to context.
        graded_from: Comparisons of more than two responses come in from this length on: shorter contexts
            have too few facts for them.
        tokens_per_step: Context tokens in one optimizer step: as many contexts as fit, at least one.
        responses_per_step: Responses in one optimizer step, shared out among its contexts.
        seed: Of the generated contexts; take one that no evaluation uses.
        shuffle_labels: Control: the gold order is drawn at random, so that nothing can be learned.
    """

    name: str = "records"
    responses: tuple[int, ...] = (2,)
    graded_from: int = 160
    tokens_per_step: int = Field(4096, ge=1)
    responses_per_step: int = Field(128, ge=2)
    seed: int = 0
    shuffle_labels: bool = False


class Data(Config):
    """Where the comparisons come from: a file, or a generated world.

    Attributes:
        path: Preference data in any format that `longrm.data` reads.
        format: The rows' format; recognized from the columns when not given.
        on_bad_row: What a row that cannot be read does.
        world: Generate the data instead.
        per_step: Comparisons of a file in one optimizer step.
    """

    path: str | None = None
    format: str | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    world: World | None = None
    per_step: int = Field(32, ge=1)

    @model_validator(mode="after")
    def _one_source(self) -> "Data":
        if (self.path is None) == (self.world is None):
            raise ValueError("training data comes from either data.path or data.world: give one of them")
        return self


class Source(Protocol):
    """Comparisons for every step."""

    def batch(self, step: int, length: int | None) -> list[Comparison]:
        """The comparisons of a step, counted from 0, at the curriculum's length if there is one."""

    def epoch_steps(self) -> int | None:
        """Steps that see every comparison once; None where the data has no end."""


class GeneratedSource:
    """Fresh contexts of a world for every step."""

    def __init__(self, world: World, tokenizer: Tokenizer) -> None:
        self._world = world
        self._tokenizer = tokenizer

    def batch(self, step: int, length: int | None) -> list[Comparison]:
        """As many contexts as the token budget holds, with the step's responses shared out among them."""
        assert length is not None, "generated data needs a curriculum of lengths"
        world = self._world
        contexts = max(1, min(world.responses_per_step // 2, world.tokens_per_step // length))
        rows: list[Comparison] = []
        for index in range(contexts):
            responses = self._responses(step + index, length)
            plan = Plan(
                world=world.name,
                length=length,
                responses=responses,
                depth="uniform",
                per_group=max(1, world.responses_per_step // (contexts * responses)),
                seed=world.seed,
            )
            rows += group(plan, step * world.responses_per_step + index, self._tokenizer)
        # Trees of one shape that stand side by side are computed as a batch.
        rows.sort(key=lambda row: len(row.responses))
        return [_shuffled(row) for row in rows] if world.shuffle_labels else rows

    def _responses(self, turn: int, length: int) -> int:
        choices = [n for n in self._world.responses if n == 2 or length >= self._world.graded_from]
        return choices[turn % len(choices)] if choices else 2

    def epoch_steps(self) -> int | None:
        """Generated data has no end."""
        return None


class FileSource:
    """The comparisons of a file, in an order drawn anew for every epoch."""

    def __init__(self, data: Data, seed: int) -> None:
        assert data.path is not None
        reading = read(data.path, format=data.format, on_bad_row=data.on_bad_row)
        self.comparisons = [_trainable(row.comparison, data.path) for row in reading]
        self.skipped = reading.skipped
        if not self.comparisons:
            raise DataError(f"{data.path} holds no comparison to train on")
        self._per_step = data.per_step
        self._seed = seed

    def batch(self, step: int, length: int | None) -> list[Comparison]:
        """The next comparisons of the epoch's order; the last step of an epoch may hold fewer."""
        epoch, within = divmod(step, self.epoch_steps())
        order = list(range(len(self.comparisons)))
        Draws("epoch", self._seed, epoch).shuffle(order)
        chosen = order[within * self._per_step : (within + 1) * self._per_step]
        return [self.comparisons[index] for index in chosen]

    def epoch_steps(self) -> int:
        """Steps that see every comparison once."""
        return -(-len(self.comparisons) // self._per_step)


def open_source(data: Data, tokenizer: Tokenizer, seed: int) -> GeneratedSource | FileSource:
    """Opens the data that the settings name."""
    if data.world is not None:
        return GeneratedSource(data.world, tokenizer)
    return FileSource(data, seed)


def context_digest(comparison: Comparison) -> str:
    """Tells contexts apart: 16 hex digits of a hash of the context, else of the whole prompt."""
    spans = comparison.context
    texts = [message_text(comparison.prompt[span.message])[span.start : span.end] for span in spans]
    text = "\x00".join(texts) if spans else text_of(comparison.prompt)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _trainable(comparison: Comparison, path: str) -> Comparison:
    if comparison.ranks is None or len(set(comparison.ranks)) < 2:
        raise DataError(f"{path}: '{comparison.id}' has no gold order to train on: ranks are unknown or tied")
    return comparison


def _shuffled(comparison: Comparison) -> Comparison:
    assert comparison.ranks is not None
    ranks = list(comparison.ranks)
    Draws("labels", comparison.id).shuffle(ranks)
    return replace(comparison, ranks=tuple(ranks))
