"""Texts that nobody has asked about yet: where the writing of questions begins."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from longrm.data.fields import name_of
from longrm.data.files import find_files, raw_rows
from longrm.errors import DataError
from longrm.reading import FieldError, read_text, short
from longrm.synthesis.inputs.documents import document_format, read_documents, text_files


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text to ask about; `repeats` is the id of an earlier one that is the same, empty where there is none."""

    id: str
    text: str
    repeats: str = ""


def read_source_texts(path: str | Path, format: str | None = None) -> Iterator[SourceText]:
    """Reads texts one by one, always in the same order.

    Args:
        path: A folder of `.txt` and `.md`, rows with a `context`, or any other source of documents, whose questions
            are then not looked at.
        format: A key of `documents.FORMATS`; None decides as `read_documents` does.

    Raises:
        ConfigError: There is no such format.
        DataError: There is nothing to read, or a text that cannot be read; the message names its place.
    """
    place = Path(path)
    named: Iterator[tuple[str, str]]
    match document_format(place, format):
        case "texts":
            named = ((name, read_text(file, DataError)) for name, file in text_files(place).items())
        case "jsonl":
            named = _of_rows(place)
        case other:
            named = ((document.id, document.text) for document in read_documents(place, other))
    first: dict[bytes, str] = {}
    for identity, text in named:
        earlier = first.setdefault(
            hashlib.sha256(text.strip().encode(errors="surrogatepass")).digest(), identity
        )
        yield SourceText(identity, text, "" if earlier == identity else earlier)


def _of_rows(path: Path) -> Iterator[tuple[str, str]]:
    for raw in raw_rows(find_files(path)):
        row = raw.checked()
        text = row.get("context")
        if not isinstance(text, str):
            raise DataError(f"{raw.place}, field 'context': needs a text, got {short(text)}")
        try:
            identity = str(raw.number) if row.get("id") in (None, "") else name_of(row, "id")
        except FieldError as fault:
            raise DataError(f"{raw.place}, {fault}") from fault
        yield identity, text
