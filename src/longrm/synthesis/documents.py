"""Documents with a question, a gold answer and candidate answers, and prompts for policies."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from longrm.benchmarks import leval
from longrm.benchmarks.answer_metrics import ANSWER_METRICS, choices
from longrm.benchmarks.benchmark import Auditor
from longrm.data import read, read_demonstrations
from longrm.data.fields import group_of, messages_of, name_of, required, to_json_types
from longrm.data.files import find_files, is_row_file, raw_rows
from longrm.data.formats import recognize
from longrm.errors import ConfigError, DataError, nearest
from longrm.reading import FieldError, is_number, read_text, reading, short
from longrm.rng import Rng
from longrm.types import Comparison, Message, Span, as_messages, message_text, text_of

GOLD_MODEL = "gold"
"""The model of synthetic candidates: the gold answer, and worse answers made from it."""

# How L-Eval rates an answer, and our metric for it; for exams the gold answer decides.
_LEVAL_METRICS = {"f1": "token_f1", "rouge": "rouge_l"}
_SENTENCE = re.compile(r"\S.*?(?:[.!?。！？][\"'”’)\]]*(?=\s|$)|(?<=[。！？])|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model's answer to a document's question."""

    document: str  # the id of the document
    model: str  # the model that wrote it
    text: str  # the answer
    perturbation: str = ""  # how the model's view of the document was perturbed; empty if it was not
    score: float | None = None  # from a metric or judge; None if unknown
    # other columns of its row, such as the parameters of the perturbation
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """The fields in order, then the metadata as columns; None is left out."""
        row = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "metadata"}
        return {name: value for name, value in row.items() if value is not None} | dict(self.metadata)


@dataclass(frozen=True, slots=True)
class Document:
    """A context with one question, its gold answer, and candidate answers to judge."""

    id: str  # unique in a run
    text: str  # the context
    question: str  # the question about it
    answer: str  # the gold answer; empty if there is none
    task: str = ""  # in the source's words; empty if unknown
    metric: str = ""  # one of `ANSWER_METRICS`; empty if only a judge can rate answers
    # other columns, such as `evidence`, `exemplars` and `steps`
    metadata: Mapping[str, Any] = field(default_factory=dict)
    place: str = field(default="", compare=False)  # file and row, for messages
    candidates: tuple[Candidate, ...] = ()  # the answers that are judged

    @property
    def title(self) -> str:
        """What it is called in a context that mixes documents: its column `title` or `file`, or a number."""
        file = self.id.partition("#")[0]
        for name in (self.metadata.get("title"), self.metadata.get("file")):
            if isinstance(name, str) and name.strip():
                return " ".join(name.split())
        # Ids of rows say nothing, and are long.
        return file if file.endswith((".txt", ".md")) else str(int(self.group[:8], 16) % 10_000)

    @property
    def group(self) -> str:
        """A name of the text, shared by all questions about it; statistics cluster on it."""
        return _group_of(self.text)


@lru_cache(maxsize=8)  # the few texts in progress are asked about many times
def _group_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def read_documents(path: Path, format: str | None = None) -> Iterator[Document]:
    """Reads documents one by one, with the candidates that the source itself holds (L-Eval and comparisons).

    `format` is a key of `FORMATS`; None picks "leval", "texts" or "jsonl" by what the path holds.

    Raises:
        ConfigError: An unknown format.
        DataError: Nothing to read, or a bad row; the message names file, row and field.
    """
    return FORMATS[document_format(path, format)](path)


def document_format(path: Path, format: str | None = None) -> str:
    """The format by its name, or the one detected at a path."""
    if format is None:
        return "leval" if is_leval(path) else "texts" if _is_texts(path) else "jsonl"
    if format not in FORMATS:
        raise ConfigError(f"no format of documents '{format}'; {nearest(format, FORMATS)}")
    return format


def is_leval(path: Path) -> bool:
    """Whether a folder is laid out as L-Eval is."""
    return (path / "data").is_dir() and (path / "predictions").is_dir()


def _is_texts(path: Path) -> bool:
    """Whether a folder holds texts, and no rows except the questions about them."""
    files = path.iterdir() if path.is_dir() else ()
    rows = any(is_row_file(file) and not file.name.startswith("questions.") for file in files)
    return not rows and bool(text_files(path))


def text_files(path: Path) -> dict[str, Path]:
    """The `.txt` and `.md` files in a folder and its subfolders, by their relative paths, in order."""
    with reading(path, DataError):
        return {
            file.relative_to(path).as_posix(): file
            for file in sorted(path.rglob("*"))
            if file.suffix in (".txt", ".md") and file.is_file()
        }


def _row_documents(path: Path) -> Iterator[Document]:
    for raw in raw_rows(find_files(path)):
        yield document_of(raw.checked(), raw.number, raw.place)


def _text_documents(path: Path) -> Iterator[Document]:
    """The texts of a folder, once for each row about them in `questions.csv` or `questions.jsonl`."""
    texts = text_files(path)
    questions = [file for file in sorted(path.glob("questions.*")) if is_row_file(file)]
    if not questions:
        raise DataError(
            f"{path}: {len(texts):,} texts without questions: add questions.csv or questions.jsonl with the columns "
            "file, question, answer, or let a model write them (longrm synthesize questions)"
        )
    for raw in raw_rows(questions):
        row = raw.checked()
        file = texts.get(str(row.get("file")))
        if file is None:
            problem = (
                f"no text {short(row.get('file'))} in this folder; {nearest(str(row.get('file')), texts)}"
            )
            raise DataError(f"{raw.place}, field 'file': {problem}")
        yield document_of({**row, "context": read_text(file, DataError)}, raw.number, raw.place)


def _comparison_documents(path: Path) -> Iterator[Document]:
    """Comparisons: the best response is the gold answer; candidates score from 1 (the best) to 0 (the worst)."""
    for row in read(path):
        comparison = row.comparison
        if len(comparison.context) != 1 or comparison.question is None or comparison.ranks is None:
            raise DataError(
                f"{row.place}: a document needs one known context, a known question and gold ranks"
            )
        context, worst = comparison.context[0], max(comparison.ranks)
        evidence = [
            [span.start - context.start, span.end - context.start]
            for span in comparison.evidence
            if span.message == context.message and context.start <= span.start < span.end <= context.end
        ]
        candidates = [
            Candidate(
                comparison.id, f"listed {number}", text_of(response), score=(worst - rank) / max(worst - 1, 1)
            )
            for number, (response, rank) in enumerate(
                zip(comparison.responses, comparison.ranks, strict=True), start=1
            )
        ]
        yield Document(
            comparison.id,
            _span_text(comparison, context),
            _span_text(comparison, comparison.question),
            candidates[comparison.best_first()[0]].text,
            str(comparison.metadata.get("task") or ""),
            metadata={"evidence": evidence} if evidence else {},
            candidates=tuple(candidates),
        )


def _span_text(comparison: Comparison, span: Span) -> str:
    return message_text(comparison.prompt[span.message])[span.start : span.end]


def leval_documents(folder: Path, auditor: Auditor | None = None) -> Iterator[Document]:
    """L-Eval's documents, with the recorded answers of its models; the auditor counts `benchmarks.leval.FINDINGS`."""
    auditor = auditor or Auditor(leval.FINDINGS)
    for question in leval.read_questions(folder, auditor, unanswered_tasks=True):
        metric = _LEVAL_METRICS.get(question.evaluation, "")
        if question.evaluation == "exam":  # exams ask for choices, for numbers, or for a few words
            number = question.gold.strip().lstrip("-").replace(",", "").replace(".", "", 1)
            metric = "math_equality" if number.isdecimal() else "token_f1"
            metric = "right_choices" if choices(question.gold) else metric
        candidates = [Candidate(question.id, model, text) for model, text in question.answers.items()]
        yield Document(
            question.id,
            question.document,
            question.text,
            question.gold,
            question.task,
            metric,
            {"source": "L-Eval", "evaluation": question.evaluation},
            candidates=tuple(candidates),
        )


FORMATS: dict[str, Callable[[Path], Iterator[Document]]] = {
    "jsonl": _row_documents,
    "texts": _text_documents,
    "leval": leval_documents,
    "comparisons": _comparison_documents,
}
"""The formats of documents by name."""


def document_of(row: Mapping[str, Any], number: int, place: str) -> Document:
    """Reads one row with `context`, `question`, `answer`; without an `id`, its number is the id.

    Raises:
        DataError: A field is missing or has the wrong type; the message names `place` and the field.
    """
    with reading(place, DataError):
        for name in ("context", "question", "answer"):
            if not isinstance(row.get(name), str) or (name != "answer" and not row[name].strip()):
                raise FieldError(name, f"needs a text, got {short(row.get(name))}")
        metric = str(row.get("metric") or "")
        if metric and metric not in ANSWER_METRICS:
            raise FieldError("metric", f"no answer metric '{metric}'; {nearest(metric, ANSWER_METRICS)}")
        for column, (what, fits) in _LISTS.items():
            value = row.get(column)
            if value is not None and not (isinstance(value, list) and all(map(fits, value))):
                problem = f"needs a list of {what}, got {short(value)}; rename a column with other contents"
                raise FieldError(column, problem)
        known = ("context", "question", "answer", "id", "task", "metric")
        return Document(
            row_id(row, number),
            row["context"],
            row["question"],
            row["answer"],
            str(row.get("task") or ""),
            metric,
            {
                name: to_json_types(value)
                for name, value in row.items()
                if name not in known and value is not None
            },
            place,
        )


def row_id(row: Mapping[str, Any], number: int) -> str:
    """The id of a row, or its number if it has none."""
    return str(number) if row.get("id") in (None, "") else name_of(row, "id")


def _is_span(value: Any) -> bool:
    pair = isinstance(value, list | tuple) and len(value) == 2
    return pair and all(isinstance(at, int) and not isinstance(at, bool) for at in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_LISTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "evidence": ("spans [start, end] of the context, such as [[0, 80]]", _is_span),
    "exemplars": ("texts", _is_text),
    "steps": ("texts", _is_text),
}


def read_texts(path: Path, format: str | None = None) -> Iterator[Document]:
    """Reads texts without their questions: a folder of `.txt` and `.md`, rows with `context`, or any documents."""
    match document_format(path, format):
        case "texts":
            for name, file in text_files(path).items():
                yield Document(name, read_text(file, DataError), "", "")
        case "jsonl":
            for raw in raw_rows(find_files(path)):
                row = raw.checked()
                with reading(raw.place, DataError):
                    if not isinstance(row.get("context"), str):
                        raise FieldError("context", f"needs a text, got {short(row.get('context'))}")
                    document = Document(row_id(row, raw.number), row["context"], "", "")
                yield document
        case other:
            yield from read_documents(path, other)


def candidate_from(row: Mapping[str, Any], place: str) -> Candidate:
    """Reads what `Candidate.to_row` wrote; other columns become metadata."""
    with reading(place, DataError):
        for name in ("document", "model", "text"):
            if not isinstance(row.get(name), str) or not row[name].strip():
                raise FieldError(name, "needs a text")
        score = row.get("score")
        if score is not None and not (is_number(score) and math.isfinite(score)):
            raise FieldError("score", f"needs a number, got {short(score)}")
    own = {column.name for column in fields(Candidate)}
    return Candidate(
        row["document"],
        row["model"],
        row["text"],
        str(row.get("perturbation") or ""),
        None if score is None else float(score),
        {key: to_json_types(value) for key, value in row.items() if key not in own},
    )


def read_candidates(path: Path) -> Iterator[Candidate]:
    """Reads candidates from a file or a folder of shards."""
    for raw in raw_rows(find_files(path)):
        yield candidate_from(raw.checked(), raw.place)


def join_candidates(
    documents: Iterable[Document], candidates: Iterable[Candidate], *, all_documents: bool = True
) -> Iterator[Document]:
    """Adds the candidates to their documents; both must come in the same order, so that neither is held in memory.

    Raises:
        DataError: Candidates are left over, unless these are not `all_documents`.
    """
    groups = groupby(candidates, key=lambda candidate: candidate.document)
    group = next(groups, None)
    for document in documents:
        own: tuple[Candidate, ...] = ()
        if group is not None and group[0] == document.id:
            own = tuple(group[1])
            group = next(groups, None)
        yield replace(document, candidates=own)
    if group is not None and all_documents:
        raise DataError(
            f"candidates, field 'document': {short(group[0])} is missing or comes earlier among the documents; put the "
            "candidates in the documents' order"
        )


def with_synthetic(documents: Iterable[Document], seed: int) -> Iterator[Document]:
    """Adds synthetic candidates to every document; the questions about one text follow each other."""
    for _, group in groupby(documents, key=lambda document: document.text):
        same_text = list(group)
        for document in same_text:
            others = [other.answer for other in same_text if other.id != document.id]
            candidates = (*document.candidates, *synthetic_candidates(document, others, seed))
            yield replace(document, candidates=candidates)


def synthetic_candidates(document: Document, others: Sequence[str], seed: int) -> list[Candidate]:
    """The gold answer, it with a quarter and with 60% of its sentences replaced, and an answer to another question.

    They fill the quality tiers that models leave empty, offline and at no cost. Sentences are replaced by those of
    other answers about the same text, one for one, so that length reveals little. If the gold answer has one sentence
    only, or the others have too few, nothing is replaced.
    """
    if not document.answer.strip():
        return []
    rng = Rng("degraded", seed, document.id)
    candidates = [Candidate(document.id, GOLD_MODEL, document.answer.strip())]
    own = sentences(document.answer)
    foreign = sorted({text for other in others for text in sentences(other)} - {*own})
    for share in (0.75, 0.4):  # in the middle of the second and third tier of `selection.tier_of`
        kept = round(share * len(own))
        if 0 < kept < len(own) and len(foreign) >= len(own) - kept:
            places, mixed = list(range(len(own))), list(own)
            rng.shuffle(places)
            for place, text in zip(places[: len(own) - kept], rng.order(foreign), strict=False):
                mixed[place] = text
            counts = {"kept_sentences": kept, "of_sentences": len(own)}
            candidates.append(
                Candidate(document.id, GOLD_MODEL, " ".join(mixed), "replace_sentences", metadata=counts)
            )
    wrong = sorted({other.strip() for other in others if other.strip()} - {document.answer.strip()})
    if wrong:
        candidates.append(Candidate(document.id, GOLD_MODEL, rng.choice(wrong), "answer_another_question"))
    return candidates


def sentences(text: str) -> list[str]:
    """The sentences of an answer, without the white space between them."""
    return [found.strip() for found in _SENTENCE.findall(text) if found.strip()]


OPENING = "A document comes first, and a question about it after it.\n\n"
CLOSING = "\n\nHere the document ends. Rely on it alone.\n\n"
ASKING = "Question: "


@dataclass(frozen=True, slots=True)
class PolicyPrompt:
    """A prompt for the policy."""

    id: str  # unique in a run
    group: str  # shared by prompts about one context
    messages: tuple[Message, ...]  # the prompt
    context: tuple[Span, ...] = ()  # where the context is, if known
    question: Span | None = None  # where the question is, if known
    metadata: Mapping[str, Any] = field(default_factory=dict)  # other columns of its row

    @property
    def question_text(self) -> str:
        """The question; empty if it is not known."""
        if self.question is None:
            return ""
        return message_text(self.messages[self.question.message])[self.question.start : self.question.end]

    @property
    def shown_text(self) -> str:
        """The prompt up to the end of the context, which must be known."""
        last = self.context[-1]
        return message_text(self.messages[last.message])[: last.end]


def read_policy_prompts(path: Path) -> Iterator[PolicyPrompt]:
    """Reads the prompts of comparisons, of demonstrations, or of rows with only a prompt.

    Raises:
        DataError: There is nothing to read, or a bad row.
    """
    files = find_files(path)
    first = next(raw_rows(files), None)
    row = first.value if first is not None and first.value is not None else {}
    if row.keys() & {"golden", "completion"} and not row.keys() & {"chosen", "responses", "candidates"}:
        for demonstration in read_demonstrations(path):
            one = demonstration.demonstration
            group = group_of({}, one.prompt, (), None)
            yield PolicyPrompt(one.id, group, one.prompt, metadata=_kept(one.metadata))
    elif recognize(row):
        for found in read(path):
            two = found.comparison
            yield PolicyPrompt(two.id, two.group, two.prompt, two.context, two.question, _kept(two.metadata))
    else:
        for raw in raw_rows(files):
            value = raw.checked()
            with reading(raw.place, DataError):
                name, given = required(value, "prompt", "prompt_template", "chat_template")
                prompt = messages_of(given, name, "user")
                identity = name_of(value, "id") if value.get("id") is not None else f"row-{raw.number}"
            yield PolicyPrompt(identity, group_of({}, prompt, (), None), prompt, metadata=_kept(value))


def _kept(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row that its demonstration keeps."""
    names = ("task", "source", "length")
    return {name: to_json_types(metadata[name]) for name in names if metadata.get(name) is not None}


def policy_prompt(document: Document) -> PolicyPrompt:
    """A document's question about the whole text."""
    content = plain_content(document.text, document.question)
    metadata = {"task": document.task, "source": document.metadata.get("source")}
    return PolicyPrompt(
        document.id,
        document.group,
        as_messages(content, "user"),
        (Span(0, len(OPENING), len(OPENING) + len(document.text)),),
        Span(0, len(content) - len(document.question), len(content)),
        {name: value for name, value in metadata.items() if value},
    )


def plain_content(context: str, question: str, hint: str = "") -> str:
    """The context, then the question; only the question without a context."""
    if not context:
        return question
    hint = f"{hint}\n\n" if hint else ""
    return f"{OPENING}{context}{CLOSING}{hint}{ASKING}{question}"
