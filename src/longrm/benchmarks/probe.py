"""Generated worlds on a grid of lengths and depths: the benchmark that needs no download."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from longrm.benchmarks.benchmark import AuditedComparisons, BenchmarkRequest, LoadedBenchmark
from longrm.benchmarks.stratified_sample import Stratum, allot, evenly
from longrm.config import Config
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, ContextLengthError
from longrm.types import Comparison
from longrm.worlds import WORLDS, WorldPlan, group
from longrm.worlds.generator import MOST_PER_GROUP, MOST_TOKENS
from longrm.worlds.words_tokenizer import load_tokenizer

MOST_COMPARISONS = 10_000_000
"""Of a probe, for their judgments are held in memory."""


_CHECKED = 32_768
"""Tokens of each world, length and depth that are generated before any work; it takes about 0.3 s on one core."""


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
        tokenizer: "words", "approximate" (words and punctuation marks), or a tokenizer's file, folder or Hub id;
            lengths count in its tokens. By default the model's own; where it has none that is known, "words" for worlds
            of that tokenizer, else "approximate".
        seed: Of the generated contexts; take one that no training used.
        unrelated: Ask about a context the answers were not drawn from: nobody can beat chance.
        texts: Kinds of text of worlds in prose, of which each context is one; none names all.
        haystack: Documents in place of a kind of text: a folder of .txt, .md and .jsonl, or of .csv, or a file.
        haystack_column: The column of the text in .jsonl and .csv.
        cells: The grid of lengths, depths and worlds.
    """

    world: str = "records"
    responses: int = Field(2, ge=2)
    depth: float | Literal["uniform"] = "uniform"
    tokenizer: str | None = None
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

    @property
    def worlds(self) -> tuple[str, ...]:
        """The worlds of all cells, in their order."""
        return tuple(dict.fromkeys(world for cell in self.cells for world in cell.worlds or (self.world,)))

    @property
    def depths(self) -> tuple[float | Literal["uniform"], ...]:
        """The depths of all cells, in their order."""
        return tuple(dict.fromkeys(depth for cell in self.cells for depth in cell.depths or (self.depth,)))

    def measured(self, tokenizer: str) -> dict[str, Any]:
        """What the summary of a run tells of the probe, whose lengths count in the tokens of this tokenizer."""
        return {"tokenizer": tokenizer, "worlds": list(self.worlds), "depths": list(self.depths)}

    @model_validator(mode="after")
    def _can_be_held(self) -> "Probe":
        if self.total > MOST_COMPARISONS:
            raise ValueError(
                f"the cells have {self.total:,} comparisons together, and a probe has {MOST_COMPARISONS:,} at most: "
                "lessen groups, per_group, lengths, depths or worlds"
            )
        return self


def load_probe(request: BenchmarkRequest) -> LoadedBenchmark:
    """The comparisons of the probe, which are generated whenever they are read.

    Lengths count in the tokens of `probe.tokenizer`, else of the model that will judge, else of `without_tokenizer`.

    Raises:
        ConfigError: A world, length or depth that cannot be.
        ModelError: There is no such tokenizer.
    """
    probe, limit = request.probe, request.source.limit
    own = request.own() if probe.tokenizer is None else None
    name = own.name if own else probe.tokenizer or without_tokenizer(probe.worlds)
    tokenizer = own.place if own else name
    _check_lengths(probe_parts(probe, limit), load_tokenizer(tokenizer))
    sampled_from = probe.total if limit is not None and limit < probe.total else None
    rows = AuditedComparisons(lambda _: comparisons(probe, tokenizer, limit), sampled_from=sampled_from)
    return LoadedBenchmark(
        request.name,
        rows,
        min(probe.total, limit or probe.total),
        provenance={"tokenizer": name},
        measured=probe.measured(name),
    )


def without_tokenizer(worlds: Iterable[str]) -> str:
    """What lengths count in where no tokenizer is known: words, which knows some worlds, or approximate tokens."""
    return "words" if all(WORLDS[world].words for world in worlds if world in WORLDS) else "approximate"


class ProbePart(NamedTuple):
    """The comparisons of one world, length and depth, in the order in which they are asked.

    Attributes:
        plan: What generates them.
        places: Which of the plan's comparisons are taken, counted from 0.
    """

    plan: WorldPlan
    places: Sequence[int]

    @property
    def contexts(self) -> dict[int, list[int]]:
        """The numbers of the contexts that they are about, each with the numbers of its questions."""
        found: dict[int, list[int]] = {}
        for place in self.places:
            context, question = divmod(place, self.plan.per_group)
            found.setdefault(context, []).append(question)
        return found

    @property
    def tokens(self) -> int:
        """The target tokens of all these contexts together, each counted once."""
        return len(self.contexts) * self.plan.length


def probe_parts(probe: Probe, limit: int | None = None) -> list[ProbePart]:
    """What the probe asks, shortest contexts first as the cells list them; a limit takes as much of every part.

    Raises:
        ConfigError: A world, length or depth that cannot be.
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
    if limit is None:
        return [ProbePart(plan, range(count)) for plan, count in plans]
    # A part that the cells name twice is a stratum of its own: its comparisons are refused by their ids, not lost.
    sizes: dict[Stratum, int] = {
        (p.length, p.depth, p.world, place): count for place, (p, count) in enumerate(plans)
    }
    taken = allot(limit, sizes).values()
    return [
        ProbePart(plan, evenly(some, count)) for (plan, count), some in zip(plans, taken, strict=True) if some
    ]


def _check_lengths(parts: Iterable[ProbePart], tokenizer: Tokenizer) -> None:
    """Generates the first contexts of every part: one that is too short is found before a model has read any."""
    needed: dict[tuple[str, int], int] = {}
    for plan, contexts in ((part.plan, [*part.contexts][: _CHECKED // part.plan.length]) for part in parts):
        if not _fits(plan, contexts, tokenizer):
            longer = (replace(plan, length=length) for length in count(plan.length // 32 * 32 + 32, 32))
            works = next(one.length for one in longer if _fits(one, contexts, tokenizer))
            key = plan.world, plan.length
            needed[key] = max(works, needed.get(key, 0))
    if needed:
        found = "; ".join(
            f"{world} does not fit in {length:,} tokens, {works:,} work"
            for (world, length), works in needed.items()
        )
        raise ConfigError(f"lengths too short for these tasks: {found}")


def _fits(plan: WorldPlan, contexts: Iterable[int], tokenizer: Tokenizer) -> bool:
    try:
        for number in contexts:
            group(plan, number, tokenizer)
    except ContextLengthError:
        return False
    return True


def comparisons(probe: Probe, tokenizer: str | None = None, limit: int | None = None) -> Iterator[Comparison]:
    """Generates the comparisons of every part, or a stratified sample of them.

    Args:
        probe: What is asked.
        tokenizer: A name, file or folder, in place of the probe's own.
        limit: How many comparisons at most.

    Raises:
        ConfigError: A world, length or depth that cannot be; before anything is generated.
        ModelError: There is no such tokenizer.
    """
    parts = probe_parts(probe, limit)
    counts = load_tokenizer(tokenizer or probe.tokenizer or without_tokenizer(probe.worlds))
    for part in parts:
        for number, questions in part.contexts.items():
            members = group(part.plan, number, counts)
            yield from (members[question] for question in questions)
