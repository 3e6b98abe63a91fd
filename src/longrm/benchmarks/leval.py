"""L-Eval (arXiv 2307.11088): real long documents, with real answers of several models rated by a gold answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, TypeAdapter

from longrm.benchmarks.answer_metrics import choices, latin_rouge_l, squad_contains, squad_f1
from longrm.benchmarks.benchmark import (
    AuditedComparisons,
    Auditor,
    BenchmarkRequest,
    LoadedBenchmark,
    bucket,
    measure_with,
)
from longrm.benchmarks.stratified_sample import balanced
from longrm.config import Config
from longrm.data.fields import group_of
from longrm.data.files import RawRow, raw_rows
from longrm.errors import ConfigError, DataError, nearest
from longrm.reading import reading, typed
from longrm.types import Comparison, Span

FINDINGS = {
    "repeated_documents": "rows that repeat a document with its questions; left out",
    "no_predictions": "tasks that have documents, but no predictions; left out",
    "no_documents": "files of predictions that have no documents; left out",
    "missing_predictions": "questions for which a model's file of predictions has no line",
    "surplus_predictions": "predictions beyond the last question of their task; left out",
    "misaligned_predictions": "predictions for another question or gold answer than their line's; left out",
    "empty_answers": "empty answers; left out",
    "identical_answers": "answers that another model gave word for word; left out",
    "unreadable_choices": "answers to multiple-choice questions that do not say which choice; left out",
    "not_scorable": "questions whose answers can only be rated by a judge; left out",
    "too_few_answers": "questions with fewer scored answers than a comparison needs; left out",
    "no_clear_gap": "questions without answers that are clearly apart; left out",
    "gold_in_worse": "comparisons by F1 in which a worse answer contains the whole gold answer; left out",
    "unbalanced": "comparisons left out so that the better answer is as often the longer as the shorter one",
}
"""The kinds of finding in this benchmark, with descriptions."""

# Least difference between the scores of a pair, by L-Eval's kind of evaluation. It keeps the clearest third of the
# pairs by F1 and fifth of those by ROUGE-L, which is smaller: summaries share few words in a row.
_GAPS = {"f1": 0.2, "rouge": 0.05, "exam": 1.0}
_OPENING = "Here is a document.\n\n"
_BETWEEN = "\n\nThis was the whole document. Answer from it.\n\n"
_SUFFIX = ".pred.jsonl"


class Leval(Config):
    """Which answers of L-Eval's models are compared.

    F1 favors short answers: in 15% of its pairs the worse answer contains the whole gold answer, and in 61% the better
    answer is the shorter one.

    Attributes:
        selection: "balanced" leaves out pairs by F1 in which the worse answer contains the whole gold answer, and of
            each task so many others that the better answer is as often the longer as the shorter one; "all" takes all.
        tasks: Names of data files without suffix; empty takes all.
    """

    selection: Literal["balanced", "all"] = "balanced"
    tasks: tuple[str, ...] = ()


class _Document(BaseModel):
    """A row of a data file."""

    input: str = Field(min_length=1)
    evaluation: str
    instructions: list[str]
    outputs: list[str]


_DOCUMENT = TypeAdapter(_Document)


@dataclass(frozen=True, slots=True)
class Question:
    """The k-th (instruction, output) of a data file; line k of a file of predictions answers it."""

    number: int  # k, from 1
    document: str
    text: str
    gold: str
    evaluation: str  # how L-Eval rates answers
    repeated: bool  # by an earlier row


def load_leval(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs of answers in a folder with L-Eval's documents and predictions."""
    folder = Path(request.path)
    find_files(folder, request.leval)  # raises now rather than at the first comparison
    rows = partial(comparisons, folder, request.leval, measure_with(request.source.tokenizer))
    return LoadedBenchmark(request.name, AuditedComparisons(rows, FINDINGS, request.source.limit))


def find_files(folder: Path, settings: Leval) -> tuple[dict[str, Path], dict[tuple[str, str], Path]]:
    """The data files by task, and the files of predictions by model and task."""
    with reading(folder, DataError):
        files = {file.stem: file for file in sorted((folder / "data").glob("*.jsonl"))}
        found = sorted((folder / "predictions").glob(f"*/*{_SUFFIX}"))
    predictions = {(file.parent.name, file.name.removesuffix(_SUFFIX)): file for file in found}
    if not files or not predictions:
        raise DataError(
            f"{folder}: no L-Eval here; it needs data/TASK.jsonl and predictions/MODEL/TASK{_SUFFIX}"
        )
    for task in settings.tasks:
        if task not in files:
            raise ConfigError(f"{folder} has no task '{task}'; {nearest(task, files)}")
    return files, predictions


def comparisons(
    folder: Path, settings: Leval, measure: Callable[[str], int], auditor: Auditor
) -> Iterator[Comparison]:
    """Compares every two answers to a question whose scores are clearly apart, the better one first.

    "f1" tasks are scored by token F1, "rouge" tasks by ROUGE-L, and multiple-choice "exam" tasks by whether
    exactly the right choices are named. The group is the document.
    """
    files, predictions = find_files(folder, settings)
    for model, task in predictions:
        if task not in files:
            auditor.note("no_documents", f"{model}/{task}")
    for task in settings.tasks or files:
        answered = {model: path for (model, of), path in predictions.items() if of == task}
        if not answered:
            auditor.note("no_predictions", task)
            continue
        found = list(_pairs(task, files[task], answered, measure, auditor))
        if settings.selection == "all":
            yield from (pair for pair, _ in found)
            continue
        fair = []
        for pair, gold_in_worse in found:
            if gold_in_worse:
                auditor.note("gold_in_worse", pair.id)
            else:
                fair.append(pair)
        # By how many characters the better answer is longer.
        leads = [
            len(better[0]["content"]) - len(worse[0]["content"])
            for better, worse in (p.responses for p in fair)
        ]
        kept = {*balanced(leads)}
        for place, pair in enumerate(fair):
            if place not in kept:
                auditor.note("unbalanced", pair.id)
        yield from (fair[place] for place in sorted(kept))


def _pairs(
    task: str,
    file: Path,
    files_by_model: Mapping[str, Path],
    measure: Callable[[str], int],
    auditor: Auditor,
) -> Iterator[tuple[Comparison, bool]]:
    """The pairs of a task, each with whether it is scored by F1 and its worse answer contains the gold answer."""
    predictions = {model: rows_of(path) for model, path in files_by_model.items()}
    document, tokens, last_number = "", 0, 0
    for question in questions_of(task, file, auditor):
        last_number = question.number
        if question.repeated:
            continue
        if question.document != document:  # a document is measured once for all of its questions
            document = question.document
            tokens = measure(document)
        name = f"{task}/{question.number}"
        texts = texts_of(name, question, predictions, auditor)
        scores = _scores(name, question, texts, auditor)
        if scores is None:
            continue
        text = f"{_OPENING}{document}{_BETWEEN}{question.text}"
        prompt = ({"role": "user", "content": text},)
        context = Span(0, len(_OPENING), len(_OPENING) + len(document))
        any_apart = False
        for better, worse in combinations(sorted(scores, key=lambda model: -scores[model]), 2):
            if scores[better] - scores[worse] < _GAPS[question.evaluation]:
                continue
            any_apart = True
            pair = Comparison(
                id=f"{name}/{better}+{worse}",
                group=group_of({}, prompt, (context,), None),
                prompt=prompt,
                responses=tuple(
                    ({"role": "assistant", "content": texts[model]},) for model in (better, worse)
                ),
                ranks=(1, 2),
                metadata={
                    "task": task,
                    "subtype": question.evaluation,
                    "length": bucket(tokens + measure(question.text)),
                    "source": "L-Eval",
                    "models": [better, worse],
                    "metric": [scores[better], scores[worse]],
                },
                context=(context,),
                question=Span(0, len(text) - len(question.text), len(text)),
            )
            yield pair, question.evaluation == "f1" and squad_contains(texts[worse], question.gold)
        if scores and not any_apart:
            auditor.note("no_clear_gap" if len(scores) > 1 else "too_few_answers", name)
    for model, rows in predictions.items():
        for number in range(last_number + 1, len(rows) + 1):
            auditor.note("surplus_predictions", f"{task}/{number}, {model}")


def questions_of(task: str, file: Path, auditor: Auditor) -> Iterator[Question]:
    """Every question of a data file, those of repeated rows included: predictions are aligned with them by number."""
    seen: set[tuple[str, str]] = set()
    number = 0
    for raw in rows_of(file):
        row = typed(_DOCUMENT, raw.checked(), raw.place, DataError)
        if len(row.instructions) != len(row.outputs):
            counts = f"{len(row.outputs)} for {len(row.instructions)} instructions"
            raise DataError(f"{raw.place}, field 'outputs': {counts}")
        keys = {(row.input, question) for question in row.instructions}
        repeated = keys <= seen
        if repeated:
            auditor.note("repeated_documents", f"{task}, line {raw.number}")
        seen |= keys
        for question, gold in zip(row.instructions, row.outputs, strict=True):
            number += 1
            yield Question(number, row.input, question, gold, row.evaluation, repeated)


def texts_of(
    name: str, question: Question, predictions: Mapping[str, Sequence[RawRow]], auditor: Auditor
) -> dict[str, str]:
    """The answers by model, without empty ones and those that repeat an earlier model's."""
    texts: dict[str, str] = {}
    for model, rows in predictions.items():
        where = f"{name}, {model}"
        if question.number > len(rows):
            auditor.note("missing_predictions", where)
            continue
        place, row = rows[question.number - 1].place, rows[question.number - 1].checked()
        if (row.get("query"), row.get("gt")) != (question.text, question.gold):
            auditor.note("misaligned_predictions", where)
            continue
        field = next((key for key in row if key.endswith("_pred") and row[key] is not None), "")
        text = row[field] if field else ""
        if not isinstance(text, str):
            raise DataError(f"{place}, field '{field}': must be a text")
        text = text.strip()
        if not text:
            auditor.note("empty_answers", where)
        elif text in texts.values():
            auditor.note("identical_answers", where)
        else:
            texts[model] = text
    return texts


def _scores(
    name: str, question: Question, texts: Mapping[str, str], auditor: Auditor
) -> dict[str, float] | None:
    """The scores by model; None if no metric rates one answer alone."""
    match question.evaluation:
        case "f1":
            return {model: squad_f1(text, question.gold) for model, text in texts.items()}
        case "rouge":
            return {model: latin_rouge_l(text, question.gold) for model, text in texts.items()}
        case "exam" if right := choices(question.gold):
            chosen = {model: choices(text) for model, text in texts.items()}
            for model in chosen:
                if not chosen[model]:
                    auditor.note("unreadable_choices", f"{name}, {model}")
            return {model: float(letters == right) for model, letters in chosen.items() if letters}
        case _:
            auditor.note("not_scorable", name)
            return None


def rows_of(file: Path) -> list[RawRow]:
    """All rows of a file of documents or predictions; raises `DataError` at one that cannot be read."""
    rows = list(raw_rows([file]))
    for row in rows:
        row.checked()
    return rows
