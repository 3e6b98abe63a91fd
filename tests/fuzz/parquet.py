"""Parquet and Arrow: damaged files, types that JSON does not have, values that need more memory than there is."""

import datetime
import decimal
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from . import data, hostile, seeds

_FAR = 2**62
COLUMNS: tuple[Callable[[random.Random, int], Any], ...] = (
    lambda rng, n: pa.array([_FAR] * n, pa.int64()).cast(pa.timestamp(rng.choice(["s", "ms", "us", "ns"]))),
    lambda rng, n: pa.array(
        [_FAR] * n, pa.timestamp(rng.choice(["ns", "us"]), tz=rng.choice(["UTC", "Mars/Base", "+99:99"]))
    ),
    lambda rng, n: pa.array([rng.choice([2**31 - 1, -(2**31), 0])] * n, pa.int32()).cast(pa.date32()),
    lambda rng, n: pa.array([_FAR] * n, pa.int64()).cast(pa.date64(), safe=False),
    lambda rng, n: pa.array([rng.choice([_FAR, -_FAR, 5])] * n, pa.int64()).cast(
        pa.duration(rng.choice(["s", "ms", "us", "ns"]))
    ),
    lambda rng, n: pa.array([rng.choice([0, 86_399, 2**30])] * n, pa.int32()).cast(
        pa.time32("s"), safe=False
    ),
    lambda rng, n: pa.array([decimal.Decimal(10) ** rng.choice([0, 30, 37])] * n, pa.decimal128(38, 0)),
    lambda rng, n: pa.array([decimal.Decimal("1.5")] * n, pa.decimal256(76, rng.choice([1, 70]))),
    lambda rng, n: pa.array(
        [rng.choice([b"", b"\xff\x00", b"text"])] * n, rng.choice([pa.binary(), pa.large_binary()])
    ),
    lambda rng, n: pa.array([b"abcd"] * n, pa.binary(4)),
    lambda rng, n: pa.array(["a", None] * n).slice(0, n).dictionary_encode(),
    lambda rng, n: pa.array([[("k", 1), ("k", 2)]] * n, pa.map_(pa.string(), pa.int64())),
    lambda rng, n: pa.array([{"a": {"b": [1, None]}}] * n),
    lambda rng, n: pa.StructArray.from_arrays([pa.array([1] * n), pa.array([2] * n)], names=["a", "a"]),
    lambda rng, n: pa.nulls(n),
    lambda rng, n: pa.array(
        [float(rng.choice(["nan", "inf", "1e308"]))] * n, rng.choice([pa.float64(), pa.float32()])
    ),
    lambda rng, n: pa.array([1.5] * n, pa.float16()),
    lambda rng, n: pa.array([2**64 - 1] * n, pa.uint64()),
    lambda rng, n: pa.array([rng.choice([True, False])] * n),
    lambda rng, n: pa.array(
        [[1, 2]] * n, rng.choice([pa.list_(pa.int8()), pa.list_(pa.int8(), 2), pa.large_list(pa.int8())])
    ),
    lambda rng, n: pa.array(
        [rng.choice(["", " ", "text", "x" * 70_000])] * n, rng.choice([pa.string(), pa.large_string()])
    ),
    lambda rng, n: pa.array(["a"] * n, pa.string_view()),
    lambda rng, n: pa.ExtensionArray.from_storage(
        pa.json_(), pa.array([hostile.written(rng, hostile.value(rng)).encode(errors="replace").decode()] * n)
    ),
    lambda rng, n: pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([b"0123456789abcdef"] * n, pa.binary(16))
    ),
    lambda rng, n: pa.array([datetime.datetime(9999, 12, 31, 23, 59, 59)] * n),
    lambda rng, n: pa.RunEndEncodedArray.from_arrays([n], ["a"]),
    lambda rng, n: pa.UnionArray.from_dense(
        pa.array([0] * n, pa.int8()), pa.array(range(n), pa.int32()), [pa.array([1] * n), pa.array(["a"])]
    ),
    lambda rng, n: pa.array(
        [pa.scalar((1, 2, 3), pa.month_day_nano_interval()).as_py()] * n, pa.month_day_nano_interval()
    ),
    lambda rng, n: _nested(rng.choice([5, 90, 120, 300]), n),
)
"""Columns that no data set of comparisons expects."""


def _nested(depth: int, n: int) -> Any:
    held = pa.array([1] * n)
    for _ in range(depth):
        held = pa.ListArray.from_arrays(pa.array(range(n + 1), pa.int32()), held)
    return held


def make(rng: random.Random, folder: Path) -> list[str]:
    """A file of rows that is damaged, or has columns of other types."""
    table = _table(rng)
    suffix = rng.choice([".parquet", ".parquet", ".arrow"])
    path = folder / f"rows{suffix}"
    if not _write(rng, path, table):
        path = folder / "rows.arrow"
        _write(rng, path, table)
    content = path.read_bytes()
    path.unlink()
    if rng.random() < 0.4:
        content = hostile.damaged(rng, content)
    return data.command(rng, hostile.put(rng, path, content), folder)


def _table(rng: random.Random) -> Any:
    rows = rng.choice(seeds.rows())
    table = pa.Table.from_pylist([{key: value for key, value in row.items() if value != []} for row in rows])
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        column = rng.choice(COLUMNS)(rng, table.num_rows)
        names = table.column_names
        match rng.randrange(5):
            case 0:  # one that is there is of this type now
                at = rng.randrange(len(names))
                table = table.set_column(at, names[at], column)
            case 1:  # a name twice
                table = table.append_column(rng.choice(names), column)
            case 2:
                table = table.append_column(
                    rng.choice(["length", "depth", "task", "metadata", "context", "group", "ranks"]), column
                )
            case _:
                table = table.append_column(rng.choice(["extra", "", "\x00", "é" * 300, "a.b"]), column)
    return table.slice(0, rng.choice([0, 1, table.num_rows, table.num_rows, table.num_rows]))


def _write(rng: random.Random, path: Path, table: Any) -> bool:
    try:
        if path.suffix == ".parquet":
            options = {"compression": rng.choice(["none", "snappy", "zstd", "gzip", "lz4", "brotli"])}
            pq.write_table(
                table,
                path,
                row_group_size=rng.choice([1, 2, 1000]),
                use_dictionary=rng.random() < 0.5,
                **options,
            )
        else:
            new = pa.ipc.new_file if rng.random() < 0.2 else pa.ipc.new_stream
            with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as stream:
                stream.write_table(table)
    except (pa.ArrowException, TypeError, OverflowError):
        return False
    return True


def _zeros(kind: Any, count: int) -> Any:
    """Values of one byte, which take no memory until somebody writes them."""
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(bytearray(count))])


def _text(size: int) -> Any:
    offsets = pa.py_buffer(bytes(4) + size.to_bytes(4, "little"))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(bytearray(size))])


def _held(folder: Path, suffix: str, compression: str | None = "zstd", **columns: Any) -> list[str]:
    """A file of a few kilobytes with columns beside those of a comparison."""
    rows = len(next(iter(columns.values())))
    names = {"prompt": "Who?", "chosen": "Ann.", "rejected": "Bob."}
    table = pa.table(
        {name: [f"{text} {row}" for row in range(rows)] for name, text in names.items()} | columns
    )
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        same = [name for name, column in columns.items() if pa.types.is_dictionary(column.type)]
        pq.write_table(table, path, compression=compression, use_dictionary=same, write_statistics=False)
    else:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema, options=options) as stream,
        ):
            stream.write_table(table)
    assert path.stat().st_size < 2_000_000
    return ["audit", str(path)]


def _list(items: Any) -> Any:
    return pa.LargeListArray.from_arrays(pa.array([0, len(items)], pa.int64()), items)


def _same(text: Any, rows: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), text)


CORPUS: dict[str, Callable[[Path], list[str]]] = {
    "a text of 80 MB": lambda folder: _held(folder, ".parquet", chosen=_text(80_000_000)),
    "a text of 70 MB in 60 rows": lambda folder: _held(
        folder, ".parquet", rejected=_same(pa.array(["x" * 70_000_000]), 60)
    ),
    "a list of 10,000,000 items": lambda folder: _held(
        folder, ".parquet", extra=_list(_zeros(pa.int8(), 10_000_000))
    ),
    "a list of 1,000,000,000 nulls": lambda folder: _held(
        folder, ".arrow", None, extra=pa.FixedSizeListArray.from_arrays(pa.nulls(10**9), 10**9)
    ),
}

LARGE: dict[str, Callable[[Path], list[str]]] = {
    "a text of 600 MB": lambda folder: _held(folder, ".parquet", chosen=_text(600_000_000)),
    "a text of 600 MB in a stream": lambda folder: _held(folder, ".arrow", chosen=_text(600_000_000)),
    "a list of 60,000,000 items": lambda folder: _held(
        folder, ".parquet", extra=_list(_zeros(pa.int8(), 60_000_000))
    ),
}
