"""The files that hold rows: which files belong to a path, and their rows one by one.

Parquet and Arrow are read with pyarrow. JSON lines and CSV are read with the standard library: pyarrow and `datasets`
infer one schema for a whole JSON file, which fails on columns of mixed types and adds null fields to nested objects,
and pandas silently fills up short CSV rows; all of them lose the line that an error is in.
"""

import csv
import io
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from longrm import hub
from longrm.column_names import Columns, own_columns, renamed
from longrm.data.memory import IN_MEMORY
from longrm.errors import DataError
from longrm.reading import (
    FieldError,
    cut,
    file_digest,
    located,
    open_file,
    parse_json,
    read_json,
    reading,
    short,
)
from longrm.runs.folder import MANIFEST

RUN_ROWS = "rows"
"""The folder of rows in a run folder of `longrm synthesize`."""

_logger = logging.getLogger(__name__)
_SHARDS = (".jsonl", ".jsonl.gz", ".parquet")
_TABLES = (".csv", ".csv.gz")
_SUFFIXES = (*_SHARDS, *_TABLES, ".json", ".arrow")
# How the file names of a split begin in a data set of the Hub.
_SPLIT = re.compile(r"(train|validation|val|dev|test)\b")
# Rows of long contexts are large: so few are turned into Python objects at a time.
_BATCH = 8

# Cells of CSV are texts. By the name of their column they are also read as:
_NUMBERS = frozenset({"length", "depth", "margin", "probability", "score", "reward", "rating", "weight"})
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
# - JSON, if they begin with a bracket;
_LISTS = frozenset(
    {
        *("candidates", "candidates_score", "responses", "ranks", "rejects", "rejected_responses"),
        *("scores", "model_scores", "conf", "reject_models", "depths"),
        *("evidence", "exemplars", "steps", "metadata"),
    }
)
# - messages in JSON. Any other list there stays a text: models write lists, too;
_MESSAGES = frozenset({"prompt", "chat_template", "chosen", "rejected", "golden", "completion"})
_MESSAGE_START = re.compile(r"\s*\[\s*\{\s*[\"'](?:role|content)[\"']\s*:")
# - spans in JSON, as longrm writes them.
_SPANS = frozenset({"context", "question"})
_SPAN_START = re.compile(r"\s*\[?\s*\{\s*\"message\"\s*:")


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row of a file, and its place (file and row)."""

    number: int  # counts from 1 over all files: the line in JSONL, otherwise the row without the header
    file: Path
    place: str
    value: dict[str, Any] | None  # None if it cannot be read
    problem: str = ""  # why it cannot be read

    @property
    def message(self) -> str:
        """The row's place, and why it cannot be read."""
        return located(self.place, self.problem)

    def checked(self) -> dict[str, Any]:
        """Returns the row; raises `DataError` with its place if it cannot be read."""
        if self.value is None:
            raise DataError(self.message)
        return self.value


def find_files(path: Path) -> list[Path]:
    """The files that hold the rows of a path, in order.

    The path is a file, a folder written by `datasets.save_to_disk`, a folder of JSONL or Parquet shards (or of CSV
    files, if there are none of these), or a run folder of `longrm synthesize`. If there is no such path it may be the
    id of a data set on the Hub, OWNER/NAME@REVISION, which is downloaded. Rows in memory are one file, with their name.

    Raises:
        DataError: There is nothing to read, or the path holds several data sets.
    """
    if str(path) in IN_MEMORY:
        return [path]
    with reading(path, DataError):
        source = str(path)
        is_id = "/" in source and not source.endswith(_SUFFIXES) and hub.split_revision(source) is not None
        files = _files_of(_download(source) if is_id and not path.exists() else path)
        folder = next(iter(files), path).absolute().parent
        manifest = folder.with_name(MANIFEST)
        is_run = folder.name == RUN_ROWS and manifest.is_file()
        if is_run and not read_json(manifest, DataError).get("counts"):  # the last thing that a run writes
            _warn_of_unfinished(path)
        return files


@cache  # once for a path, though commands look for its files several times
def _warn_of_unfinished(path: Path) -> None:
    _logger.warning("%s: the run that writes these rows is not finished; repeat its command", path)


def _download(source: str) -> Path:
    """The folder of the one split of a data set of the Hub or of ModelScope."""
    folder = hub.fetch(source, [f"*{suffix}" for suffix in _SUFFIXES], DataError, data_set=True)
    place = folder if any(map(is_row_file, folder.iterdir())) else folder / "data"
    found = "its rows are in several folders"
    if place.is_dir():
        splits = sorted({match[1] for file in place.iterdir() if (match := _SPLIT.match(file.name))})
        if len(splits) < 2:
            return place
        found = f"it has several splits ({', '.join(splits)})"
    raise DataError(f"{source}: {found}; it was downloaded: name one file or folder of {folder}")


def _files_of(path: Path) -> list[Path]:
    if not path.exists():
        raise DataError(f"{path}: {hub.missing_part(str(path)) or 'there is no such file or folder'}")
    if path.is_file():
        if not path.name.endswith(_SUFFIXES):
            raise DataError(f"{path}: unknown kind of file; known: {', '.join(_SUFFIXES)}, or a folder")
        return [path]
    if (path / RUN_ROWS).is_dir():
        if not any((path / RUN_ROWS).iterdir()):
            raise DataError(f"{path}: this run has no rows yet; its manifest.json counts what was dropped")
        return _files_of(path / RUN_ROWS)
    state = path / "state.json"
    if state.exists():  # written by datasets.save_to_disk
        return [path / entry["filename"] for entry in read_json(state, DataError)["_data_files"]]
    for suffixes in (_SHARDS, _TABLES):
        shards = sorted(file for file in path.iterdir() if file.name.endswith(suffixes))
        if shards:
            return shards
    splits = sorted(folder.name for folder in path.iterdir() if (folder / "state.json").is_file())
    if splits:
        raise DataError(
            f"{path}: contains several data sets ({', '.join(splits)}); name one: {path / splits[0]}"
        )
    # A .json file is not a shard: folders have such files for other purposes.
    alone = next(iter(sorted(path.glob("*.json"))), None)
    hint = f"; name a .json file itself: {alone}" if alone else ""
    raise DataError(f"{path}: no {', '.join((*_SHARDS, *_TABLES))} files and no saved data set{hint}")


def origin_of(files: Sequence[Path]) -> dict[str, str]:
    """The commit of files in the Hub's cache, as `{"commit": ...}`; empty for other files."""
    folders = [folder for file in files[:1] for folder in (file.parent, file.parent.parent)]
    return next(({"commit": commit} for folder in folders if (commit := hub.commit_of(folder))), {})


def rows_digest(file: Path) -> str:
    """The SHA-256 of a file as it is stored, or of rows in memory."""
    rows = IN_MEMORY.get(str(file))
    return file_digest(file, DataError) if rows is None else rows.digest


def is_row_file(path: Path) -> bool:
    """Whether a file of a folder is one of its shards, by its name."""
    return path.name.endswith((*_SHARDS, *_TABLES))


def raw_rows(files: Sequence[Path], *, columns: Columns | None = None) -> Iterator[RawRow]:
    """Reads the rows of all files, a few at a time. A row that cannot be read is yielded with its problem.

    Args:
        files: As `find_files` returns them.
        columns: longrm's names, each with the name of the column in the files. The first row must have them all.

    Raises:
        DataError: A file cannot be read any further.
    """
    columns, before, is_first = columns or {}, 0, True
    for file in files:
        last = 0
        rows = IN_MEMORY.get(str(file))
        kind = "line" if file.name.endswith((".jsonl", ".jsonl.gz")) else "row"
        with reading(file, DataError):
            for last, row in _numbered(file):
                place = f"{file}, {kind} {last}" if rows is None else f"row {last} of {rows.what}"
                if isinstance(row, ValueError):
                    yield RawRow(before + last, file, place, None, str(row))
                    continue
                missing = next((own for own, _ in own_columns(columns) if is_first and own not in row), None)
                if missing is not None:
                    known = cut(", ".join(row))
                    raise DataError(f"{place}, field '{missing}': no such column; the columns are: {known}")
                is_first = False
                try:
                    row = renamed(row, columns)
                    if file.name.endswith(_TABLES):
                        row = {
                            name: _cell_value(name, cell) if isinstance(cell, str) else cell
                            for name, cell in row.items()
                        }
                except FieldError as error:
                    yield RawRow(before + last, file, place, None, str(error))
                else:
                    yield RawRow(before + last, file, place, row)
        before += last


Numbered = Iterator[tuple[int, dict[str, Any] | ValueError]]
"""Rows by their number within a file, from 1; an error in place of a row that cannot be read."""


def _numbered(file: Path) -> Numbered:
    if (rows := IN_MEMORY.get(str(file))) is not None:
        for number, row in enumerate(rows, start=1):
            yield number, row if isinstance(row, dict) else ValueError(f"not a dict, but {short(row)}")
    elif file.suffix == ".parquet":
        with pq.ParquetFile(file) as parquet:
            yield from _arrow_rows(parquet.schema_arrow, parquet.iter_batches(_BATCH))
    elif file.suffix == ".arrow":
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
            yield from _arrow_rows(stream.schema, stream)
    elif file.name.endswith(_TABLES):
        yield from _csv_rows(file)
    else:
        yield from _json_rows(file)


def _arrow_rows(schema: Any, batches: Iterable[Any]) -> Numbered:
    _check_unique(schema.names)
    json_columns = [
        field.name for field in schema if getattr(field.type, "extension_name", "") == "arrow.json"
    ]
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH):
            for row in batch.slice(start, _BATCH).to_pylist():
                number += 1
                try:
                    for name in json_columns:
                        row[name] = None if row[name] is None else parse_json(row[name])
                except ValueError as error:
                    yield number, FieldError(name, str(error))
                else:
                    yield number, row


def _json_rows(file: Path) -> Numbered:
    with open_file(file) as content:
        values: Iterable[Any] = content
        if file.suffix == ".json":  # one array, or lines
            is_array = content.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
            content.seek(0)
            if is_array:
                values = parse_json(content.read())
        for number, value in enumerate(values, start=1):
            try:
                if isinstance(value, bytes):  # a line
                    text = value.removeprefix(b"\xef\xbb\xbf").strip()
                    if not text:
                        continue
                    value = parse_json(text)
            except ValueError as error:
                yield number, error
            else:
                yield number, value if isinstance(value, dict) else ValueError("not a JSON object")


def _csv_rows(file: Path) -> Numbered:
    """Cells are texts, or None if empty. Columns without a name (an index of pandas) and empty rows are left out."""
    csv.field_size_limit(sys.maxsize)  # the default is 131,072 characters, less than a long context
    with open_file(file) as content, io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        records = filter(None, reader)  # without blank lines
        try:
            header = next(records, [])
            _check_unique([name for name in header if name])
            if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
                raise ValueError(f"only one column, {short(header[0])}; separate the cells by commas")
            for number, cells in enumerate(records, start=1):
                if not any(cells):
                    continue
                if len(cells) == len(header):
                    named = zip(header, cells, strict=True)
                    yield number, {name: cell or None for name, cell in named if name}
                else:
                    counts = f"{len(cells):,} cells, but the header has {len(header):,}"
                    yield number, ValueError(f"{counts}; quote cells with commas")
        except csv.Error as error:
            # What follows would be lost, so this ends the file, and not only the row.
            raise ValueError(
                f"line {reader.line_num}: {error}; write a quotation mark within a quoted cell twice"
            ) from None


def _check_unique(names: Sequence[str]) -> None:
    duplicate = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if duplicate is not None:
        raise FieldError(duplicate, f"duplicate column '{duplicate}'")


def _cell_value(name: str, cell: str) -> Any:
    """The value of a CSV cell: a number, a list or the text, by the column's name."""
    if name in _NUMBERS:
        text = cell.strip()
        if not _NUMBER.fullmatch(text):
            return cell  # the code that needs a number reports it
        return float(text) if {*text} & {*".eE"} else int(text)
    if (
        (name in _LISTS and cell.lstrip()[:1] in ("[", "{"))
        or (name in _MESSAGES and _MESSAGE_START.match(cell))
        or (name in _SPANS and _SPAN_START.match(cell))
    ):
        try:
            return parse_json(cell)
        except ValueError as error:
            raise FieldError(name, f"{error}; write lists as JSON, as json.dumps does") from None
    return cell
