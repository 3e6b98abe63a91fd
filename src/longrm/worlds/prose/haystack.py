"""The user's own documents as the text that surrounds facts."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

from longrm.data.chunking import chunk_spans, words_of
from longrm.data.files import raw_rows
from longrm.errors import ConfigError, DataError
from longrm.reading import read_text, reading, short
from longrm.rng import Rng
from longrm.worlds.prose.generated_text import TextEntry

_PLAIN, _ROWS, _TABLES = (".txt", ".md"), (".jsonl", ".jsonl.gz"), (".csv", ".csv.gz")
_BETWEEN_PARAGRAPHS = re.compile(r"\n\s*\n")
_PARAGRAPH = 160
"""Approximate tokens of a paragraph; a longer one is split where sentences or lines end, so that facts fit between."""


@dataclass(frozen=True, eq=False)
class Haystack:
    """Paragraphs of documents, in their order; the other attributes are those of `GeneratedText`.

    Attributes:
        source: Where they were read from.
        documents: The paragraphs of each document; no paragraph occurs twice.
        words: All words, in lower case.
        digest: A hash of all text.
    """

    source: str
    documents: tuple[tuple[str, ...], ...]
    words: frozenset[str]
    digest: str
    title: str = "haystack"
    joint: str = " "
    label: str = "[{}] "
    closings: tuple[str, ...] = ()
    apart: bool = True

    def passages(self, rng: Rng) -> Iterator[TextEntry]:
        """Yields the paragraphs of all documents in random order of the documents, from a random place in the first.

        The paragraphs before that place come last.

        Raises:
            ConfigError: No paragraph is left.
        """
        document, *others = rng.order(self.documents)
        first = rng.below(len(document))
        for text in chain(document[first:], chain.from_iterable(others), document[:first]):
            yield TextEntry("", (text,))
        count = sum(map(len, self.documents))
        raise ConfigError(
            f"{self.source}: {count:,} different paragraphs are too few for a context of this length, and none is "
            "repeated: add documents, or reduce the length"
        )

    def line(self, sentence: str, rng: Rng) -> str:
        """The sentence as it is."""
        del rng
        return sentence

    def occurs(self, word: str) -> bool:
        """Whether a document contains the word."""
        return word.lower() in self.words


@lru_cache(maxsize=4)
def read_haystack(source: str, column: str) -> Haystack:
    """Reads the documents of a folder and its subfolders, or of one file.

    Args:
        source: The folder or file: `.txt` and `.md` are a document each, `.jsonl` and `.csv` have one per row. Tables
            in a folder are read only if there is nothing else: next to texts they are usually questions about them.
        column: The column of the text in `.jsonl` and `.csv`.

    Raises:
        DataError: There is nothing to read, or a file or row cannot be read.
    """
    seen: set[str] = set()
    documents = []
    for text in _texts(Path(source).expanduser(), column):
        paragraphs = [part for part in dict.fromkeys(_paragraphs(text)) if part not in seen]
        seen.update(paragraphs)
        if paragraphs:
            documents.append(tuple(paragraphs))
    if not documents:
        raise DataError(f"{source}: there is no text in these documents")
    every = "\n\n".join(text for document in documents for text in document)
    digest = hashlib.sha256("\0".join("\n".join(document) for document in documents).encode()).hexdigest()
    return Haystack(source, tuple(documents), frozenset(words_of(every)), digest[:16])


def _texts(source: Path, column: str) -> Iterator[str]:
    with reading(source, DataError):
        if not source.exists():
            raise DataError(f"{source}: there is no such file or folder")
        files = sorted(source.rglob("*")) if source.is_dir() else [source]
        files = [file for file in files if file.is_file()]
        texts = [file for file in files if file.name.endswith(_PLAIN + _ROWS)]
        files = texts or [file for file in files if file.name.endswith(_TABLES)]
    if not files:
        raise DataError(f"{source}: no documents to read; known: {', '.join(_PLAIN + _ROWS + _TABLES)}")
    for file in files:
        if file.name.endswith(_PLAIN):
            yield read_text(file, DataError)
            continue
        for raw in raw_rows([file]):
            value = raw.checked().get(column)
            if not isinstance(value, str):
                raise DataError(
                    f"{raw.place}, field '{column}': needs a text, got {short(value)}; rename the column, or "
                    "pass --haystack-column to longrm world"
                )
            yield value


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in _BETWEEN_PARAGRAPHS.split(text):
        for start, end in chunk_spans(paragraph, _PARAGRAPH):
            if part := paragraph[start:end].strip():
                yield part
