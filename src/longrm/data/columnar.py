"""Rows of Parquet files and Arrow streams, within bounds of memory, whatever their encodings unfold to.

A file of a few kilobytes may hold a text of gigabytes, and a damaged one may hold anything. So the
memory that a row takes is computed before the row is.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from longrm.data.unpacking import largest_page, unpacked
from longrm.errors import DataError
from longrm.reading import (
    MAX_ROW_BYTES,
    MAX_VALUES,
    ParseError,
    check_file,
    located,
    one_line,
    parse_json,
    reading,
)

Numbered = Iterator[tuple[int, dict[str, Any] | None, str]]
"""Rows by their number within a file, from 1; None where one cannot be read, with the reason, or is no row."""

LARGEST_PAGES = 512 * 1024 * 1024
"""Bytes that may have to be unpacked at once to read any row of a group; some three times as many are then held."""

DENSEST = 100
"""How many times larger than their bytes in the file pages beyond `LARGEST_PAGES` may be: a thousand contexts of 128K
tokens in one page are read, for texts pack to a tenth, and those that rows repeat to a hundredth; bombs to far less."""

MOST_ITEMS = 50_000_000
"""Items of lists in a group of rows, which may have to be unpacked at once."""

# Rows of long contexts are large: so many are turned into Python objects at a time.
_ROWS = 8
_NAMELESS = "(of no name)"
_EACH = MAX_ROW_BYTES // MAX_VALUES
_UNREADABLE = (
    ValueError,
    OverflowError,
    TypeError,
    LookupError,
    NotImplementedError,
    ImportError,
    pa.ArrowException,
)


def parquet_rows(file: Path, repair: bool) -> Numbered:
    """Reads the rows of a Parquet file; `repair` makes question marks of halves of surrogate pairs in JSON columns.

    Raises:
        DataError: It cannot be read, or some of it is too large to be.
    """
    before = 0
    with _reading(file), pq.ParquetFile(file) as parquet:
        _check_schema(parquet.schema_arrow)
        for group in range(parquet.num_row_groups):
            size = _check_group(file, parquet.metadata, group)
            batches = parquet.iter_batches(_ROWS if size <= MAX_ROW_BYTES else 1, row_groups=[group])
            yield from _table_rows(batches, before, repair)
            before += parquet.metadata.row_group(group).num_rows


def arrow_rows(file: Path, repair: bool) -> Numbered:
    """Reads the rows of an Arrow stream, as `datasets` writes them; otherwise as `parquet_rows`."""
    with _reading(file), pa.memory_map(str(file)) as source:
        for message in pa.ipc.MessageReader.open_stream(source):
            most = _most(message.body.size)
            if unpacked(message) > most:
                raise ParseError(f"a batch of more than {most:,} bytes; {_SMALLER}")
        source.seek(0)
        with pa.ipc.open_stream(source) as stream:
            _check_schema(stream.schema)
            yield from _table_rows(map(_validated, stream), 0, repair)


_SMALLER = "write the file with fewer rows in a group (row_group_size=100), or remove what is too large"


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    check_file(file, DataError)
    with reading(file, DataError):
        try:
            yield
        except ParseError as error:
            raise DataError(located(file, error)) from error
        except pa.ArrowException as error:
            if isinstance(error, MemoryError):
                raise
            raise DataError(located(file, f"cannot be read: {one_line(error)}")) from error


def _check_schema(schema: Any) -> None:
    """Refuses columns of which a row could not hold all, and types that nobody writes data sets in."""
    _check_names("", schema.names)
    below = [(field.name, field.type) for field in schema]
    while below:
        name, kind = below.pop()
        if isinstance(kind, pa.BaseExtensionType):
            below.append((name, kind.storage_type))
        elif pa.types.is_dictionary(kind) and not pa.types.is_nested(kind.value_type):
            below.append((name, kind.value_type))
        elif any(is_it(kind) for is_it in _FOREIGN):
            raise ParseError(f"is of the type {str(kind)[:80]}, which is not read; cast it to another", name)
        else:
            parts = [kind.field(index) for index in range(kind.num_fields)]
            if pa.types.is_struct(kind):
                _check_names(name, [part.name for part in parts])
            below += [(name, part.type) for part in parts]


_FOREIGN = (
    pa.types.is_union,
    pa.types.is_run_end_encoded,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
    pa.types.is_dictionary,
)
"""Types that are not read; dictionaries, the last of them, of nested values only."""


def _check_names(column: str, names: Iterable[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ParseError(
            "stands twice; rename one of the columns", f"{column}.{twice}" if column else twice or _NAMELESS
        )


def _table_rows(batches: Iterable[Any], before: int, repair: bool) -> Numbered:
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            for value, fault in _values(batch.slice(start, _ROWS), repair):
                before += 1
                yield before, value, fault


def _values(rows: Any, repair: bool) -> Iterable[tuple[dict[str, Any] | None, str]]:
    """Some rows as Python objects: together, or one by one where one of them is at fault."""
    try:
        if sum(map(_weight, rows.columns)) <= MAX_ROW_BYTES:
            return [(value, "") for value in _with_json(rows.schema, rows.to_pylist(), repair)]
    except _UNREADABLE:
        pass
    return (_value(rows.slice(index, 1), repair) for index in range(rows.num_rows))


def _value(row: Any, repair: bool) -> tuple[dict[str, Any] | None, str]:
    value: dict[str, Any] = {}
    weight = 0
    for name, column in zip(row.schema.names, row.columns, strict=True):
        part, field = row.select([name]), name or _NAMELESS
        try:
            weight += _weight(column)
            if weight > MAX_ROW_BYTES:
                raise ParseError(
                    f"with this the row takes more than {MAX_ROW_BYTES:,} bytes, the most that is read", field
                )
            value |= _with_json(part.schema, part.to_pylist(), repair)[0]
        except ParseError as error:
            return None, str(error)
        except _UNREADABLE as error:
            return None, str(ParseError(f"cannot be read: {one_line(error)}", field))
    return value, ""


def _with_json(schema: Any, rows: list[dict[str, Any]], repair: bool) -> list[dict[str, Any]]:
    names = [field.name for field in schema if getattr(field.type, "extension_name", "") == "arrow.json"]
    for name in names:
        for row in rows:
            try:
                row[name] = None if row[name] is None else parse_json(row[name], repair=repair)
            except ParseError as error:
                raise error.within(name or _NAMELESS) from None
    return rows


def _weight(array: Any) -> int:
    """About the bytes that an array takes as Python objects: those of its texts, and some for every value."""
    kind = array.type
    own: int = _EACH * len(array)
    if isinstance(array, pa.ExtensionArray):
        return _weight(array.storage)
    if pa.types.is_dictionary(kind):
        if not _has_bytes(kind.value_type):
            return own
        return own + _sum(pc.binary_length(array.dictionary).take(array.indices))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)  # each begins with its length
        return own + int(views[array.offset : array.offset + len(array), 0].sum(dtype=np.int64))
    if _has_bytes(kind):
        return own + _sum(pc.binary_length(array))
    if pa.types.is_struct(kind):
        return own + sum(map(_weight, array.flatten()))
    if pa.types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return own + sum(_weight(part.slice(first, last - first)) for part in (array.keys, array.items))
    return own + _weight(array.flatten()) if pa.types.is_nested(kind) else own


def _has_bytes(kind: Any) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _sum(lengths: Any) -> int:
    return int(pc.sum(lengths).as_py() or 0)


def _validated(batch: Any) -> Any:
    """Checks that the offsets of a batch, which comes from a mapped file as it is, point into the batch."""
    batch.validate(full=True)
    return batch


def _check_group(file: Path, metadata: Any, group: int) -> int:
    """Bytes that have to be unpacked at once for a group of rows; raises `ParseError` where they are too many."""
    rows = metadata.row_group(group)
    columns = [rows.column(index) for index in range(rows.num_columns)]
    items = sum(
        column.num_values
        for index, column in enumerate(columns)
        if metadata.schema.column(index).max_repetition_level
    )
    if items > MOST_ITEMS:
        raise ParseError(
            f"a group of rows with {items:,} items in its lists, {MOST_ITEMS:,} are read; {_SMALLER}"
        )
    size: int = sum(column.total_uncompressed_size for column in columns)
    if size <= MAX_ROW_BYTES:
        return size
    sizes = {column.path_in_schema: largest_page(file, column) for column in columns}
    most = _most(sum(column.total_compressed_size for column in columns))
    if sum(sizes.values()) > most:
        name = max(sizes, key=lambda name: sizes[name])
        raise ParseError(
            f"{sizes[name]:,} bytes in one page, {most:,} are read at once from a file of this size; {_SMALLER}",
            name.split(".")[0],
        )
    return sum(sizes.values())


def _most(packed: int) -> int:
    """The bytes that may be unpacked at once from so many in the file."""
    return max(LARGEST_PAGES, DENSEST * packed)
