"""A benchmark of the user's own, as Long-RewardBench is built (paper, section 2).

Question, context and gold answer, with candidates that a metric scores, become pairs and rankings: balanced by task
and length, checked a second time, and written in the schema of Long-RewardBench. Documents are read once to choose
and again to write; between them only the places of what may be chosen are held.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from longrm.answer_metrics import answer_metric
from longrm.benchmarks import long_rewardbench
from longrm.benchmarks.lengths import bucket
from longrm.config import Config
from longrm.data import write_rows
from longrm.errors import ConfigError, DataError
from longrm.reading import cut
from longrm.synthesis.balance import in_turns, shares
from longrm.synthesis.comparing import ASKING, CLOSING, OPENING, plain_prompt
from longrm.synthesis.documents import Document
from longrm.synthesis.ranking import KINDS, Gap, Item, Kind, distinct, pairs, rankings, scored
from longrm.synthesis.records import Candidate
from longrm.synthesis.records import Source as Given
from longrm.synthesis.second_check import Check, Checked, Verdict
from longrm.types import Comparison, Span, message_text

Source = Callable[[], Iterable[Given]]
"""Reads the documents with their candidates anew, from the start, in an order that never changes."""

See = Callable[[Comparison], None]
_AT_ONCE = 64  # documents that are held and checked together

LEVAL_TASKS: Mapping[str, str] = {
    "coursera": "LongQA",
    "financial_qa": "LongQA",
    "legal_contract_qa": "LongQA",
    "natural_question": "LongQA",
    "quality": "LongQA",
    "sci_fi": "LongQA",
    "topic_retrieval_longchat": "LongQA",
    "gov_report_summ": "Summ",
    "paper_assistant": "Summ",
    "patent_summ": "Summ",
    "review_summ": "Summ",
    "tv_show_summ": "Summ",
    "gsm100": "Math",
}
"""What L-Eval's tasks are called in Long-RewardBench."""


class Benchmark(Config):
    """What is built.

    Attributes:
        pairs: How many pairs at most, of two models ("cross") and of one ("same") together.
        rankings: How many rankings at most, each of two, three and four candidates.
        gap: How far apart the candidates of a pair are.
        unwritten_pairs: Pair candidates that no model wrote as well, as `degraded` makes them.
        all_tiers: Rankings only of documents with a candidate in all four tiers.
        on_disagreement: What becomes of items whose gold order the second check contradicts, or cannot tell:
            "drop", or "mark" in the column `second_check`. Items that nothing can check are always marked.
        per_document: At most so many items of a kind about one text; None sets no limit.
        tasks: Names of Long-RewardBench's tasks by those of the documents; others must be one already.
        task: What documents that name no task count as.
        metric: What rates the answers to documents that name no metric.
    """

    pairs: int = Field(1000, ge=0)
    rankings: int = Field(300, ge=0)
    gap: Gap = Gap()
    unwritten_pairs: bool = False
    all_tiers: bool = False
    on_disagreement: Literal["drop", "mark"] = "drop"
    per_document: int | None = Field(None, ge=1)
    tasks: Mapping[str, str] = Field(default_factory=dict)
    task: str = ""
    metric: str = ""

    @field_validator("metric")
    @classmethod
    def _known(cls, name: str) -> str:
        if name:
            answer_metric(name)
        return name


@dataclass(frozen=True, slots=True)
class Place:
    """An item, what balance looks at (its task, its length in tokens and its text), and how its order was found."""

    item: Item
    task: str
    length: int
    group: str
    metric: str
    verdict: Verdict


@dataclass
class Counts:
    """What every step took in, kept and dropped, and why.

    Attributes:
        documents: By what became of them: "scored", or why not.
        candidates: By what became of them: "scored", or why not.
        models: Candidates by the model that wrote them.
        verdicts: Of the second check, by task's metric and verdict, over all items that could be chosen.
        available: Items that could be chosen, by kind.
        chosen: Those that were, by kind, task and length.
    """

    documents: Counter[str] = field(default_factory=Counter)
    candidates: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    available: Counter[Kind] = field(default_factory=Counter)
    chosen: Counter[tuple[Kind, str, int]] = field(default_factory=Counter)

    def share(self, verdict: Verdict, metric: str | None = None) -> float | None:
        """The share of a verdict among the items that were checked; None if none was.

        Args:
            verdict: "agrees", "disagrees" or "undecided".
            metric: Of items that this metric has ordered; None takes all.
        """
        found: Counter[Verdict] = Counter()
        for (of, said), count in self.verdicts.items():
            if metric in (None, of):
                found[said] += count
        checked = found.total() - found["unchecked"]
        return found[verdict] / checked if checked else None


def choose(
    source: Source, settings: Benchmark, check: Check, measure: Callable[[str], int], *, seed: int = 0
) -> tuple[list[Place], Counts]:
    """Scores all candidates and chooses the items, balanced over task and length.

    Args:
        source: Documents with candidates.
        settings: What is chosen.
        check: The second opinion on the gold order.
        measure: Tokens of a text.
        seed: Of all draws.

    Raises:
        ConfigError: A document's task is none of Long-RewardBench's, nor mapped to one.
    """
    counts = Counts()
    found: dict[Kind, list[Place]] = {kind: [] for kind in KINDS}
    for place in _places(source, settings, check, measure, counts, seed):
        if settings.on_disagreement == "mark" or place.verdict in ("agrees", "unchecked"):
            found[place.item.kind].append(place)
    counts.available.update({kind: len(places) for kind, places in found.items()})
    chosen = _pick(found, settings, seed)
    counts.chosen.update((place.item.kind, place.task, place.length) for place in chosen)
    return chosen, counts


def _places(
    source: Source,
    settings: Benchmark,
    check: Check,
    measure: Callable[[str], int],
    counts: Counts,
    seed: int,
) -> Iterator[Place]:
    """Every item that could be, with what the second check says of it."""
    sized = _Sizes(measure)
    scored_ones = (one for given in source() if (one := _scored(given, settings, counts, seed)))
    while some := list(islice(scored_ones, _AT_ONCE)):
        for (document, _, items), verdicts in zip(some, check(some), strict=True):
            task, length = task_of(document, settings), sized.of(document) if items else 0
            for item, verdict in zip(items, verdicts, strict=True):
                counts.verdicts[document.metric, verdict] += 1
                yield Place(item, task, length, document.group, document.metric, verdict)


def _scored(given: Given, settings: Benchmark, counts: Counts, seed: int) -> Checked | None:
    """A document with its scored candidates and their items; None, and counted, where there is nothing to score."""
    document = given.document
    if not document.metric:
        document = replace(document, metric=settings.metric)
    task_of(document, settings)  # a task that is none stops the build, whatever the candidates are
    candidates = _usable(document, given.candidates, counts)
    if candidates is None:
        return None
    items = [*pairs(document.id, candidates, settings.gap, unwritten=settings.unwritten_pairs)]
    items += rankings(document.id, candidates, seed, all_tiers=settings.all_tiers)
    return document, candidates, items


class _Sizes:
    """Lengths of prompts; a text about which several questions follow each other is measured once."""

    def __init__(self, measure: Callable[[str], int]) -> None:
        self._measure, self._text, self._tokens = measure, "", 0

    def of(self, document: Document) -> int:
        """The bucket of a document's prompt."""
        if document.text != self._text:
            self._text, self._tokens = document.text, self._measure(document.text)
        return bucket(self._tokens + self._measure(OPENING + CLOSING + ASKING + document.question))


def task_of(document: Document, settings: Benchmark) -> str:
    """What a document's task is called in Long-RewardBench.

    Raises:
        ConfigError: It is none of its tasks, nor mapped to one.
    """
    task = settings.tasks.get(document.task, document.task) if document.task else settings.task
    if task not in long_rewardbench.TASKS:
        known = ", ".join(long_rewardbench.TASKS)
        where = f"{document.place}, field 'task': " if document.place else ""
        raise ConfigError(
            f"{where}document '{document.id}' is of the task '{cut(document.task)}'; map it in `benchmark.tasks` to "
            f"one of {known}"
            if document.task
            else f"{where}document '{document.id}' names no task; say in `benchmark.task` which of {known} it is"
        )
    return task


def comparisons(source: Source, chosen: Sequence[Place], task: str) -> Iterator[Comparison]:
    """The chosen items of one task as comparisons, in the order of the documents."""
    places: dict[str, list[Place]] = {}
    for place in chosen:
        if place.task == task:
            places.setdefault(place.item.document, []).append(place)
    for given in source() if places else ():
        for place in sorted(places.pop(given.document.id, ()), key=lambda place: place.item.id):
            yield comparison_of(given.document, [given.candidates[at] for at in place.item.candidates], place)
        if not places:
            return
    if places:
        raise DataError(f"document '{next(iter(places))}' was there at first and is gone; build anew")


def comparison_of(document: Document, best_first: Sequence[Candidate], place: Place) -> Comparison:
    """One item in full; prompt, context and question as they are written."""
    prompt = plain_prompt(document.text, document.question)
    text, start = message_text(prompt[0]), len(OPENING)
    models = [candidate.model for candidate in best_first]
    paired = place.item.kind in ("cross", "same")
    metadata = {
        "task": place.task,
        "subtask": document.task or None,
        "source": document.metadata.get("source"),
        "length": place.length,
        "tasktype": "PairWise" if paired else "BestOfN",
        "subtype": place.item.kind if paired else str(len(models)),
        **(
            {"chosen_model": models[0], "rejected_model": models[1]}
            if paired
            else {"candidates_model": models}
        ),
        "candidates_score": [*place.item.scores],
        "perturbations": [candidate.perturbation for candidate in best_first],
        "metric": place.metric,
        "second_check": place.verdict,
        "document": document.id,
    }
    return Comparison(
        id=place.item.id,
        group=document.group,
        prompt=prompt,
        responses=tuple(({"role": "assistant", "content": candidate.text},) for candidate in best_first),
        ranks=tuple(range(1, len(models) + 1)),
        metadata={key: value for key, value in metadata.items() if value is not None},
        context=(Span(0, start, start + len(document.text)),),
        question=Span(0, len(text) - len(document.question), len(text)),
    )


def write(
    folder: Path, source: Source, chosen: Sequence[Place], see: See = lambda comparison: None
) -> dict[str, int]:
    """Writes the chosen items, one file a task, row by row; `benchmarks.long_rewardbench` reads them back.

    Args:
        folder: Where the files go; each appears once it is whole.
        source: Documents with candidates, read once for every task, as far as its last document.
        chosen: The items.
        see: Is shown every comparison before it is written.

    Returns:
        How many rows each task's file has.

    Raises:
        DataError: A file cannot be written, or a document is gone.
    """
    tasks = sorted({place.task for place in chosen})
    return {
        task: write_rows(folder / f"{task}.jsonl", _rows(comparisons(source, chosen, task), see))
        for task in tasks
    }


def _rows(found: Iterable[Comparison], see: See) -> Iterator[dict[str, Any]]:
    for number, comparison in enumerate(found, start=1):
        see(comparison)
        yield long_rewardbench.to_row(comparison, number)


def _usable(document: Document, given: Sequence[Candidate], counts: Counts) -> list[Candidate] | None:
    counts.models.update(one.model for one in given)
    candidates = scored(document, given)
    if candidates is None:
        counts.documents["no gold answer that a metric can rate by"] += 1
        counts.candidates["their document cannot be scored"] += len(given)
        return None
    counts.documents["scored" if len(candidates) > 1 else "fewer than two candidates"] += 1
    apart = len(distinct(candidates))
    counts.candidates["scored"] += apart
    counts.candidates["the same words as another's"] += len(candidates) - apart
    return candidates


def _pick(found: Mapping[Kind, Sequence[Place]], settings: Benchmark, seed: int) -> list[Place]:
    """Every kind evenly over its cells of task and length; both kinds of pairs evenly."""
    rankings: list[Place] = []
    for kind in KINDS[2:]:
        rankings += _evenly(_queues(kind, found[kind], settings, seed), settings.rankings)
    # A ranking of two and a pair of the same two would be one item twice.
    ranked = {(place.item.document, place.item.candidates) for place in rankings}
    queues = {}
    for kind in KINDS[:2]:
        left = [one for one in found[kind] if (one.item.document, one.item.candidates) not in ranked]
        queues[kind] = _queues(kind, left, settings, seed)
    held = {kind: sum(map(len, cells.values())) for kind, cells in queues.items()}
    totals = shares(held, settings.pairs)
    return [place for kind, cells in queues.items() for place in _evenly(cells, totals[kind])] + rankings


def _evenly(cells: Mapping[tuple[str, int], Sequence[Place]], total: int) -> Iterator[Place]:
    taken = shares({cell: len(queue) for cell, queue in cells.items()}, total)
    for cell, queue in cells.items():
        yield from queue[: taken[cell]]


def _queues(
    kind: Kind, places: Sequence[Place], settings: Benchmark, seed: int
) -> dict[tuple[str, int], list[Place]]:
    """The items of a kind by task and length, in the order in which they are taken: texts take turns."""
    cells: dict[tuple[str, int], dict[str, list[Place]]] = {}
    for place in places:
        cells.setdefault((place.task, place.length), {}).setdefault(place.group, []).append(place)
    queues = {}
    for cell, groups in cells.items():
        queue = in_turns(groups, "benchmark", seed, kind, *cell)
        if settings.per_document is not None:
            of_text: Counter[str] = Counter()
            kept = []
            for place in queue:
                of_text[place.group] += 1
                if of_text[place.group] <= settings.per_document:
                    kept.append(place)
            queue = kept
        queues[cell] = queue
    return queues
