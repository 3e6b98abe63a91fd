"""The containers of data: where rows lie, and how they are read one by one."""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from longrm.errors import DataError

_SHARDS = (".jsonl", ".jsonl.gz", ".parquet")
_SUFFIXES = (*_SHARDS, ".json", ".arrow")
# Rows of long contexts are large: so many are turned into Python objects at a time.
_ROWS = 8


@dataclass(frozen=True, slots=True)
class Raw:
    """One row as its container holds it.

    Attributes:
        number: Counts from 1 over all files: the line in JSONL, else the row.
        place: File and row, for messages.
        value: The row; None where it cannot be read.
        fault: Why it cannot be read.
    """

    number: int
    place: str
    value: dict[str, Any] | None
    fault: str = ""

    def checked(self) -> dict[str, Any]:
        """The row.

        Raises:
            DataError: It cannot be read; the message names its place.
        """
        if self.value is None:
            raise DataError(f"{self.place}: {self.fault}")
        return self.value


def find_files(path: Path) -> list[Path]:
    """The files that hold the rows of a path, in order.

    Args:
        path: A file, a folder written by `datasets.save_to_disk`, a folder of JSONL or Parquet shards, or a run
            folder of `longrm synthesize`, whose shards lie in `rows/`.

    Raises:
        DataError: There is nothing to read, or it is several data sets.
    """
    if path.is_file():
        if not path.name.endswith(_SUFFIXES):
            raise DataError(f"{path}: unknown kind of file; known: {', '.join(_SUFFIXES)}, or a folder")
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: there is no such file or folder")
    if (path / "rows").is_dir():
        if not any((path / "rows").iterdir()):
            raise DataError(
                f"{path}: this run has made no row so far; its manifest.json tells what was dropped"
            )
        return find_files(path / "rows")
    state = path / "state.json"
    if state.is_file():
        return _saved_files(state)
    shards = sorted(file for file in path.iterdir() if file.is_file() and file.name.endswith(_SHARDS))
    if shards:
        return shards
    splits = sorted(folder.name for folder in path.iterdir() if (folder / "state.json").is_file())
    if splits:
        raise DataError(
            f"{path}: holds several data sets ({', '.join(splits)}); name one: {path / splits[0]}"
        )
    raise DataError(
        f"{path}: no data in this folder; it needs {', '.join(_SHARDS)} files or a saved data set"
    )


def raw_rows(files: Sequence[Path]) -> Iterator[Raw]:
    """Reads the rows of all files, a few at a time."""
    before = 0
    for file in files:
        last = 0
        for last, value, fault in _numbered(file):
            kind = "line" if file.name.endswith((".jsonl", ".jsonl.gz")) else "row"
            if value is not None or fault:
                yield Raw(before + last, f"{file}, {kind} {last}", value, fault)
        before += last


def _numbered(file: Path) -> Iterator[tuple[int, dict[str, Any] | None, str]]:
    try:
        if file.name.endswith(".parquet"):
            with pq.ParquetFile(file) as parquet:
                yield from _table_rows(parquet.iter_batches(batch_size=_ROWS))
        elif file.name.endswith(".arrow"):
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
                yield from _table_rows(stream)
        elif file.name.endswith(".gz"):
            with gzip.open(file, "rb") as lines:
                yield from _json_lines(lines)
        else:
            with file.open("rb") as lines:
                yield from _json_array(lines) if _is_array(file, lines) else _json_lines(lines)
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file}: cannot be read: {reason}") from error


def _table_rows(batches: Iterator[Any]) -> Iterator[tuple[int, dict[str, Any] | None, str]]:
    number = 0
    for batch in batches:
        json_columns = [
            field.name for field in batch.schema if getattr(field.type, "extension_name", "") == "arrow.json"
        ]
        for start in range(0, batch.num_rows, _ROWS):
            for row in batch.slice(start, _ROWS).to_pylist():
                number += 1
                for name in json_columns:
                    row[name] = None if row[name] is None else json.loads(row[name])
                yield number, row, ""


def _json_lines(lines: IO[bytes] | gzip.GzipFile) -> Iterator[tuple[int, dict[str, Any] | None, str]]:
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not text:
            yield number, None, ""
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())
            yield number, None, f"not valid JSON, perhaps cut off ({reason}); repair or remove the line"
            continue
        yield (number, *_as_row(value))


def _is_array(file: Path, content: IO[bytes]) -> bool:
    """Whether a `.json` file holds one array instead of lines; reads its beginning."""
    if file.suffix != ".json":
        return False
    start = content.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    content.seek(0)
    return start.startswith(b"[")


def _json_array(content: IO[bytes]) -> Iterator[tuple[int, dict[str, Any] | None, str]]:
    try:
        values = json.load(content)
    except ValueError as error:
        yield 1, None, f"not valid JSON, perhaps cut off ({error}); repair the file"
        return
    for number, value in enumerate(values, start=1):
        yield (number, *_as_row(value))


def _as_row(value: Any) -> tuple[dict[str, Any] | None, str]:
    if isinstance(value, dict):
        return value, ""
    return None, "not a JSON object; every row needs the form {...}"


def _saved_files(state: Path) -> list[Path]:
    try:
        names = [entry["filename"] for entry in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{state}: not the state of a data set that was saved with save_to_disk") from error
    files = [state.parent / name for name in names]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: missing, though {state.name} lists it; copy the whole folder")
    return files
