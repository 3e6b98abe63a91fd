"""L-Eval (arXiv 2307.11088): real long documents, with real answers of several models rated by a gold answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

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
from longrm.data.fields import group_of, ranks_by_scores
from longrm.data.files import RawRow, raw_rows
from longrm.errors import ConfigError, DataError, nearest
from longrm.reading import FieldError, located, reading
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
    "gold_in_worse": "comparisons by F1 in which a worse answer holds the whole gold answer; left out",
    "unbalanced": "comparisons left out so that the better answer is as often the longer as the shorter one",
}
"""What this benchmark is searched for, in words."""

_OPENING = "Here is a document.\n\n"
_BETWEEN = "\n\nThis was the whole document. Answer from it.\n\n"
_SUFFIX = ".pred.jsonl"


class Leval(Config):
    """Which answers of L-Eval's models are compared.

    The default gaps keep the clearest third of the pairs by F1 and fifth of those by ROUGE-L, whose values are
    smaller. F1 counts every word that the gold answer lacks against an answer: of the pairs by F1, 15% have a worse
    answer that holds the whole gold answer, and in all pairs by F1 the better answer is the shorter one in 61%.

    Attributes:
        selection: "balanced" leaves out comparisons by F1 in which a worse answer holds the whole gold answer, and of
            each task so many others that the better answer is as often the longer as the shorter one; "all" takes all.
        responses: Answers a comparison, N >= 2.
        gap: Least difference in token F1 between answers of different ranks.
        rouge_gap: Least difference in ROUGE-L between them; summaries share few words in a row.
        tasks: Names of data files without suffix; empty takes all.
    """

    selection: Literal["balanced", "all"] = "balanced"
    responses: int = Field(2, ge=2)
    gap: float = Field(0.2, gt=0, le=1)
    rouge_gap: float = Field(0.05, gt=0, le=1)
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """The k-th (instruction, output) of a data file; line k of a file of predictions answers it."""

    number: int  # k, from 1
    document: str
    text: str
    gold: str
    evaluation: str  # how L-Eval says that answers are rated
    repeated: bool  # by an earlier row


@dataclass(frozen=True, slots=True)
class _Answer:
    model: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Answers to compare, best first, and the length bucket of their prompt."""

    name: str
    question: Question
    answers: Sequence[_Answer]
    length: int

    @property
    def id(self) -> str:
        return f"{self.name}/{'+'.join(answer.model for answer in self.answers)}"

    @property
    def lead(self) -> float:
        """By how many characters the best answers are longer than the others, in the mean."""
        best = self.answers[0].score
        best_ones, others = (
            [len(answer.text) for answer in self.answers if (answer.score == best) is is_best]
            for is_best in (True, False)
        )
        return fmean(best_ones) - fmean(others)

    @property
    def gold_in_worse(self) -> bool:
        """Whether a worse answer holds the whole gold answer, and F1 counts only what it says beside it."""
        return self.question.evaluation == "f1" and any(
            squad_contains(answer.text, self.question.gold)
            for answer in self.answers
            if answer.score < self.answers[0].score
        )


def load_leval(request: BenchmarkRequest) -> LoadedBenchmark:
    """The comparisons of a folder with L-Eval's documents and predictions."""
    folder = Path(request.path)
    find_files(folder, request.leval)  # raises now, and not when the first comparison is asked for
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
    """Compares every N answers to a question of which any two either score the same or are clearly apart.

    "f1" tasks are scored by token F1, "rouge" tasks by ROUGE-L, and multiple-choice "exam" tasks by whether
    exactly the right choices are named. The group is the document.

    Raises:
        ConfigError: A task that has no data file.
        DataError: The folder does not hold L-Eval, or a row cannot be read.
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
        found = list(_candidates(task, files[task], answered, settings, measure, auditor))
        if settings.selection == "balanced":
            found = _balanced(found, auditor)
        yield from (_comparison(task, candidate) for candidate in found)


def _balanced(found: Sequence[_Candidate], auditor: Auditor) -> list[_Candidate]:
    """Those of a task that neither a held gold answer nor length tells; what is left out is noted."""
    fair = []
    for candidate in found:
        if candidate.gold_in_worse:
            auditor.note("gold_in_worse", candidate.id)
        else:
            fair.append(candidate)
    kept = balanced([one.lead for one in fair])
    for place in sorted({*range(len(fair))} - {*kept}):
        auditor.note("unbalanced", fair[place].id)
    return [fair[place] for place in kept]


def _candidates(
    task: str,
    file: Path,
    files_by_model: Mapping[str, Path],
    settings: Leval,
    measure: Callable[[str], int],
    auditor: Auditor,
) -> Iterator[_Candidate]:
    """Every N answers of a task of which any two either score the same or are clearly apart, and not all the same."""
    predictions = {model: rows_of(path) for model, path in files_by_model.items()}
    document, tokens, last_number = "", 0, 0
    for question in questions_of(task, file, auditor):
        last_number = question.number
        if question.repeated:
            continue
        if question.document != document:
            document = question.document
            tokens = measure(document)
        name = f"{task}/{question.number}"
        answers = _scored(name, question, texts_of(name, question, predictions, auditor), auditor)
        length = bucket(tokens + measure(question.text))
        gap = settings.rouge_gap if question.evaluation == "rouge" else settings.gap
        any_apart = False
        for chosen in combinations(answers, settings.responses):
            # Neighbors, best first, either tie or are clearly apart, and not all tie.
            steps = [better.score - worse.score for better, worse in pairwise(chosen)]
            if any(steps) and all(step == 0 or step >= gap for step in steps):
                any_apart = True
                yield _Candidate(name, question, chosen, length)
        if answers and not any_apart:
            auditor.note("no_clear_gap" if len(answers) >= settings.responses else "too_few_answers", name)
    for model, rows in predictions.items():
        for number in range(last_number + 1, len(rows) + 1):
            auditor.note("surplus_predictions", f"{task}/{number}, {model}")


def questions_of(task: str, file: Path, auditor: Auditor) -> Iterator[Question]:
    """Every question of a data file, those of repeated rows included: the predictions are in line with them."""
    seen: set[tuple[str, str]] = set()
    number = 0
    for raw in rows_of(file):
        place, row = raw.place, raw.checked()
        document, evaluation = _text(row, "input", place), _text(row, "evaluation", place)
        questions, golds = _list(row, "instructions", place), _list(row, "outputs", place)
        if len(questions) != len(golds):
            raise DataError(f"{place}, field 'outputs': {len(golds)} for {len(questions)} instructions")
        keys = {(document, question) for question in questions}
        repeated = keys <= seen
        if repeated:
            auditor.note("repeated_documents", f"{task}, line {raw.number}")
        seen |= keys
        for question, gold in zip(questions, golds, strict=True):
            number += 1
            yield Question(number, document, question, gold, evaluation, repeated)


def texts_of(
    name: str, question: Question, predictions: Mapping[str, Sequence[RawRow]], auditor: Auditor
) -> dict[str, str]:
    """What each model answered, where it answered this question, and something of its own."""
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
        answer = next((key for key in row if key.endswith("_pred") and row[key] is not None), "")
        text = _text(row, answer, place, empty=True).strip() if answer else ""
        if not text:
            auditor.note("empty_answers", where)
        elif text in texts.values():
            auditor.note("identical_answers", where)
        else:
            texts[model] = text
    return texts


def _scored(name: str, question: Question, texts: Mapping[str, str], auditor: Auditor) -> list[_Answer]:
    """The answers with their scores, best first; none where the metric is not defined for one answer alone."""
    match question.evaluation:
        case "f1":
            scores = {model: squad_f1(text, question.gold) for model, text in texts.items()}
        case "rouge":
            scores = {model: latin_rouge_l(text, question.gold) for model, text in texts.items()}
        case "exam" if right := choices(question.gold):
            choices_by_model = {model: choices(text) for model, text in texts.items()}
            for model in (model for model, chosen in choices_by_model.items() if not chosen):
                auditor.note("unreadable_choices", f"{name}, {model}")
            scores = {model: float(chosen == right) for model, chosen in choices_by_model.items() if chosen}
        case _:
            auditor.note("not_scorable", name)
            return []
    answers = [_Answer(model, texts[model], score) for model, score in scores.items()]
    return sorted(answers, key=lambda answer: -answer.score)


def _comparison(task: str, candidate: _Candidate) -> Comparison:
    question, answers = candidate.question, candidate.answers
    text = f"{_OPENING}{question.document}{_BETWEEN}{question.text}"
    context = Span(0, len(_OPENING), len(_OPENING) + len(question.document))
    prompt = ({"role": "user", "content": text},)
    return Comparison(
        id=candidate.id,
        group=group_of({}, prompt, (context,), None),
        prompt=prompt,
        responses=tuple(({"role": "assistant", "content": answer.text},) for answer in answers),
        ranks=ranks_by_scores([answer.score for answer in answers]),
        metadata={
            "task": task,
            "subtype": question.evaluation,
            "length": candidate.length,
            "source": "L-Eval",
            "models": [answer.model for answer in answers],
            "metric": [answer.score for answer in answers],
        },
        context=(context,),
        question=Span(0, len(text) - len(question.text), len(text)),
    )


def rows_of(file: Path) -> list[RawRow]:
    """All rows of a file of documents or predictions; raises `DataError` at one that cannot be read."""
    rows = list(raw_rows([file]))
    for row in rows:
        row.checked()
    return rows


def _text(row: Mapping[str, Any], field: str, place: str, *, empty: bool = False) -> str:
    if not isinstance(row.get(field), str) or not (empty or row[field].strip()):
        raise DataError(located(place, FieldError(field, "needs a text")))
    return str(row[field])


def _list(row: Mapping[str, Any], field: str, place: str) -> list[str]:
    value = row.get(field)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{place}, field '{field}': needs a list of texts")
    return value
