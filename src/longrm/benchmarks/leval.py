"""L-Eval (arXiv 2307.11088): real long documents, with real answers of several models rated by a gold answer."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

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
from longrm.data.fields import group_of
from longrm.data.files import raw_rows
from longrm.errors import DataError
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

    id: str  # TASK/k, where k counts from 1
    task: str
    document: str
    text: str
    gold: str
    evaluation: str  # how L-Eval rates answers
    answers: Mapping[str, str]  # by model, without empty and repeated ones


def load_leval(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs of answers in a folder with L-Eval's documents and predictions.

    Every two answers to a question whose scores are clearly apart are a pair, the better one first. "f1" tasks are
    scored by token F1, "rouge" tasks by ROUGE-L, and multiple-choice "exam" tasks by whether exactly the right choices
    are named. The group is the document.

    F1 favors short answers: in 15% of its pairs the worse answer contains the whole gold answer, and in 61% the better
    answer is the shorter one. "leval" leaves out the former, and of each task so many others that the better answer is
    as often the longer as the shorter one; "leval-all" takes all.
    """
    folder, balance = Path(request.path), not request.name.startswith("leval-all")
    # A bad row ends the run before any work is done.
    deque(read_questions(folder, Auditor(FINDINGS)), maxlen=0)
    rows = partial(_comparisons, folder, balance, measure_with(request.source.tokenizer))
    return LoadedBenchmark(request.name, AuditedComparisons(rows, FINDINGS, request.source.limit))


def find_files(folder: Path) -> tuple[dict[str, Path], dict[tuple[str, str], Path]]:
    """The data files by task, and the files of predictions by model and task."""
    with reading(folder, DataError):
        files = {file.stem: file for file in sorted((folder / "data").glob("*.jsonl"))}
        found = sorted((folder / "predictions").glob(f"*/*{_SUFFIX}"))
    predictions = {(file.parent.name, file.name.removesuffix(_SUFFIX)): file for file in found}
    if not files or not predictions:
        raise DataError(
            f"{folder}: no L-Eval here; it needs data/TASK.jsonl and predictions/MODEL/TASK{_SUFFIX}"
        )
    return files, predictions


def read_questions(folder: Path, auditor: Auditor, *, unanswered_tasks: bool = False) -> Iterator[Question]:
    """The questions of all tasks with their answers, optionally also of tasks without predictions."""
    files, predictions = find_files(folder)
    for model, task in predictions:
        if task not in files:
            auditor.note("no_documents", f"{model}/{task}")
    for task in files:
        lines = {
            model: [(raw.place, raw.checked()) for raw in raw_rows([path])]
            for (model, of), path in predictions.items()
            if of == task
        }
        if not lines:
            auditor.note("no_predictions", task)
            if not unanswered_tasks:
                continue
        seen: set[tuple[str, str]] = set()
        number = 0
        for raw in raw_rows([files[task]]):
            row = typed(_DOCUMENT, raw.checked(), raw.place, DataError)
            if len(row.instructions) != len(row.outputs):
                counts = f"{len(row.outputs)} for {len(row.instructions)} instructions"
                raise DataError(f"{raw.place}, field 'outputs': {counts}")
            keys = {(row.input, question) for question in row.instructions}
            repeated = keys <= seen
            if repeated:
                auditor.note("repeated_documents", f"{task}, line {raw.number}")
            seen |= keys
            for text, gold in zip(row.instructions, row.outputs, strict=True):
                number += 1  # also in a repeated document: lines of predictions are aligned by number
                if not repeated:
                    answers = _answers(task, number, text, gold, lines, auditor)
                    yield Question(f"{task}/{number}", task, row.input, text, gold, row.evaluation, answers)
        for model, rows in lines.items():
            for surplus in range(number + 1, len(rows) + 1):
                auditor.note("surplus_predictions", f"{task}/{surplus}, {model}")


def _answers(
    task: str,
    number: int,
    question: str,
    gold: str,
    lines: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]],
    auditor: Auditor,
) -> dict[str, str]:
    """The answers by model, without empty ones and those that repeat an earlier model's."""
    answers: dict[str, str] = {}
    for model, rows in lines.items():
        where = f"{task}/{number}, {model}"
        if number > len(rows):
            auditor.note("missing_predictions", where)
            continue
        place, row = rows[number - 1]
        if (row.get("query"), row.get("gt")) != (question, gold):
            auditor.note("misaligned_predictions", where)
            continue
        field = next((key for key in row if key.endswith("_pred") and row[key] is not None), "")
        answer = row[field] if field else ""
        if not isinstance(answer, str):
            raise DataError(f"{place}, field '{field}': must be a text")
        answer = answer.strip()
        if not answer:
            auditor.note("empty_answers", where)
        elif answer in answers.values():
            auditor.note("identical_answers", where)
        else:
            answers[model] = answer
    return answers


def _comparisons(
    folder: Path, balance: bool, measure: Callable[[str], int], auditor: Auditor
) -> Iterator[Comparison]:
    questions = read_questions(folder, auditor)
    for _, of_task in groupby(questions, key=lambda question: question.task):
        pairs: list[Comparison] = []
        document, tokens = "", 0
        for question in of_task:
            if question.document != document:  # a document is measured once for all of its questions
                document = question.document
                tokens = measure(document)
            for pair in _pairs(question, tokens + measure(question.text), auditor):
                worse = pair.responses[1][0]["content"]
                if balance and question.evaluation == "f1" and squad_contains(worse, question.gold):
                    auditor.note("gold_in_worse", pair.id)
                else:
                    pairs.append(pair)
        if balance:
            # By how many characters the better answer is longer.
            lengths = [[len(response[0]["content"]) for response in pair.responses] for pair in pairs]
            kept = balanced([better - worse for better, worse in lengths])
            for place in sorted({*range(len(pairs))} - {*kept}):
                auditor.note("unbalanced", pairs[place].id)
            pairs = [pairs[place] for place in kept]
        yield from pairs


def _pairs(question: Question, tokens: int, auditor: Auditor) -> Iterator[Comparison]:
    scores = _scores(question, auditor)
    text = f"{_OPENING}{question.document}{_BETWEEN}{question.text}"
    prompt = ({"role": "user", "content": text},)
    context = Span(0, len(_OPENING), len(_OPENING) + len(question.document))
    any_apart = False
    for better, worse in combinations(sorted(scores, key=lambda model: -scores[model]), 2):
        # Rounded, so that 0.8 - 0.6 is a gap of 0.2.
        if round(scores[better] - scores[worse], 9) < _GAPS[question.evaluation]:
            continue
        any_apart = True
        answers = [question.answers[model] for model in (better, worse)]
        yield Comparison(
            id=f"{question.id}/{better}+{worse}",
            group=group_of({}, prompt, (context,), None),
            prompt=prompt,
            responses=tuple(({"role": "assistant", "content": answer},) for answer in answers),
            ranks=(1, 2),
            metadata={
                "task": question.task,
                "subtype": question.evaluation,
                "length": bucket(tokens),
                "source": "L-Eval",
                "models": [better, worse],
                "metric": [scores[better], scores[worse]],
                # A summary differs from others that are just as good, so it is no answer to check against.
                **({} if question.evaluation == "rouge" else {"answer": question.gold}),
            },
            context=(context,),
            question=Span(0, len(text) - len(question.text), len(text)),
        )
    if scores and not any_apart:
        auditor.note("no_clear_gap" if len(scores) > 1 else "too_few_answers", question.id)


def _scores(question: Question, auditor: Auditor) -> dict[str, float]:
    """The scores by model; empty if no metric rates one answer alone."""
    match question.evaluation:
        case "f1":
            return {model: squad_f1(text, question.gold) for model, text in question.answers.items()}
        case "rouge":
            return {model: latin_rouge_l(text, question.gold) for model, text in question.answers.items()}
        case "exam" if right := choices(question.gold):
            chosen = {model: choices(text) for model, text in question.answers.items()}
            for model in chosen:
                if not chosen[model]:
                    auditor.note("unreadable_choices", f"{question.id}, {model}")
            return {model: float(letters == right) for model, letters in chosen.items() if letters}
        case _:
            auditor.note("not_scorable", question.id)
            return {}
