"""Generated worlds on a grid of lengths: the benchmark that needs no download."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from longrm.config import Config
from longrm.types import Comparison
from longrm.worlds import Plan, generate
from longrm.worlds.words import load_tokenizer


class Cell(Config):
    """Contexts of some lengths, with how many of them and how many questions each.

    Attributes:
        lengths: Target lengths in tokens.
        groups: Contexts per length.
        per_group: Questions about each context.
    """

    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)
    groups: int = Field(64, ge=1)
    per_group: int = Field(8, ge=1)


class Probe(Config):
    """What the probe asks.

    Attributes:
        world: A generated world's name.
        responses: Responses a question, N >= 2.
        depth: Where the evidence stands, 0 = start to 1 = end; "uniform" draws it evenly.
        tokenizer: "words", or a tokenizer's file, folder or Hub id; lengths count in its tokens.
        seed: Of the generated contexts; take one that no training used.
        unrelated: Ask about a context the answers were not drawn from: nobody can beat chance.
        cells: The grid of lengths.
    """

    world: str = "records"
    responses: int = Field(2, ge=2)
    depth: float | Literal["uniform"] = "uniform"
    tokenizer: str = "words"
    seed: int = 1_000_000
    unrelated: bool = False
    cells: tuple[Cell, ...] = (Cell(),)

    @property
    def total(self) -> int:
        """Comparisons in all cells together."""
        return sum(len(cell.lengths) * cell.groups * cell.per_group for cell in self.cells)


def comparisons(probe: Probe) -> Iterator[Comparison]:
    """Generates the comparisons of every cell, shortest contexts first as the cells list them."""
    tokenizer = load_tokenizer(probe.tokenizer)
    for cell in probe.cells:
        for length in cell.lengths:
            plan = Plan(
                world=probe.world,
                length=length,
                responses=probe.responses,
                depth=probe.depth,
                per_group=cell.per_group,
                seed=probe.seed,
                unrelated=probe.unrelated,
            )
            yield from generate(plan, cell.groups * cell.per_group, tokenizer)
