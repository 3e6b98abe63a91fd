"""The rows that the pipelines pass on and write, each with where it came from.

What training reads has the columns that `longrm.data` knows; everything else of a row becomes its metadata.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from longrm.data.fields import is_number, plain
from longrm.data.files import find_files, raw_rows
from longrm.errors import DataError
from longrm.reading import short
from longrm.synthesis.documents import Document
from longrm.types import Message, Span


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model's answer to a document's question (`candidates`).

    Attributes:
        document: Id of the document that was asked about.
        model: What wrote it.
        text: The answer.
        perturbation: What the model's view of the document had suffered; empty where nothing.
        score: What a metric or judge gave it; None where nobody has.
        metadata: What else is known, such as the perturbation's parameters.
    """

    document: str
    model: str
    text: str
    perturbation: str = ""
    score: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """A document and the answers to its question that are to be judged."""

    document: Document
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class DemonstrationRow:
    """Stage 1 (paper, section 3): a judging prompt over a long context, and the judgment to imitate.

    Attributes:
        id: Unique in its run.
        prompt: What the model in training reads; it holds no rubric.
        completion: The judgment, made on the short context.
        document: Id of the document.
        domain: What was judged, and by which rubric.
        language: "en" or "zh".
        model: What wrote the judged answer.
        perturbation: Of the answer's making; see `Candidate`.
        judge: What wrote the judgment.
        score: The verdict, 0 to 10.
        length: The target length in tokens; None where the row is short by design.
        tokens: Tokens of the prompt as the target tokenizer counts them, its chat template included.
        short_tokens: Tokens of what the judge read.
        found_by: How the critical chunks were found.
        evidence: Where the critical chunks stand in the prompt.
        depths: Share of the padding that stands before each of them: 0 at the start, 1 at the end.
        tag: Name of the tag pair around what the question is about; empty where there is none.
        padding: Ids of the documents that the foreign chunks come from; how many chunks are the document's own
            is under `own_chunks`.
        own_chunks: Discarded chunks of the document itself that pad the context.
    """

    id: str
    prompt: tuple[Message, ...]
    completion: str
    document: str
    domain: str
    language: str
    model: str
    perturbation: str
    judge: str
    score: int
    length: int | None = None
    tokens: int = 0
    short_tokens: int = 0
    found_by: str = ""
    evidence: tuple[Span, ...] = ()
    depths: tuple[float, ...] = ()
    tag: str = ""
    padding: tuple[str, ...] = ()
    own_chunks: int = 0


@dataclass(frozen=True, slots=True)
class JudgmentRow:
    """Stage 2 (paper, section 4): the consensus judgment and those it outvoted, as the authors' release has them.

    Attributes:
        id: Unique in its run.
        chat_template: The judging prompt.
        chosen: The consensus judgment.
        rejects: The outvoted ones, at least one.
        chosen_model: The judge that wrote `chosen`.
        reject_models: The judges that wrote `rejects`, in the same order.
        scores: What every judge gave, -1 where nothing could be read.
        conf: Sizes of the clusters of agreeing judges, largest first.
        document: Id of the document.
        query: The question.
        answer: The judged answer.
        insert_index: Which chunk of the context the critical part begins at; None where nobody knows.
        prompt_ctx_length: Tokens of the prompt.
        metadata: What else is known; its keys become columns.
    """

    id: str
    chat_template: tuple[Message, ...]
    chosen: str
    rejects: tuple[str, ...]
    chosen_model: str
    reject_models: tuple[str, ...]
    scores: Mapping[str, float]
    conf: tuple[int, ...]
    document: str = ""
    query: str = ""
    answer: str = ""
    insert_index: int | None = None
    prompt_ctx_length: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.rejects, "a row without a rejected judgment teaches no contrast"
        assert len(self.rejects) == len(self.reject_models), "one model for each rejected judgment"


def to_row(record: Candidate | DemonstrationRow | JudgmentRow) -> dict[str, Any]:
    """A record as a plain dict of JSON types, its fields in order; what is unknown (None) is left out."""
    row: dict[str, Any] = {}
    for column in fields(record):
        value = getattr(record, column.name)
        if column.name == "metadata":
            continue
        if value is not None:
            row[column.name] = _plain(value)
    extra = getattr(record, "metadata", {})
    taken = sorted(row.keys() & extra.keys())
    assert not taken, f"metadata repeats the columns {taken}"
    return row | {key: _plain(value) for key, value in extra.items()}


def candidate_from(row: Mapping[str, Any], place: str) -> Candidate:
    """Reads what `to_row` made of a candidate; columns that are not ours become metadata.

    Raises:
        DataError: A field is missing or of another type.
    """
    for name in ("document", "model", "text"):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise DataError(f"{place}, field '{name}': needs a text")
    score = row.get("score")
    if score is not None and not (is_number(score) and math.isfinite(score)):
        raise DataError(f"{place}, field 'score': needs a number, got {short(score)}")
    own = {column.name for column in fields(Candidate)}
    return Candidate(
        row["document"],
        row["model"],
        row["text"],
        str(row.get("perturbation") or ""),
        None if score is None else float(score),
        {key: plain(value) for key, value in row.items() if key not in own},
    )


def read_candidates(path: str | Path) -> Iterator[Candidate]:
    """Reads candidates from a JSONL or Parquet file, or a folder of shards.

    Raises:
        DataError: A row cannot be read.
    """
    for raw in raw_rows(find_files(Path(path)), repair=True):
        yield candidate_from(raw.checked(), raw.place)


def by_document(candidates: Iterable[Candidate]) -> Iterator[tuple[str, list[Candidate]]]:
    """Groups candidates that follow each other and answer the same document's question."""
    for document, group in groupby(candidates, key=lambda candidate: candidate.document):
        yield document, list(group)


def sources(
    documents: Iterable[Document],
    candidates: Iterable[Candidate],
    *,
    all_documents: bool = True,
    place: str = "candidates",
) -> Iterator[Source]:
    """Joins documents with the candidates that answer them, which come in the documents' order.

    Args:
        documents: With different ids.
        candidates: Those of one document follow each other.
        all_documents: Whether there are no more documents than these, so that no candidate may be left over.
        place: Where the candidates come from, for messages.

    Raises:
        DataError: Candidates are left over: their documents are missing, or come in another order.
    """
    groups = by_document(candidates)
    group = next(groups, None)
    for document in documents:
        mine: tuple[Candidate, ...] = ()
        if group is not None and group[0] == document.id:
            mine = tuple(group[1])
            group = next(groups, None)
        yield Source(document, mine)
    if group is not None and all_documents:
        raise DataError(
            f"{place}, field 'document': {short(group[0])} is missing or comes earlier among the documents; "
            "put the candidates in the documents' order"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, Span):
        return asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
