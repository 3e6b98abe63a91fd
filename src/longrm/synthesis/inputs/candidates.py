"""Candidates: answers that are to be judged, read from rows and joined with the documents that they answer."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from longrm.data.fields import to_json_types
from longrm.data.files import find_files, raw_rows
from longrm.errors import DataError
from longrm.reading import is_number, short
from longrm.synthesis.inputs.documents import Document


@dataclass(frozen=True, slots=True)
class CandidateAnswer:
    """One model's answer to a document's question (`candidates`).

    `perturbation` says what the model's view of the document had suffered; it is empty where nothing. `score` is what a
    metric or judge gave, None where nobody has. `metadata` holds what else is known, such as the perturbation's
    parameters.
    """

    document: str
    model: str
    text: str
    perturbation: str = ""
    score: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """The fields in order, then the metadata, each of its keys a column; what is unknown (None) is left out."""
        row = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "metadata"}
        assert not row.keys() & self.metadata.keys(), "metadata repeats a column"
        return {name: value for name, value in row.items() if value is not None} | dict(self.metadata)


@dataclass(frozen=True, slots=True)
class SynthesisInput:
    """A document and the answers to its question that are to be judged."""

    document: Document
    candidates: tuple[CandidateAnswer, ...]

    @property
    def id(self) -> str:
        """The document's id, unique in a run."""
        return self.document.id


def candidate_from(row: Mapping[str, Any], place: str) -> CandidateAnswer:
    """Reads what `CandidateAnswer.to_row` wrote; columns that are not ours become metadata.

    Raises:
        DataError: A field is missing or of another type.
    """
    for name in ("document", "model", "text"):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise DataError(f"{place}, field '{name}': needs a text")
    score = row.get("score")
    if score is not None and not (is_number(score) and math.isfinite(score)):
        raise DataError(f"{place}, field 'score': needs a number, got {short(score)}")
    own = {column.name for column in fields(CandidateAnswer)}
    return CandidateAnswer(
        row["document"],
        row["model"],
        row["text"],
        str(row.get("perturbation") or ""),
        None if score is None else float(score),
        {key: to_json_types(value) for key, value in row.items() if key not in own},
    )


def read_candidates(path: str | Path) -> Iterator[CandidateAnswer]:
    """Reads candidates from a JSONL or Parquet file, or a folder of shards.

    Raises:
        DataError: A row cannot be read.
    """
    for raw in raw_rows(find_files(Path(path))):
        yield candidate_from(raw.checked(), raw.place)


def join_candidates(
    documents: Iterable[Document],
    candidates: Iterable[CandidateAnswer],
    *,
    all_documents: bool = True,
    place: str = "candidates",
) -> Iterator[SynthesisInput]:
    """Joins documents with the candidates that answer them, which come in the documents' order.

    Args:
        documents: With different ids.
        candidates: Those of one document follow each other.
        all_documents: Whether there are no more documents than these, so that no candidate may be left over.
        place: Where the candidates come from, for messages.

    Raises:
        DataError: Candidates are left over: their documents are missing, or come in another order.
    """
    groups = groupby(candidates, key=lambda candidate: candidate.document)
    group = next(groups, None)
    for document in documents:
        mine: tuple[CandidateAnswer, ...] = ()
        if group is not None and group[0] == document.id:
            mine = tuple(group[1])
            group = next(groups, None)
        yield SynthesisInput(document, mine)
    if group is not None and all_documents:
        raise DataError(
            f"{place}, field 'document': {short(group[0])} is missing or comes earlier among the documents; "
            "put the candidates in the documents' order"
        )
