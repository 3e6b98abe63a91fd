"""Parquet and Arrow: no more is unfolded than may be held, and one bad value costs its row only."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longrm.data import columnar, read
from longrm.data.files import raw_rows
from longrm.data.unpacking import largest_page, unpacked
from longrm.errors import DataError

TEXTS = {"prompt": ["Who?", "When?"], "chosen": ["Ann", "Now"], "rejected": ["Bob", "Then"]}


BOTH = pytest.mark.parametrize("suffix", [".parquet", ".arrow"])


@pytest.fixture
def stored(tmp_path):
    """Writes columns beside those of two comparisons, and returns the file."""

    def write(suffix, table=None, **columns):
        table = pa.table(TEXTS | columns) if table is None else table
        path = tmp_path / f"rows{suffix}"
        if suffix == ".parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
        return path

    return write


VALUES = [
    (pa.array([b"\xff", None]), [b"\xff", None]),
    (pa.array([decimal.Decimal("1.50"), None]), [decimal.Decimal("1.50"), None]),
    (pa.array([datetime.date(2024, 2, 29), None]), [datetime.date(2024, 2, 29), None]),
    (pa.array(["a", "a"]).dictionary_encode(), ["a", "a"]),
    (pa.array(["a" * 50, None], pa.string_view()), ["a" * 50, None]),
    (pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), [[("k", 1)], []]),
    (pa.array([{"a": [1, None]}, None]), [{"a": [1, None]}, None]),
    (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [[1, 2], None]),
    (pa.nulls(2), [None, None]),
    (pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": [1]}', None])), [{"a": [1]}, None]),
]


@BOTH
@pytest.mark.parametrize(("column", "expected"), VALUES, ids=[str(column.type) for column, _ in VALUES])
def test_values_of_every_type_are_read(column, expected, suffix, stored):
    path = stored(suffix, extra=column)
    assert [raw.checked()["extra"] for raw in raw_rows([path])] == expected


def json_column(*texts):
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))


BAD = [
    (pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32()), "cannot be read"),
    (pa.array([0, 2**62]).cast(pa.timestamp("us")), "cannot be read"),
    (pa.array([0, 2**62]).cast(pa.duration("s")), "cannot be read"),
    (json_column("[1]", "[1"), "not valid JSON"),
    (json_column("{}", '{"a": 1, "a": 2}'), "the key 'a' stands twice"),
    (json_column("{}", "[" * 500 + "]" * 500), "nested more than 100 levels"),
]


@BOTH
@pytest.mark.parametrize(("column", "problem"), BAD, ids=[str(n) for n in range(len(BAD))])
def test_a_value_that_cannot_be_read_costs_its_row_alone(column, problem, suffix, stored):
    path = stored(suffix, extra=column)
    with pytest.raises(DataError, match=f"row 2, field 'extra': {problem}"):
        list(read(path))
    reading = read(path, on_bad_row="skip")
    assert [row.number for row in reading] == [1]
    assert reading.skipped.count == 1


def test_text_that_is_no_utf8_costs_its_row_alone(tmp_path):
    bad = pa.Array.from_buffers(pa.string(), 2, pa.array([b"Ann", b"\xff\xfe"]).buffers())
    pq.write_table(pa.table(TEXTS | {"chosen": bad}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="row 2, field 'chosen': cannot be read: .*utf-8"):
        list(read(tmp_path / "rows.parquet"))


@BOTH
def test_columns_of_one_name_are_refused(suffix, stored):
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(DataError, match="field 'a': stands twice; rename one"):
        list(raw_rows([stored(suffix, table)]))
    inner = pa.StructArray.from_arrays([pa.array([1, 1]), pa.array([2, 2])], names=["b", "b"])
    with pytest.raises(DataError, match=r"field 'extra\.b': stands twice"):
        list(raw_rows([stored(suffix, extra=inner)]))


@pytest.mark.parametrize(
    "column",
    [
        pa.RunEndEncodedArray.from_arrays([2**30], ["a"]).slice(0, 2),
        pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]),
        pa.ListViewArray.from_arrays([0, 0], [1, 1], pa.array([1])),
    ],
    ids=["run-end-encoded", "union", "list view"],
)
def test_types_that_nobody_writes_data_in_are_refused_by_column(column, stored):
    path = stored(".arrow", extra=column)
    with pytest.raises(DataError, match=r"field 'extra': is of the type .*, which is not read; cast it"):
        list(raw_rows([path]))


def nested(depth):
    held = pa.array([1, 1])
    for _ in range(depth):
        held = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), held)
    return held


def test_columns_are_nested_so_deep_and_no_deeper(stored):
    assert len(list(raw_rows([stored(".parquet", extra=nested(40))]))) == 2
    with pytest.raises(DataError, match=r"rows\.parquet: cannot be read: Parquet schema too deeply nested"):
        list(raw_rows([stored(".parquet", extra=nested(90))]))


@BOTH
def test_a_row_that_is_too_large_is_named_and_may_be_left_out(suffix, stored, monkeypatch):
    monkeypatch.setattr(columnar, "MAX_ROW_BYTES", 1000)
    path = stored(suffix, chosen=["Ann", "x" * 1000])
    with pytest.raises(DataError, match="row 2, field 'chosen': .* more than 1,000 bytes"):
        list(read(path))
    assert [row.number for row in read(path, on_bad_row="skip")] == [1]


@pytest.mark.parametrize(
    "column",
    [
        pa.FixedSizeListArray.from_arrays(pa.nulls(2 * 10**9), 10**9),
        pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array(["x" * 70_000_000])),
        pa.array([["x" * 1_000_000] * 70] * 2),
        pa.array([[("x" * 70_000_000, 1)]] * 2, pa.map_(pa.string(), pa.int64())),
        pa.array(["x" * 70_000_000] * 2, pa.string_view()),
    ],
    ids=["nulls", "dictionary", "list", "map", "view"],
)
def test_what_a_row_takes_is_asked_before_it_is_made(column, stored):
    path = stored(".arrow", extra=column)
    with pytest.raises(DataError, match="row 1, field 'extra': with this the row takes more than"):
        next(raw_rows([path])).checked()


def test_the_largest_page_is_told_as_it_was_written(tmp_path):
    path = tmp_path / "rows.parquet"
    schema = pa.schema(
        [pa.field("a", pa.string(), nullable=False), pa.field("b", pa.int64(), nullable=False)]
    )
    table = pa.table([["x" * 1000] * 3000, list(range(3000))], schema=schema)
    for compression in ("none", "zstd"):
        pq.write_table(table, path, compression=compression, use_dictionary=False, data_page_size=2**40)
        group = pq.read_metadata(path).row_group(0)
        # PLAIN: four bytes of length and the text, or eight bytes of number.
        assert [largest_page(path, group.column(index)) for index in (0, 1)] == [3000 * 1004, 3000 * 8]
    pq.write_table(table, path, use_dictionary=False, data_page_size=1, write_batch_size=10)
    assert largest_page(path, pq.read_metadata(path).row_group(0).column(0)) == 10 * 1004
    pq.write_table(table, path, use_dictionary=True)
    assert largest_page(path, pq.read_metadata(path).row_group(0).column(0)) >= 1004


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_the_size_of_packed_messages_is_told_before_they_are_unpacked(compression, tmp_path):
    numbers, words = pa.array(np.zeros(5000)), pa.array(["x" * 100] * 5000)
    table = pa.table({"a": numbers, "b": words, "c": pa.array(["y" * 1000] * 5000).dictionary_encode()})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    messages = {message.type: message for message in pa.ipc.MessageReader.open_stream(sink.getvalue())}
    sizes = {kind: unpacked(message) for kind, message in messages.items()}
    if compression is None:
        assert set(sizes.values()) == {0}
    else:
        assert sizes["record batch"] == 5000 * 8 + 5001 * 4 + 5000 * 100 + 5000 * 4
        assert sizes["dictionary"] in (1000, 1000 + 8)  # what packing makes no smaller may lie there as it is
        assert sizes["schema"] == 0


def test_pages_and_batches_that_unfold_to_too_much_are_refused_with_a_limit(stored, monkeypatch):
    monkeypatch.setattr(columnar, "MAX_ROW_BYTES", 1000)
    monkeypatch.setattr(columnar, "LARGEST_PAGES", 10_000)
    monkeypatch.setattr(columnar, "DENSEST", 1)
    path = stored(".parquet", chosen=["x" * 20_000, "y"])
    with pytest.raises(
        DataError, match=r"field 'chosen': 20,\d\d\d bytes in one page, 10,000 are read at once from a file"
    ):
        list(raw_rows([path]))
    sink = path.with_suffix(".arrow")
    table = pa.table(TEXTS | {"chosen": ["x" * 20_000, "y"]})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(sink), "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as stream:
        stream.write_table(table)
    with pytest.raises(DataError, match=r"rows\.arrow: a batch of more than 10,000 bytes"):
        list(raw_rows([sink]))


def test_lists_without_end_are_refused_with_a_limit(stored, monkeypatch):
    monkeypatch.setattr(columnar, "MOST_ITEMS", 1000)
    assert len(list(raw_rows([stored(".parquet", extra=[[1] * 500, [1] * 500])]))) == 2
    with pytest.raises(DataError, match="a group of rows with 1,001 items in its lists, 1,000 are read"):
        list(raw_rows([stored(".parquet", extra=[[1] * 500, [1] * 501])]))


def test_offsets_beyond_the_file_are_refused(tmp_path):
    """A stream is mapped, so that nobody but us looks at what it says."""
    path = tmp_path / "rows.arrow"
    table = pa.table({"a": ["x" * 50] * 100})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    content = bytearray(path.read_bytes())
    at = content.index(np.arange(0, 250, 50, dtype="<i4").tobytes())
    content[at + 40 : at + 44] = (2**30).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"rows\.arrow: cannot be read: .*offset"):
        list(raw_rows([path]))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 3, bytes(1000), b"ARROW1\0\0" + bytes(100)])
def test_files_that_are_damaged_are_named(content, tmp_path):
    for suffix in (".parquet", ".arrow"):
        path = tmp_path / f"rows{suffix}"
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            list(raw_rows([path]))
        assert str(caught.value).startswith(f"{path}: ")


def test_large_pages_are_read_from_files_that_are_large_themselves(stored, monkeypatch):
    monkeypatch.setattr(columnar, "MAX_ROW_BYTES", 30_000)
    monkeypatch.setattr(columnar, "LARGEST_PAGES", 10_000)
    path = stored(".parquet", chosen=["x" * 20_000, "y" * 20_000])
    assert [len(raw.checked()["chosen"]) for raw in raw_rows([path])] == [20_000, 20_000]
    monkeypatch.setattr(columnar, "DENSEST", 2)
    with pytest.raises(DataError, match="bytes in one page"):
        list(raw_rows([path]))
