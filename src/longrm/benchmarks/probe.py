"""Generated worlds on a grid of lengths and depths: the benchmark that needs no download."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from longrm.benchmarks.auditor import AuditedComparisons
from longrm.benchmarks.benchmark_data import BenchmarkRequest, LoadedBenchmark
from longrm.config import Config
from longrm.types import Comparison
from longrm.worlds import WorldPlan, generate
from longrm.worlds.generator import MOST_PER_GROUP, MOST_TOKENS
from longrm.worlds.words_tokenizer import load_tokenizer

MOST_COMPARISONS = 10_000_000
"""Of a probe, for their judgments are held in memory."""


class ProbeCell(Config):
    """Contexts of some lengths and depths, with how many of them and how many questions each.

    Attributes:
        lengths: Target lengths in tokens.
        depths: Where the evidence stands at each length, as in `probe.depth`, which an empty list stands for.
        worlds: Names of generated worlds; an empty list stands for `probe.world`.
        groups: Contexts per world, length and depth.
        per_group: Questions about each context.
    """

    lengths: tuple[Annotated[int, Field(ge=1, le=MOST_TOKENS)], ...] = (128, 256, 512, 1024, 2048, 4096)
    depths: tuple[float | Literal["uniform"], ...] = ()
    worlds: tuple[str, ...] = ()
    groups: int = Field(64, ge=1)
    per_group: int = Field(8, ge=1, le=MOST_PER_GROUP)


class Probe(Config):
    """What the probe asks.

    Attributes:
        world: A generated world's name, of the cells that name no worlds (`longrm world --list`).
        responses: Responses a question, N >= 2.
        depth: Where the evidence stands, 0 = start to 1 = end; "uniform" draws it evenly. Of the cells that name
            no depths.
        tokenizer: "words", or a tokenizer's file, folder or Hub id; lengths count in its tokens.
        seed: Of the generated contexts; take one that no training used.
        unrelated: Ask about a context the answers were not drawn from: nobody can beat chance.
        texts: Kinds of text of worlds in prose, of which each context is one; none names all.
        haystack: Documents in place of a kind of text: a folder of .txt, .md and .jsonl, or a file.
        haystack_column: The column of the text in .jsonl.
        cells: The grid of lengths, depths and worlds.
    """

    world: str = "records"
    responses: int = Field(2, ge=2)
    depth: float | Literal["uniform"] = "uniform"
    tokenizer: str = "words"
    seed: int = 1_000_000
    unrelated: bool = False
    texts: tuple[str, ...] = ()
    haystack: str | None = None
    haystack_column: str = "text"
    cells: tuple[ProbeCell, ...] = (ProbeCell(),)

    @property
    def total(self) -> int:
        """Comparisons in all cells together."""
        return sum(
            len(cell.lengths)
            * len(cell.depths or (self.depth,))
            * len(cell.worlds or (self.world,))
            * cell.groups
            * cell.per_group
            for cell in self.cells
        )

    @model_validator(mode="after")
    def _can_be_held(self) -> "Probe":
        if self.total > MOST_COMPARISONS:
            raise ValueError(
                f"the cells have {self.total:,} comparisons together, and a probe has {MOST_COMPARISONS:,} at most: "
                "lessen groups, per_group, lengths, depths or worlds"
            )
        return self


def load_probe(request: BenchmarkRequest) -> LoadedBenchmark:
    """The comparisons of the probe, which are generated whenever they are read."""
    probe, limit = request.probe, request.source.limit
    rows = AuditedComparisons(lambda _: comparisons(probe), limit=limit)
    return LoadedBenchmark(request.name, rows, min(probe.total, limit or probe.total))


def comparisons(probe: Probe) -> Iterator[Comparison]:
    """Generates the comparisons of every cell, shortest contexts first as the cells list them.

    Raises:
        ConfigError: A world, length or depth that cannot be; before anything is generated.
        ModelError: There is no such tokenizer.
    """
    plans = [
        (
            WorldPlan(
                world=world,
                length=length,
                responses=probe.responses,
                depth=depth,
                per_group=cell.per_group,
                seed=probe.seed,
                unrelated=probe.unrelated,
                texts=probe.texts,
                haystack=probe.haystack,
                haystack_column=probe.haystack_column,
            ),
            cell.groups * cell.per_group,
        )
        for cell in probe.cells
        for length in cell.lengths
        for depth in cell.depths or (probe.depth,)
        for world in cell.worlds or (probe.world,)
    ]
    tokenizer = load_tokenizer(probe.tokenizer)
    for plan, count in plans:
        yield from generate(plan, count, tokenizer)
