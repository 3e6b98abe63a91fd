"""The rows of a benchmark: selected comparisons in the schema of Long-RewardBench, one file a task."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from longrm.benchmarks import long_rewardbench
from longrm.data import write_rows
from longrm.errors import DataError
from longrm.synthesis.inputs.candidates import CandidateAnswer
from longrm.synthesis.inputs.documents import Document
from longrm.synthesis.inputs.policy_prompts import policy_prompt
from longrm.synthesis.inputs.selection import ReadInputs, SelectableComparison
from longrm.types import Comparison

Watch = Callable[[Comparison], None]


def write_benchmark(
    folder: Path, read: ReadInputs, chosen: Sequence[SelectableComparison], watch: Watch
) -> dict[str, int]:
    """Writes the selected comparisons, one file a task, row by row; `benchmarks.long_rewardbench` reads them back.

    Returns:
        How many rows each task's file has.

    Raises:
        DataError: A file cannot be written, or a document is gone.
    """
    tasks = sorted({one.task for one in chosen})
    return {
        task: write_rows(folder / f"{task}.jsonl", _rows(chosen_comparisons(read, chosen, task), watch))
        for task in tasks
    }


def chosen_comparisons(
    read: ReadInputs, chosen: Sequence[SelectableComparison], task: str
) -> Iterator[Comparison]:
    """The selected comparisons of one task, in the order of the documents."""
    by_document: dict[str, list[SelectableComparison]] = {}
    for one in chosen:
        if one.task == task:
            by_document.setdefault(one.ranked.document, []).append(one)
    for source in read() if by_document else ():
        for one in sorted(by_document.pop(source.id, ()), key=lambda one: one.ranked.id):
            best_first = [source.candidates[at] for at in one.ranked.candidates]
            yield _comparison(source.document, best_first, one)
        if not by_document:
            return
    if by_document:
        raise DataError(f"document '{next(iter(by_document))}' was there at first and is gone; build anew")


def _comparison(
    document: Document, best_first: Sequence[CandidateAnswer], chosen: SelectableComparison
) -> Comparison:
    """One comparison in full; prompt, context and question as they are written."""
    prompt, kind = policy_prompt(document), chosen.ranked.kind
    models = [candidate.model for candidate in best_first]
    paired = kind in ("cross", "same")
    written_by = (
        {"chosen_model": models[0], "rejected_model": models[1]} if paired else {"candidates_model": models}
    )
    metadata = {
        "task": chosen.task,
        "subtask": document.task or None,
        "source": document.metadata.get("source"),
        "length": chosen.length,
        "tasktype": "PairWise" if paired else "BestOfN",
        "subtype": kind if paired else str(len(models)),
        **written_by,
        "candidates_score": [*chosen.ranked.scores],
        "perturbations": [candidate.perturbation for candidate in best_first],
        "metric": chosen.metric,
        "second_check": chosen.opinion,
        "document": document.id,
    }
    return Comparison(
        id=chosen.ranked.id,
        group=document.group,
        prompt=prompt.messages,
        responses=tuple(({"role": "assistant", "content": candidate.text},) for candidate in best_first),
        ranks=tuple(range(1, len(models) + 1)),
        metadata={name: value for name, value in metadata.items() if value is not None},
        context=prompt.context,
        question=prompt.question,
    )


def _rows(found: Iterable[Comparison], watch: Watch) -> Iterator[dict[str, Any]]:
    for number, comparison in enumerate(found, start=1):
        watch(comparison)
        yield long_rewardbench.to_row(comparison, number)
