"""Generated worlds on a grid of lengths and depths: the benchmark that needs no download."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from longrm.benchmarks.benchmark import AuditedComparisons, BenchmarkRequest, LoadedBenchmark, Trajectories
from longrm.benchmarks.stratified_sample import Stratum, allot, evenly
from longrm.config import Config
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, ContextLengthError
from longrm.types import Comparison, Trajectory
from longrm.worlds import WORLDS, WorldPlan, group
from longrm.worlds.generator import MOST_PER_GROUP, MOST_TOKENS
from longrm.worlds.trajectories import TrajectoryPlan, trajectories, trajectory_group
from longrm.worlds.words_tokenizer import load_tokenizer

TRAJECTORY = "trajectory"
"""The world whose steps are judged, in place of responses."""

# Tokens of each world, length and depth that are generated before any work, which takes about 0.3 s on one core.
_CHECKED = 32_768


class ProbeCell(Config):
    """Contexts of some lengths, depths and worlds, with how many of them and how many questions each.

    Attributes:
        lengths: Target lengths in tokens.
        depths: The evidence's place in the context, from 0 = start to 1 = end; "uniform" draws it evenly.
        worlds: Names of generated worlds (`longrm world --list`).
        groups: Contexts per world, length and depth.
        per_group: Questions about each context.
    """

    lengths: tuple[Annotated[int, Field(ge=1, le=MOST_TOKENS)], ...] = (128, 256, 512, 1024, 2048, 4096)
    depths: tuple[float | Literal["uniform"], ...] = Field(("uniform",), min_length=1)
    worlds: tuple[str, ...] = Field(("records",), min_length=1)
    groups: int = Field(64, ge=1)
    per_group: int = Field(8, ge=1, le=MOST_PER_GROUP)


class Probe(Config):
    """The questions of the probe.

    Attributes:
        responses: Responses per question, N >= 2.
        tokenizer: "words", "approximate" (words and punctuation marks), or a tokenizer's folder or Hub id that
            measures lengths. By default the model's own; if that is unknown, "words" for worlds of that tokenizer,
            otherwise "approximate".
        seed: Seed of the generated contexts; choose one that no training used.
        unrelated: Ask about a context from which the answers were not drawn, a control: no judge can beat chance.
        texts: Kinds of text for worlds in prose; each context is one of them. By default all kinds.
        haystack: Documents in place of generated text: a file, or a folder of .txt, .md and .jsonl or of .csv files. In
            .jsonl and .csv they are the column `text`.
        cells: The grid of lengths, depths and worlds.
    """

    responses: int = Field(2, ge=2)
    tokenizer: str | None = None
    seed: int = 1_000_000
    unrelated: bool = False
    texts: tuple[str, ...] = ()
    haystack: str | None = None
    cells: tuple[ProbeCell, ...] = (ProbeCell(),)

    @property
    def total(self) -> int:
        """Comparisons in all cells together."""
        return sum(
            len(cell.lengths) * len(cell.depths) * len(cell.worlds) * cell.groups * cell.per_group
            for cell in self.cells
        )

    @property
    def worlds(self) -> tuple[str, ...]:
        """The worlds of all cells, in their order."""
        return tuple(dict.fromkeys(world for cell in self.cells for world in cell.worlds))

    def measured(self, name: str, tokenizer: Tokenizer) -> dict[str, Any]:
        """The description of the probe in a run's summary; its lengths are measured with this tokenizer."""
        depths = dict.fromkeys(depth for cell in self.cells for depth in cell.depths)
        # The vocabulary, because a saved tokenizer is written in another way than the same one in memory.
        vocabulary = json.dumps(sorted(tokenizer.backend.get_vocab(with_added_tokens=True).items()))
        digest = hashlib.sha256(vocabulary.encode()).hexdigest()[:16]
        return {
            "tokenizer": name,
            "worlds": list(self.worlds),
            "depths": list(depths),
            "tokenizer_digest": digest,
        }


def load_probe(request: BenchmarkRequest) -> LoadedBenchmark:
    """The comparisons of the probe, which are generated again at every iteration.

    Lengths count in the tokens of `probe.tokenizer`, else of the model that will judge, else of `without_tokenizer`.
    """
    probe, limit = request.probe, request.source.limit
    own = request.own() if probe.tokenizer is None else None
    name = own.name if own else probe.tokenizer or without_tokenizer(probe.worlds)
    tokenizer = own.place if own else name
    counts = load_tokenizer(tokenizer)
    if TRAJECTORY in probe.worlds:
        return _load_trajectories(request, name, counts)
    for part in probe_parts(probe, limit):
        try:
            # The first contexts, so that a length that is too short ends the run before any work.
            for number in [*part.contexts][: _CHECKED // part.plan.length]:
                group(part.plan, number, counts)
        except ContextLengthError as error:
            raise ConfigError(f"{part.plan.world}: {error}") from None
    sampled_from = probe.total if limit is not None and limit < probe.total else None
    rows = AuditedComparisons(lambda _: comparisons(probe, tokenizer, limit), sampled_from=sampled_from)
    return LoadedBenchmark(
        request.name,
        rows,
        min(probe.total, limit or probe.total),
        provenance={"tokenizer": name},
        measured=probe.measured(name, counts),
    )


def _load_trajectories(request: BenchmarkRequest, name: str, counts: Tokenizer) -> LoadedBenchmark:
    """The trajectories of a probe, `groups` times `per_group` of each length."""
    probe = request.probe
    if probe.worlds != (TRAJECTORY,):
        raise ConfigError(f"{TRAJECTORY} judges steps, not responses: probe it without other tasks")
    plans = [
        (
            TrajectoryPlan(length=length, per_group=cell.per_group, seed=probe.seed),
            cell.groups * cell.per_group,
        )
        for cell in probe.cells
        for length in cell.lengths
    ]
    for plan, _ in plans:
        try:
            trajectory_group(plan, 0, counts)
        except ContextLengthError as error:
            raise ConfigError(f"{TRAJECTORY}: {error}") from None

    def generated(_: object) -> Iterator[Trajectory]:
        for plan, count in plans:
            yield from trajectories(plan, count, counts)

    total = sum(count for _, count in plans)
    rows = Trajectories(generated, limit=request.source.limit, total=total)
    return LoadedBenchmark(
        request.name,
        (),
        provenance={"tokenizer": name},
        measured=probe.measured(name, counts),
        trajectories=rows,
    )


def without_tokenizer(worlds: Iterable[str]) -> str:
    """The tokenizer that measures lengths by default: "words" if it knows these worlds, else "approximate"."""
    worlds = list(worlds)
    if TRAJECTORY in worlds:
        return "approximate"
    return "words" if all(WORLDS[world].words for world in worlds if world in WORLDS) else "approximate"


class ProbePart(NamedTuple):
    """The comparisons of one world, length and depth, in order.

    Attributes:
        plan: Generates them.
        places: Which of the plan's comparisons are taken, counted from 0.
    """

    plan: WorldPlan
    places: Sequence[int]

    @property
    def contexts(self) -> dict[int, list[int]]:
        """The numbers of the contexts, each with the numbers of its questions."""
        found: dict[int, list[int]] = {}
        for place in self.places:
            context, question = divmod(place, self.plan.per_group)
            found.setdefault(context, []).append(question)
        return found

    @property
    def tokens(self) -> int:
        """The target tokens of all contexts together."""
        return len(self.contexts) * self.plan.length


def probe_parts(probe: Probe, limit: int | None = None) -> list[ProbePart]:
    """The parts of the probe in the order of its cells; a limit takes as much of every part."""
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
            ),
            cell.groups * cell.per_group,
        )
        for cell in probe.cells
        for length in cell.lengths
        for depth in cell.depths
        for world in cell.worlds
    ]
    if limit is None:
        return [ProbePart(plan, range(count)) for plan, count in plans]
    # With its place, a part that the cells name twice is two strata: its repeated ids are an error and not lost.
    sizes: dict[Stratum, int] = {
        (p.length, p.depth, p.world, place): count for place, (p, count) in enumerate(plans)
    }
    taken = allot(limit, sizes).values()
    return [
        ProbePart(plan, evenly(some, count)) for (plan, count), some in zip(plans, taken, strict=True) if some
    ]


def comparisons(
    probe: Probe, tokenizer: str | Tokenizer | None = None, limit: int | None = None
) -> Iterator[Comparison]:
    """Generates the comparisons of every part, or a stratified sample of at most `limit` of them.

    `tokenizer` measures lengths in place of the probe's own. A wrong world, length or depth is a `ConfigError` before
    anything is generated.
    """
    parts = probe_parts(probe, limit)
    counts = load_tokenizer(tokenizer or probe.tokenizer or without_tokenizer(probe.worlds))
    for part in parts:
        for number, questions in part.contexts.items():
            members = group(part.plan, number, counts)
            yield from (members[question] for question in questions)
