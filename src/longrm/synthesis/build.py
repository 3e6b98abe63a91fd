"""A benchmark of the user's own, as Long-RewardBench is built (paper, section 2).

Question, context and gold answer, with candidates that a metric scores, become pairs and rankings: balanced by task
and length, checked a second time, and written in the schema of Long-RewardBench. Documents are read once to choose
and again to write; between them only the places of what may be chosen are held.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field

from longrm.benchmarks import leval, long_rewardbench
from longrm.benchmarks.audit import Auditor
from longrm.benchmarks.lengths import bucket
from longrm.config import Config
from longrm.data import write_rows
from longrm.errors import ConfigError, DataError
from longrm.synthesis.balance import in_turns, shares
from longrm.synthesis.documents import Document, read_answered
from longrm.synthesis.ranking import KINDS, Gap, Item, Kind, distinct, pairs, rankings, scored
from longrm.synthesis.records import Candidate, by_document
from longrm.synthesis.second_check import Check, Verdict
from longrm.types import Comparison, Span

Source = Callable[[], Iterable[tuple[Document, Sequence[Candidate]]]]
"""Reads the documents with their candidates anew, from the start, in an order that never changes."""

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

_OPENING = "A document comes first, and a question about it after it.\n\n"
_BETWEEN = "\n\nHere the document ends. Rely on it alone.\n\nQuestion: "


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
        seed: Of all draws.
    """

    pairs: int = Field(1000, ge=0)
    rankings: int = Field(300, ge=0)
    gap: Gap = Gap()
    unwritten_pairs: bool = False
    all_tiers: bool = False
    on_disagreement: Literal["drop", "mark"] = "drop"
    per_document: int | None = Field(None, ge=1)
    tasks: Mapping[str, str] = Field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """An item, and what balance looks at: its task, its length in tokens and its text."""

    item: Item
    task: str
    length: int
    group: str
    verdict: Verdict


@dataclass
class Counts:
    """What every step took in, kept and dropped, and why.

    Attributes:
        documents: By what became of them: "scored", or why not.
        candidates: By what became of them: "scored", or why not.
        verdicts: Of the second check, by task's metric and verdict, over all items that could be chosen.
        available: Items that could be chosen, by kind.
        chosen: Those that were, by kind, task and length.
    """

    documents: Counter[str] = field(default_factory=Counter)
    candidates: Counter[str] = field(default_factory=Counter)
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


def recorded(folder: Path) -> Source:
    """L-Eval's documents with the recorded answers of five models as candidates, unperturbed."""

    def read() -> Iterator[tuple[Document, list[Candidate]]]:
        for answered in read_answered(folder, Auditor(leval.LOOKS_FOR)):
            name = answered.document.id
            yield (
                answered.document,
                [Candidate(name, model, text) for model, text in answered.answers.items()],
            )

    return read


def joined(
    documents: Callable[[], Iterable[Document]], candidates: Callable[[], Iterable[Candidate]]
) -> Source:
    """Documents with their candidates, which follow each other in the documents' order, as they were written.

    Raises:
        DataError: On reading: candidates of a document that is not there, or not in its place.
    """

    def read() -> Iterator[tuple[Document, list[Candidate]]]:
        groups = by_document(candidates())
        name, group = next(groups, ("", []))
        for document in documents():
            if document.id == name:
                yield document, group
                name, group = next(groups, ("", []))
            else:
                yield document, []
        if name:
            raise DataError(
                f"candidates answer the document '{name}', which is not among the documents, or not in this order"
            )

    return read


def choose(
    source: Source, settings: Benchmark, check: Check, measure: Callable[[str], int]
) -> tuple[list[Place], Counts]:
    """Scores all candidates and chooses the items, balanced over task and length.

    Args:
        source: Documents with candidates.
        settings: What is chosen.
        check: The second opinion on the gold order.
        measure: Tokens of a text.

    Raises:
        ConfigError: A document's task is none of Long-RewardBench's, nor mapped to one.
    """
    counts = Counts()
    found: dict[Kind, list[Place]] = {kind: [] for kind in KINDS}
    text, tokens = "", 0
    for document, given in source():
        task = task_of(document, settings)
        candidates = _usable(document, given, counts)
        if candidates is None:
            continue
        if document.text != text:
            text, tokens = document.text, measure(document.text)
        length = bucket(tokens + measure(_OPENING + _BETWEEN + document.question))
        items = [*pairs(document.id, candidates, settings.gap, unwritten=settings.unwritten_pairs)]
        items += rankings(document.id, candidates, settings.seed, all_tiers=settings.all_tiers)
        for item, verdict in zip(items, check(document, candidates, items), strict=True):
            counts.verdicts[document.metric, verdict] += 1
            if settings.on_disagreement == "mark" or verdict in ("agrees", "unchecked"):
                found[item.kind].append(Place(item, task, length, document.group, verdict))
    counts.available.update({kind: len(places) for kind, places in found.items()})
    chosen = _pick(found, settings)
    counts.chosen.update((place.item.kind, place.task, place.length) for place in chosen)
    return chosen, counts


def task_of(document: Document, settings: Benchmark) -> str:
    """What a document's task is called in Long-RewardBench.

    Raises:
        ConfigError: It is none of its tasks, nor mapped to one.
    """
    task = settings.tasks.get(document.task, document.task)
    if task not in long_rewardbench.TASKS:
        raise ConfigError(
            f"document '{document.id}' is of the task '{document.task}'; map it in `tasks` to one of "
            f"{', '.join(long_rewardbench.TASKS)}"
        )
    return task


def comparisons(source: Source, chosen: Sequence[Place], task: str) -> Iterator[Comparison]:
    """The chosen items of one task as comparisons, in the order of the documents."""
    places: dict[str, list[Place]] = {}
    for place in chosen:
        if place.task == task:
            places.setdefault(place.item.document, []).append(place)
    for document, given in source():
        for place in sorted(places.pop(document.id, ()), key=lambda place: place.item.id):
            yield comparison_of(document, [given[at] for at in place.item.candidates], place)
    if places:
        raise DataError(f"document '{next(iter(places))}' was there at first and is gone; build anew")


def comparison_of(document: Document, best_first: Sequence[Candidate], place: Place) -> Comparison:
    """One item in full; prompt, context and question as they are written."""
    text = f"{_OPENING}{document.text}{_BETWEEN}{document.question}"
    start = len(_OPENING)
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
        "metric": document.metric,
        "second_check": place.verdict,
        "document": document.id,
    }
    return Comparison(
        id=place.item.id,
        group=document.group,
        prompt=({"role": "user", "content": text},),
        responses=tuple(({"role": "assistant", "content": candidate.text},) for candidate in best_first),
        ranks=tuple(range(1, len(models) + 1)),
        metadata={key: value for key, value in metadata.items() if value is not None},
        context=(Span(0, start, start + len(document.text)),),
        question=Span(0, len(text) - len(document.question), len(text)),
    )


def write(folder: Path, source: Source, chosen: Sequence[Place]) -> dict[str, int]:
    """Writes the chosen items, one file a task, row by row; `benchmarks.long_rewardbench` reads them back.

    Returns:
        How many rows each task's file has.

    Raises:
        DataError: A file cannot be written, or a document is gone.
    """
    written = {}
    for task in sorted({place.task for place in chosen}):
        rows = (
            long_rewardbench.to_row(comparison, number)
            for number, comparison in enumerate(comparisons(source, chosen, task), start=1)
        )
        written[task] = write_rows(folder / f"{task}.jsonl", rows)
    return written


def _usable(document: Document, given: Sequence[Candidate], counts: Counts) -> list[Candidate] | None:
    candidates = scored(document, given)
    if candidates is None:
        counts.documents["no gold answer that a metric can rate by"] += 1
        counts.candidates["left out: their document cannot be scored"] += len(given)
        return None
    counts.documents["scored" if len(candidates) > 1 else "fewer than two candidates"] += 1
    apart = len(distinct(candidates))
    counts.candidates["scored"] += apart
    counts.candidates["left out: the same words as another's"] += len(candidates) - apart
    return candidates


def _pick(found: Mapping[Kind, Sequence[Place]], settings: Benchmark) -> list[Place]:
    """Every kind evenly over its cells of task and length; both kinds of pairs evenly."""
    rankings: list[Place] = []
    for kind in KINDS[2:]:
        rankings += _evenly(_queues(kind, found[kind], settings), settings.rankings)
    # A ranking of two and a pair of the same two would be one item twice.
    ranked = {(place.item.document, place.item.candidates) for place in rankings}
    queues = {}
    for kind in KINDS[:2]:
        left = [one for one in found[kind] if (one.item.document, one.item.candidates) not in ranked]
        queues[kind] = _queues(kind, left, settings)
    held = {kind: sum(map(len, cells.values())) for kind, cells in queues.items()}
    totals = shares(held, settings.pairs)
    return [place for kind, cells in queues.items() for place in _evenly(cells, totals[kind])] + rankings


def _evenly(cells: Mapping[tuple[str, int], Sequence[Place]], total: int) -> Iterator[Place]:
    taken = shares({cell: len(queue) for cell, queue in cells.items()}, total)
    for cell, queue in cells.items():
        yield from queue[: taken[cell]]


def _queues(kind: Kind, places: Sequence[Place], settings: Benchmark) -> dict[tuple[str, int], list[Place]]:
    """The items of a kind by task and length, in the order in which they are taken: texts take turns."""
    cells: dict[tuple[str, int], dict[str, list[Place]]] = {}
    for place in places:
        cells.setdefault((place.task, place.length), {}).setdefault(place.group, []).append(place)
    queues = {}
    for cell, groups in cells.items():
        queue = in_turns(groups, "benchmark", settings.seed, kind, *cell)
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
