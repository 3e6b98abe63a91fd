"""Where synthesis begins: documents with a question and its gold answer, from files, comparisons or L-Eval."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from longrm.benchmarks import leval
from longrm.benchmarks.answer_metrics import answer_metric
from longrm.benchmarks.answer_metrics.right_choices import choices
from longrm.benchmarks.auditor import Auditor
from longrm.data import ComparisonReader, read
from longrm.data.fields import name_of, to_json_types
from longrm.data.files import find_files, is_row_file, raw_rows
from longrm.errors import ConfigError, DataError, nearest
from longrm.reading import FieldError, located, read_text, reading, short
from longrm.types import Comparison, Span, message_text, text_of

_TEXTS = ("context", "question", "answer")
_PLAIN, _ASKED = (".txt", ".md"), "questions"
_NAMED = (*_TEXTS, "id", "task", "metric")
# How L-Eval says that an answer is rated, and its metric here; the gold answer of an exam decides which.
_LEVAL_METRICS = {"f1": "token_f1", "rouge": "rouge_l"}


@dataclass(frozen=True, slots=True)
class Document:
    """A context with one question and its gold answer. Documents of one text share their group.

    `answer` is empty where there is none, `task` (in the source's words) where it is unknown, and `metric` (one of
    `ANSWER_METRICS`) where only a judge can rate answers. `place` is file and row, for messages.
    """

    id: str
    text: str
    question: str
    answer: str
    task: str = ""
    metric: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    place: str = field(default="", compare=False)

    @property
    def group(self) -> str:
        """A name of the text, which all questions about it share; statistics cluster on it."""
        return _group_of(self.text)


@lru_cache(maxsize=8)  # the texts that are worked on at a time are asked about many times
def _group_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def read_documents(
    path: str | Path, format: str | None = None, auditor: Auditor | None = None
) -> Iterator[Document]:
    """Reads documents one by one.

    Args:
        path: A file or folder of rows with `context`, `question`, `answer` and, if given, `id`, `task` and
            `metric`; L-Eval's folder; a folder of `.txt` and `.md` with the questions about them; or comparisons whose
            context and question are known, such as `longrm world` writes: their gold answer is the best response.
        format: A key of `FORMATS`: "jsonl" (CSV, Parquet and the other containers too), "leval", "texts" or
            "comparisons"; None decides between the first three by what is there.
        auditor: Counts what L-Eval's rows repeat, by the names of `benchmarks.leval.FINDINGS`.

    Raises:
        ConfigError: There is no such format.
        DataError: There is nothing to read, or a row that cannot be read; the message names file, row and field.
    """
    place = Path(path)
    return FORMATS[document_format(place, format)](place, auditor or Auditor(leval.FINDINGS))


def document_format(path: Path, format: str | None = None) -> str:
    """The format of that name, or where there is none the one of what is there: "leval", "texts" or "jsonl".

    Raises:
        ConfigError: There is no such format.
    """
    if format is None:
        return "leval" if is_leval(path) else "texts" if _is_texts(path) else "jsonl"
    if format not in FORMATS:
        raise ConfigError(f"no format of documents '{format}'; {nearest(format, FORMATS)}")
    return format


def is_leval(path: Path) -> bool:
    """Whether a folder is laid out as L-Eval is."""
    with reading(path, DataError):
        return (path / "data").is_dir() and (path / "predictions").is_dir()


def _is_texts(path: Path) -> bool:
    """Whether a folder holds texts, and no rows but the questions about them."""
    with reading(path, DataError):
        rows = any(
            is_row_file(file) and not _asks(file) for file in (path.iterdir() if path.is_dir() else ())
        )
    return not rows and bool(text_files(path))


def text_files(path: Path) -> dict[str, Path]:
    """The `.txt` and `.md` of a folder and of the folders in it, by their paths within it, in order."""
    with reading(path, DataError):
        files = sorted(path.rglob("*")) if path.is_dir() else []
        return {
            file.relative_to(path).as_posix(): file
            for file in files
            if file.suffix in _PLAIN and file.is_file()
        }


def _asks(file: Path) -> bool:
    return file.name.startswith(f"{_ASKED}.")


def _text_documents(path: Path, auditor: Auditor) -> Iterator[Document]:
    """The texts of a folder, each with the questions that rows of `questions.jsonl` or such ask about it."""
    texts = text_files(path)
    with reading(path, DataError):
        asking = sorted(file for file in path.iterdir() if is_row_file(file) and _asks(file))
    if not asking:
        raise DataError(
            located(
                path,
                f"{len(texts):,} texts, and no questions and gold answers about them: add {_ASKED}.csv or "
                f"{_ASKED}.jsonl beside them, with the columns file, question, answer, or let a model write them "
                "(longrm synthesize questions)",
            )
        )
    for raw in raw_rows(asking):
        row = raw.checked()
        name = row.get("file")
        if not isinstance(name, str) or name not in texts:
            raise DataError(
                f"{raw.place}, field 'file': {short(name)} is none of the texts of this folder; "
                f"{nearest(str(name), texts.keys())}"
            )
        yield document_of({**row, "context": read_text(texts[name], DataError)}, raw.number, raw.place)


def read_compared(path: Path) -> Iterator[tuple[Document, Comparison]]:
    """Reads comparisons as documents: a context, a question, and the best response as the gold answer.

    Raises:
        DataError: A row cannot be read, or does not say where its context and question stand, or which response is
            the best.
    """
    for row in _comparisons(path):
        comparison = row.comparison
        if len(comparison.context) != 1 or comparison.question is None or comparison.ranks is None:
            raise DataError(
                f"{row.place}: a document needs one context, a question and the order of the responses; this "
                "comparison does not tell them"
            )
        context = comparison.context[0]
        evidence = [
            [span.start - context.start, span.end - context.start]
            for span in comparison.evidence
            if span.message == context.message and context.start <= span.start < span.end <= context.end
        ]
        yield (
            Document(
                comparison.id,
                _of_span(comparison, context),
                _of_span(comparison, comparison.question),
                text_of(comparison.responses[comparison.best_first()[0]]),
                str(comparison.metadata.get("task") or ""),
                metadata={"evidence": evidence} if evidence else {},
            ),
            comparison,
        )


def read_answered(folder: Path, auditor: Auditor) -> Iterator[tuple[Document, Mapping[str, str]]]:
    """Reads L-Eval's documents, each with the recorded answers of those models that were asked, by model.

    Line k of a file of predictions answers the k-th question of its task. Answers whose line names another question
    or gold answer are left out and counted, like missing, surplus, empty and identical ones.

    Raises:
        DataError: The folder does not hold L-Eval, or a row cannot be read.
    """
    files, predictions = leval.find_files(folder, leval.Leval())
    for model, task in predictions:
        if task not in files:
            auditor.note("no_documents", f"{model}/{task}")
    for task, file in files.items():
        answered = {model: leval.rows_of(path) for (model, of), path in predictions.items() if of == task}
        if not answered:
            auditor.note("no_predictions", task)
        asked = 0
        for question in leval.questions_of(task, file, auditor):
            asked = question.number
            if not question.repeated:
                document = _of_leval(task, question)
                yield document, leval.texts_of(document.id, question, answered, auditor)
        for model, rows in answered.items():
            for number in range(asked + 1, len(rows) + 1):
                auditor.note("surplus_predictions", f"{task}/{number}, {model}")


def _of_leval(task: str, question: leval.Question) -> Document:
    metric = _LEVAL_METRICS.get(question.evaluation, "")
    if question.evaluation == "exam":  # exams ask for choices, for numbers, or for a few words
        number = question.gold.strip().lstrip("-").replace(",", "").replace(".", "", 1)
        metric = "math_equality" if number.isdecimal() else "token_f1"
        metric = "right_choices" if choices(question.gold) else metric
    return Document(
        id=f"{task}/{question.number}",
        text=question.document,
        question=question.text,
        answer=question.gold,
        task=task,
        metric=metric,
        metadata={"source": "L-Eval", "evaluation": question.evaluation},
    )


@cache
def _comparisons(path: Path) -> ComparisonReader:
    """Comparisons, whose format is recognized once, however often they are read."""
    return read(path)


def _of_span(comparison: Comparison, span: Span) -> str:
    return message_text(comparison.prompt[span.message])[span.start : span.end]


def _row_documents(path: Path, auditor: Auditor) -> Iterator[Document]:
    for raw in raw_rows(find_files(path)):
        yield document_of(raw.checked(), raw.number, raw.place)


def document_of(row: Mapping[str, Any], number: int, place: str) -> Document:
    """Reads one row with `context`, `question`, `answer`; its number is its id where it names none.

    Raises:
        DataError: A field is missing or of another type; the message names `place` and the field.
    """
    for name in _TEXTS:
        if not isinstance(row.get(name), str) or (name != "answer" and not row[name].strip()):
            raise DataError(f"{place}, field '{name}': needs a text, got {short(row.get(name))}")
    metric = row.get("metric") or ""
    if not isinstance(metric, str):
        raise DataError(f"{place}, field 'metric': needs a metric's name, got {short(metric)}")
    if metric:
        try:
            answer_metric(metric)
        except ConfigError as error:
            raise DataError(f"{place}, field 'metric': {error}") from error
    _check_lists(row, place)
    try:
        identity = str(number) if row.get("id") in (None, "") else name_of(row, "id")
    except FieldError as fault:
        raise DataError(f"{place}, {fault}") from fault
    return Document(
        id=identity,
        text=row["context"],
        question=row["question"],
        answer=row["answer"],
        task=str(row.get("task") or ""),
        metric=metric,
        metadata={
            name: to_json_types(value)
            for name, value in row.items()
            if name not in _NAMED and value is not None
        },
        place=place,
    )


def is_span(value: Any) -> bool:
    """Whether a value is the start and the end of some characters."""
    pair = isinstance(value, list | tuple) and len(value) == 2
    return pair and all(isinstance(at, int) and not isinstance(at, bool) for at in value)


def _check_lists(row: Mapping[str, Any], place: str) -> None:
    """Checks the columns that say more about a document, where they are given."""
    wanted: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "evidence": ("spans [start, end] of the context, such as [[0, 80]]", is_span),
        "exemplars": ("texts", lambda item: isinstance(item, str)),
        "steps": ("texts", lambda item: isinstance(item, str)),
    }
    for name, (what, fits) in wanted.items():
        given = row.get(name)
        if given is not None and not (isinstance(given, list) and all(map(fits, given))):
            raise DataError(
                f"{place}, field '{name}': needs a list of {what}, got {short(given)}; rename a column that holds "
                "something else"
            )


FORMATS: dict[str, Callable[[Path, Auditor], Iterator[Document]]] = {
    "jsonl": _row_documents,
    "texts": _text_documents,
    "leval": lambda folder, auditor: (document for document, _ in read_answered(folder, auditor)),
    "comparisons": lambda path, auditor: (document for document, _ in read_compared(path)),
}
"""The sources of documents by name."""
