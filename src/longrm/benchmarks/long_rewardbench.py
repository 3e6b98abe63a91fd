"""Long-RewardBench (arXiv 2510.06915): pairs and rankings in seven tasks, with contexts of 4K to 128K tokens."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from longrm import hub
from longrm.benchmarks.benchmark import (
    UNREADABLE,
    AuditedComparisons,
    Auditor,
    BenchmarkRequest,
    LoadedBenchmark,
    items_of,
    labeled_length,
    measure_with,
    rateable_responses,
    read_rows,
)
from longrm.data.chunking import approximate_tokens
from longrm.data.fields import (
    FileRow,
    find_question,
    group_of,
    messages_of,
    name_of,
    ranks_by_scores,
    required,
    rising,
    scores_of,
    to_json_types,
)
from longrm.data.files import origin_of
from longrm.errors import DataError
from longrm.reading import FieldError, reading, short
from longrm.types import Comparison, Message, Span, message_text, text_of

_logger = logging.getLogger(__name__)

TASKS = ("Cite", "Code", "ICL", "LongQA", "Math", "Safety", "Summ")
FINDINGS = {
    "rising_scores": "items whose candidates come best first, but whose scores rise; the order of the file is kept",
    "length_labels_off": "items whose length label is more than twice or less than half of the measured tokens",
    "question_not_found": "items whose question is not in their prompt: their context is unknown, so it cannot be "
    "cut, compressed or checked",
    "missing_tasks": "tasks of the benchmark without a file",
    **UNREADABLE,
}
"""The kinds of finding in this benchmark, with descriptions."""

_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
# A part of the prompt is context if it has at least this share of all characters; the rest are instructions.
_CONTEXT_SHARE = 0.1
# Columns that become fields of the comparison, or metadata under another name.
_USED = {"prompt_template", "question", "chosen", "rejected", "candidates", "group"}
_RENAMED = {"ctx_length_for_length": "length", "length": "stated_length", "id": "row_id"}


def load_long_rewardbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The items of a folder as it is published, of one file, or of a data set of the Hub, as `TASK/LINE`."""
    source, files = request.source, find_files(request.path)
    _logger.info("Long-RewardBench: reading %s", ", ".join(str(file) for file in files.values()))

    def comparisons(measure: Callable[[str], int], auditor: Auditor) -> Iterator[Comparison]:
        if {*files} <= {*TASKS}:  # a file of another name may contain any of them
            for task in sorted({*TASKS} - {*files}):
                auditor.note("missing_tasks", task)
        for name, file in files.items():
            yield from read_rows(
                [file], partial(_comparison, name, measure, auditor), auditor, source.on_bad_row
            )

    if source.on_bad_row == "stop":
        deque(comparisons(len, Auditor(FINDINGS)), maxlen=0)  # a bad row ends the run before any work is done
    rows = AuditedComparisons(partial(comparisons, measure_with(source.tokenizer)), FINDINGS, source.limit)
    return LoadedBenchmark(request.name, rows, provenance=origin_of([*files.values()]))


def find_files(path: str) -> dict[str, Path]:
    """The files by their names without suffix, which are tasks in a folder as it is published.

    The path is a folder with some of the seven files, one file, or a Hub id `owner/name` or `owner/name@revision`.
    """
    place = Path(path)
    with reading(place, DataError):
        if place.is_file():
            return {place.name.split(".")[0]: place}
        if not place.exists() and "/" in path and hub.split_revision(path) is not None:
            wanted = [f"{task}{suffix}" for task in TASKS for suffix in _SUFFIXES]
            place = hub.fetch(path, wanted, DataError, data_set=True)
        files = [(task, place / f"{task}{suffix}") for task in TASKS for suffix in _SUFFIXES]
        found = {task: file for task, file in files if file.exists()}
    if not found:
        names = ", ".join(f"{task}.jsonl" for task in TASKS)
        raise DataError(f"{path}: no file or folder of Long-RewardBench; it needs at least one of {names}")
    return found


def to_row(comparison: Comparison, number: int) -> dict[str, Any]:
    """A comparison as a row with this `id` and the responses best first, as plain text.

    Metadata without a column in the benchmark gets a new one. `DataError` if gold ranks or question are unknown.
    """
    if comparison.ranks is None or comparison.question is None:
        raise DataError(f"'{comparison.id}' has no gold ranks or no span of its question")
    ranks, at, texts = comparison.ranks, comparison.question, [*map(message_text, comparison.prompt)]
    order = comparison.best_first()
    responses = [text_of(comparison.responses[index]) for index in order]
    metadata = dict(comparison.metadata)
    length = metadata.pop("length", None)
    label = length and (f"{length // 1024}k" if length % 1024 == 0 else str(length))
    paired = metadata.pop("tasktype", "PairWise" if len(responses) == 2 else "BestOfN") == "PairWise"
    text = "\n\n".join(texts)
    return {
        "id": number,
        "prompt_template": [dict(message) for message in comparison.prompt],
        "question": texts[at.message][at.start : at.end],
        **dict.fromkeys(("source", "subtask", "chosen_model", "rejected_model", "candidates_model")),
        "ctx_length_for_words": label,
        "subtype": "" if paired else str(len(responses)),
        "candidates_score": None if paired else [1 / ranks[index] for index in order],
        **{key: value for key, value in metadata.items() if key not in _RENAMED.values()},
        "chosen": responses[0] if paired else None,
        "rejected": responses[1] if paired else None,
        "ctx_length_for_length": label,
        "length": approximate_tokens(text),
        "words_count": len(text.split()),
        "tasktype": "PairWise" if paired else "BestOfN",
        "candidates": None if paired else responses,
        "group": comparison.group,
    }


def _comparison(
    name: str, measure: Callable[[str], int], auditor: Auditor, row: FileRow, number: int, _: Counter[str]
) -> Comparison:
    task = name if name in TASKS else name_of(row, "task")
    identity = f"{task}/{number}"
    prompt = messages_of(required(row, "prompt_template")[1], "prompt_template", "user")
    kind = row.get("tasktype") or ("BestOfN" if row.get("candidates") else "PairWise")
    if kind not in ("PairWise", "BestOfN"):
        raise FieldError("tasktype", f"must be 'PairWise' or 'BestOfN', got {short(kind)}")
    ranks: tuple[int, ...]
    if kind == "PairWise":
        given, ranks = {field: row.get(field) for field in ("chosen", "rejected")}, (1, 2)
    else:
        given = items_of(row, "candidates", 2)
        ranks = tuple(range(1, len(given) + 1))
        if row.get("candidates_score") is not None:
            # The order of the file counts and equal scores tie. As the authors read it, rising scores change nothing.
            scores = scores_of(row["candidates_score"], len(given), "candidates_score")
            ranks = ranks_by_scores(scores)
            if rising(scores):
                auditor.note("rising_scores", identity)
    responses = rateable_responses(given, ranks)

    length = labeled_length(row, "ctx_length_for_length")
    if length:
        tokens = measure("\n\n".join(map(message_text, prompt)))
        if not tokens / 2 <= length <= tokens * 2:
            auditor.note("length_labels_off", f"{identity}: {length}, measured {tokens}")

    question = find_question(row, prompt)
    if question is None:
        auditor.note("question_not_found", identity)
    context = _context(prompt, question)
    # "same" or another word for pairs, the number of candidates for rankings, which some files store as a float.
    subtype = "" if kind == "PairWise" else str(len(responses))
    if row.get("subtype") is not None:
        subtype = name_of(row, "subtype").removesuffix(".0")
    metadata = {
        _RENAMED.get(key, key): plain
        for key, value in row.items()
        if key not in _USED and (plain := to_json_types(value)) is not None
    }
    if length:
        metadata["length"] = length
    return Comparison(
        id=identity,
        group=group_of(row, prompt, context, question),
        prompt=prompt,
        responses=responses,
        ranks=ranks,
        metadata=metadata | {"task": task, "subtype": subtype},
        context=context,
        question=question,
    )


def _context(prompt: tuple[Message, ...], question: Span | None) -> tuple[Span, ...]:
    """What may be cut: all long parts of the prompt but the question; nothing if the question is unknown."""
    if question is None:
        return ()
    texts = [message_text(message) for message in prompt]
    parts = [Span(index, 0, len(text)) for index, text in enumerate(texts) if index != question.message]
    end = len(texts[question.message])
    parts += [Span(question.message, 0, question.start), Span(question.message, question.end, end)]
    least = _CONTEXT_SHARE * sum(map(len, texts))
    context = []
    for part in parts:
        text = texts[part.message][part.start : part.end]
        if len(text) >= least and text.strip():
            start = part.start + len(text) - len(text.lstrip())
            context.append(Span(part.message, start, start + len(text.strip())))
    return tuple(sorted(context, key=lambda span: (span.message, span.start)))
