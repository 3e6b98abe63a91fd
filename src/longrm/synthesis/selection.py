"""Which comparisons a benchmark takes: pairs and rankings of scored candidates, balanced over task and length.

Documents are read once to select and again to write; in between only the comparisons are held, without texts.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, combinations, islice, pairwise
from typing import Literal, TypeVar

from pydantic import Field, field_validator

from longrm.benchmarks import long_rewardbench
from longrm.benchmarks.answer_metrics import answer_metric, share_of_gold
from longrm.benchmarks.benchmark import bucket
from longrm.errors import ConfigError
from longrm.rng import Rng
from longrm.synthesis.documents import ASKING, CLOSING, GOLD_MODEL, OPENING, Candidate, Document
from longrm.synthesis.models import ModelSettings
from longrm.synthesis.pipeline import KEPT, Steps
from longrm.synthesis.settings import CandidateRecipe

Kind = Literal["cross", "same", "best-of-2", "best-of-3", "best-of-4"]
PAIRS: tuple[Kind, ...] = ("cross", "same")
"""Pairs of two models, and of one model under two perturbations."""
RANKINGS: tuple[Kind, ...] = ("best-of-2", "best-of-3", "best-of-4")

Opinion = Literal["agrees", "disagrees", "undecided", "unchecked"]
"""The second check of one order; "undecided" ties some of it and contradicts none."""

SECOND_METRIC: Mapping[str, str] = {
    "rouge_l": "chrf",
    "token_f1": "chrf",
    "edit_similarity": "token_f1",
    "chrf": "token_f1",
}
"""Which metric checks which: words against characters. Metrics that are only right or wrong (choices, numbers,
citations) have no useful second metric; a judge can check them."""

# The better score of a pair exceeds the other by this share of it: those of chosen ones are typically 40-80% higher
# (paper, section 2). And by this share of the gold score, because 40% more than next to nothing is nothing.
MIN_GAP, MIN_POINTS = 0.4, 0.05
_TOGETHER = 64  # documents in progress

Cell = TypeVar("Cell", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class RankedComparison:
    """Candidates of one document in the order of their scores."""

    document: str  # the document's id
    kind: Kind  # see `Kind`
    candidates: tuple[int, ...]  # positions among the document's candidates, best first
    scores: tuple[float, ...]  # theirs, in shares of the gold score, strictly falling
    task: str = ""  # the document's task in Long-RewardBench
    length: int = 0  # of the prompt in tokens, in the benchmark's steps
    group: str = ""  # the document's group
    metric: str = ""  # the document's metric
    opinion: Opinion = "unchecked"  # of the second check

    @property
    def id(self) -> str:
        """Unique in a benchmark."""
        return f"{self.document}/{self.kind}/{'+'.join(map(str, self.candidates))}"


RateAnswers = Callable[[Document, Sequence[str]], Awaitable[list[float | None]]]
"""Rates answers to a document's question for the second check: higher is better, None without a rating."""


@dataclass
class BenchmarkCounts:
    """What every step took in, kept and dropped."""

    steps: Steps = field(default_factory=Steps)  # documents and candidates; kept if they can be scored
    models: Counter[str] = field(default_factory=Counter)  # candidates by their model
    opinions: Counter[tuple[str, Opinion]] = field(default_factory=Counter)  # second check, by metric
    available: int = 0  # comparisons to choose from


class BenchmarkRecipe(CandidateRecipe):
    """Settings of `longrm synthesize benchmark`.

    Attributes:
        pairs: How many pairs at most, of two models ("cross") and of one ("same") together.
        rankings: How many rankings at most, each of two, three and four candidates.
        tasks: Maps the documents' tasks to those of Long-RewardBench; "" is for documents without a task.
        metric: Rates the answers to documents that name no metric.
        second_check: A judge that checks every gold order, of which those that it contradicts or cannot decide are
            dropped; by default another metric checks each that has one.
    """

    pairs: int = Field(1000, ge=0)
    rankings: int = Field(300, ge=0)
    tasks: Mapping[str, str] = Field(default_factory=dict)
    metric: str = ""
    second_check: ModelSettings | None = None

    @field_validator("metric")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name:
            answer_metric(name)
        return name


def select_comparisons(
    recipe: BenchmarkRecipe,
    documents: Iterable[Document],
    rate: RateAnswers,
    measure: Callable[[str], int],
    tasks: Mapping[str, str],
) -> tuple[list[RankedComparison], BenchmarkCounts]:
    """Scores all candidates and selects comparisons, balanced over task and length.

    `rate` is the second check; `measure` counts tokens; `tasks` maps the documents' tasks to those of Long-RewardBench.

    Raises:
        ConfigError: A document's task is not one of Long-RewardBench's, nor mapped to one.
    """
    counts = BenchmarkCounts()
    found: dict[Kind, list[RankedComparison]] = {kind: [] for kind in (*PAIRS, *RANKINGS)}
    measured = lru_cache(maxsize=1)(measure)  # questions about one text follow each other

    async def checked(document: Document) -> list[RankedComparison]:
        ranked = [*pairs_of(document), *rankings_of(document, recipe.seed)]
        if not ranked:
            return []
        needed = sorted({at for one in ranked for at in one.candidates})
        rated = await rate(document, [document.candidates[at].text for at in needed])
        ratings = dict(zip(needed, rated, strict=True))
        length = bucket(measured(document.text) + measure(OPENING + CLOSING + ASKING + document.question))
        task = task_of(document, tasks)
        return [
            replace(
                one,
                task=task,
                length=length,
                group=document.group,
                metric=document.metric,
                opinion=opinion_of([ratings[at] for at in one.candidates]),
            )
            for one in ranked
        ]

    async def check_together(documents: Sequence[Document]) -> list[list[RankedComparison]]:
        return await asyncio.gather(*map(checked, documents))

    scored = filter(None, (_scored(document, tasks, recipe.metric, counts) for document in documents))
    while batch := list(islice(scored, _TOGETHER)):
        for one in chain.from_iterable(asyncio.run(check_together(batch))):
            counts.opinions[one.metric, one.opinion] += 1
            if one.opinion in ("agrees", "unchecked"):
                found[one.kind].append(one)
    counts.available = sum(map(len, found.values()))

    rankings = [one for kind in RANKINGS for one in _evenly(kind, found[kind], recipe.rankings, recipe.seed)]
    # A ranking of two and a pair of the same two would be one comparison twice.
    taken = {(one.document, one.candidates) for one in rankings}
    left = {
        kind: [one for one in found[kind] if (one.document, one.candidates) not in taken] for kind in PAIRS
    }
    totals = even_shares({kind: len(pairs) for kind, pairs in left.items()}, recipe.pairs)
    pairs = [one for kind in PAIRS for one in _evenly(kind, left[kind], totals[kind], recipe.seed)]
    return [*pairs, *rankings], counts


def _scored(
    document: Document, tasks: Mapping[str, str], metric: str, counts: BenchmarkCounts
) -> Document | None:
    """A document with scored candidates; None, and counted, if they cannot be scored."""
    steps, given = counts.steps, document.candidates
    document = replace(document, metric=document.metric or metric)
    task_of(document, tasks)  # an unknown task stops the build, whatever the candidates are
    counts.models.update(candidate.model for candidate in given)
    candidates = score_candidates(document)
    if candidates is None:
        steps["documents", "no gold answer that a metric can rate by"] += 1
        if given:
            steps["candidates", "their document cannot be scored"] += len(given)
        return None
    steps["documents", KEPT if len(candidates) > 1 else "fewer than two candidates"] += 1
    different = len(distinct(candidates))
    steps["candidates", KEPT] += different
    if len(candidates) > different:
        steps["candidates", "the same words as another's"] += len(candidates) - different
    return replace(document, candidates=candidates)


def score_candidates(document: Document) -> tuple[Candidate, ...] | None:
    """The candidates with their scores by the document's metric, in shares of what the gold answer earns.

    None if the document has no metric, or the gold answer itself earns nothing.
    """
    share = share_of_gold(document.metric, document.answer) if document.metric else None
    if share is None:
        return None
    return tuple(replace(one, score=share(one.text)) for one in document.candidates)


def tier_of(score: float) -> int | None:
    """The tier of a share of the gold score (paper, section 2); None in between."""
    if score > 0.9:
        return 1
    if 0.6 <= score <= 0.85:
        return 2
    if 0.25 <= score <= 0.5:
        return 3
    return 4 if score < 0.15 else None


def distinct(candidates: Sequence[Candidate]) -> list[int]:
    """The positions of different texts: repetitions would make the same comparison twice."""
    first: dict[str, int] = {}
    for position, candidate in enumerate(candidates):
        first.setdefault(candidate.text, position)
    return [*first.values()]


def pairs_of(document: Document) -> Iterator[RankedComparison]:
    """All pairs of scored candidates that models wrote, whose scores are far enough apart."""
    candidates = document.candidates
    scores = [candidate.score or 0.0 for candidate in candidates]
    for one, other in combinations(distinct(candidates), 2):
        if GOLD_MODEL in (candidates[one].model, candidates[other].model):
            continue
        best, worst = (one, other) if scores[one] > scores[other] else (other, one)
        if scores[best] - scores[worst] >= max(MIN_POINTS, MIN_GAP * scores[worst]):
            kind: Kind = "same" if candidates[one].model == candidates[other].model else "cross"
            yield RankedComparison(document.id, kind, (best, worst), (scores[best], scores[worst]))


def rankings_of(document: Document, seed: int) -> Iterator[RankedComparison]:
    """One ranking each of two, three and four candidates of different tiers.

    All are drawn from one base with a candidate of every filled tier. Synthetic candidates fill only the tiers that
    models leave empty.
    """
    candidates = document.candidates
    scores = [candidate.score or 0.0 for candidate in candidates]
    rng = Rng("rankings", seed, document.id)
    by_tier: dict[int, list[int]] = {}
    for position in distinct(candidates):
        tier = tier_of(scores[position])
        if tier is not None:
            by_tier.setdefault(tier, []).append(position)
    base = []
    for tier in sorted(by_tier):
        written = [at for at in by_tier[tier] if candidates[at].model != GOLD_MODEL]
        base.append(rng.choice(written or by_tier[tier]))
    for size, kind in enumerate(RANKINGS, start=2):
        if size <= len(base):
            drawn = rng.choice(list(combinations(base, size)))
            yield RankedComparison(document.id, kind, drawn, tuple(scores[at] for at in drawn))


def opinion_of(best_first: Sequence[float | None]) -> Opinion:
    """The second check's opinion of an order, from its ratings in that order."""
    known = [rating for rating in best_first if rating is not None]
    if len(known) < len(best_first):
        return "unchecked"
    steps = [better - worse for better, worse in pairwise(known)]
    if any(step < 0 for step in steps):
        return "disagrees"
    return "agrees" if all(step > 0 for step in steps) else "undecided"


async def rate_by_metric(document: Document, texts: Sequence[str]) -> list[float | None]:
    """The second check by another metric: its errors differ, but it knows no more than the same gold answer."""
    name = SECOND_METRIC.get(document.metric)
    return [None if name is None else answer_metric(name)(text, document.answer) for text in texts]


def task_of(document: Document, tasks: Mapping[str, str]) -> str:
    """The document's task in Long-RewardBench, mapped by `tasks`; "" maps documents without a task."""
    task = tasks.get(document.task, document.task)
    if task not in long_rewardbench.TASKS:
        place = f"{document.place}, field 'task': " if document.place else ""
        known = ", ".join(long_rewardbench.TASKS)
        raise ConfigError(
            f"{place}document '{document.id}' has the task '{document.task:.100}'; map it in `tasks` to one of {known}"
        )
    return task


def _evenly(kind: Kind, found: Iterable[RankedComparison], total: int, seed: int) -> list[RankedComparison]:
    """At most `total` comparisons, as evenly over tasks and lengths as can be; in each of these, texts take turns."""
    cells: dict[tuple[str, int], dict[str, list[RankedComparison]]] = {}
    for one in found:
        cells.setdefault((one.task, one.length), {}).setdefault(one.group, []).append(one)
    queues = {cell: in_turns(groups, "benchmark", seed, kind, *cell) for cell, groups in cells.items()}
    shares = even_shares({cell: len(queue) for cell, queue in queues.items()}, total)
    return [one for cell, queue in queues.items() for one in queue[: shares[cell]]]


def even_shares(available: Mapping[Cell, int], total: int) -> dict[Cell, int]:
    """How many to take from every cell, so that the smallest share is as large as possible (max-min fairness).

    Cells with less than an even share give all they have, and the others share the rest evenly: two that are not used
    up differ by at most one.
    """
    taken, left = {}, total
    # The scarcest first: the others make up for what they lack. Names break ties, so that the result is determined.
    order = sorted(available, key=lambda cell: (available[cell], str(cell)))
    for done, cell in enumerate(order):
        taken[cell] = min(available[cell], left // (len(order) - done))
        left -= taken[cell]
    return {cell: taken[cell] for cell in available}


def in_turns(groups: Mapping[str, Sequence[Item]], *key: object) -> list[Item]:
    """All items, one of every group, then a second one of each, and so on; both orders are drawn by the key."""
    queues = []
    for name in sorted(groups):
        queue = list(groups[name])
        Rng(*key, name).shuffle(queue)
        queues.append(queue)
    Rng(*key).shuffle(queues)
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
