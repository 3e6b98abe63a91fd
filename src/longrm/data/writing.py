"""Writes rows as JSONL or Parquet: the whole file appears at once, or nothing changes."""

import math
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from longrm.data.fields import to_json_types
from longrm.data.formats import to_native_row
from longrm.errors import DataError, first_line
from longrm.jsonl import json_line, json_text
from longrm.runs.scratch import replacing, writable_target
from longrm.types import Comparison

# The first rows decide the types of a Parquet file, and how many rows make a group of about this many characters.
_FIRST_ROWS = 128
_GROUP_CHARACTERS = 8_000_000
_SUFFIXES = (".jsonl", ".json", ".parquet")
_SCALARS: dict[frozenset[type], Any] = {
    frozenset({bool}): pa.bool_(),
    frozenset({int}): pa.int64(),
    frozenset({float}): pa.float64(),
    frozenset({int, float}): pa.float64(),
    frozenset({str}): pa.string(),
}


def write(path: str | Path, comparisons: Iterable[Comparison]) -> int:
    """Writes comparisons, which `read` reads back without loss; returns how many.

    Args:
        path: A `.jsonl` or `.parquet` file. It is replaced in one step when all rows are written.
        comparisons: May be a generator; they are never in memory together.

    Raises:
        DataError: The file cannot be written, or has another suffix.
    """
    return write_rows(path, map(to_native_row, comparisons))


def write_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes rows with any columns; otherwise as `write`.

    In Parquet, scalars and lists of scalars have Arrow's types; nested values have the type `arrow.json`.
    """
    path = Path(path)
    check_writable(path)
    try:
        with replacing(path) as file:
            if path.suffix == ".parquet":
                return _write_parquet(file, rows, path)
            count = 0
            for row in rows:
                file.write(json_line(row if _finite(row) else to_json_types(row), default=str))
                count += 1
            return count
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise DataError(f"{path}: cannot be written: {reason}; nothing was changed") from error


def check_writable(path: Path) -> None:
    """Raises `DataError` before any work if a path is no regular file or has an unknown suffix."""
    try:
        writable_target(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; name a file") from None
    if path.suffix not in _SUFFIXES:
        raise DataError(f"{path}: cannot write this kind of file; known: {', '.join(_SUFFIXES)}")


def _json(value: Any) -> str:
    return json_text(value if _finite(value) else to_json_types(value), default=str)


def _finite(value: Any) -> bool:
    """Whether a value has no NaN and no infinity, which JSON does not have: they are written as null."""
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _write_parquet(file: IO[bytes], rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    iterator = iter(rows)
    first = list(islice(iterator, _FIRST_ROWS))
    if not first:
        raise DataError(f"{path}: no row to write, and a Parquet file without rows has no columns")
    names = dict.fromkeys(name for row in first for name in row)
    schema = pa.schema([(name, _type([row.get(name) for row in first])) for name in names])
    size = max(1, _GROUP_CHARACTERS * len(first) // sum(len(_json(row)) for row in first))
    everything = chain(first, iterator)
    del first  # the rows are freed as they are written
    count = 0
    with pq.ParquetWriter(file, schema) as writer:
        while group := list(islice(everything, size)):
            place = f"{path}: rows {count + 1} to {count + len(group)}"
            unknown = {name for row in group for name in row} - set(schema.names)
            if unknown:
                raise DataError(f"{place}, field '{min(unknown)}': missing in the first rows; {_ADVICE}")
            arrays = []
            for field in schema:
                try:
                    arrays.append(_array(field.type, [row.get(field.name) for row in group]))
                except (pa.ArrowException, OverflowError, TypeError) as error:
                    problem = "of another type than in the first rows"
                    raise DataError(f"{place}, field '{field.name}': {problem}; {_ADVICE}") from error
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            count += len(group)
    return count


_ADVICE = "write a .jsonl file instead"


def _type(values: list[Any]) -> Any:
    """The simplest Arrow type for the values of a column."""
    present = [value for value in values if value is not None]
    kinds = frozenset(map(type, present))
    if kinds in _SCALARS:
        return _SCALARS[kinds]
    items = [item for value in present if isinstance(value, list) for item in value]
    inner = _SCALARS.get(frozenset(map(type, items)))
    return pa.list_(inner) if kinds == {list} and inner is not None else pa.json_(pa.utf8())


def _array(kind: Any, values: list[Any]) -> Any:
    if getattr(kind, "extension_name", "") != "arrow.json":
        return pa.array(values, kind)
    texts = [None if value is None else _json(value) for value in values]
    return pa.ExtensionArray.from_storage(kind, pa.array(texts, pa.utf8()))
