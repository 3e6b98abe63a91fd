"""Parquet and Arrow: values of every type are read, and an invalid JSON value is an error of its row only."""

import datetime
import decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longrm.data import read
from longrm.data.files import raw_rows
from longrm.errors import DataError

TEXTS = {"prompt": ["Who?", "When?"], "chosen": ["Ann", "Now"], "rejected": ["Bob", "Then"]}


BOTH = pytest.mark.parametrize("suffix", [".parquet", ".arrow"])


@pytest.fixture
def stored(tmp_path):
    """Writes columns next to those of two comparisons, and returns the file."""

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
    (pa.array([decimal.Decimal("1.50"), None]), [decimal.Decimal("1.50"), None]),
    (pa.array([datetime.date(2024, 2, 29), None]), [datetime.date(2024, 2, 29), None]),
    (pa.array(["a", "a"]).dictionary_encode(), ["a", "a"]),
    (pa.array([{"a": [1, None]}, None]), [{"a": [1, None]}, None]),
    (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [[1, 2], None]),
    (pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": [1]}', None])), [{"a": [1]}, None]),
]


@BOTH
@pytest.mark.parametrize(("column", "expected"), VALUES, ids=[str(column.type) for column, _ in VALUES])
def test_values_of_every_type_are_read(column, expected, suffix, stored):
    path = stored(suffix, extra=column)
    assert [raw.checked()["extra"] for raw in raw_rows([path])] == expected


@BOTH
def test_an_invalid_json_value_is_an_error_of_its_row(suffix, stored):
    path = stored(suffix, extra=pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[1]", "[1"])))
    with pytest.raises(DataError, match="row 2, field 'extra'"):
        list(read(path))
    reading = read(path, on_bad_row="skip")
    assert [row.number for row in reading] == [1]
    assert reading.skipped.count == 1


@BOTH
def test_rows_are_numbered_over_batches(suffix, stored):
    table = pa.table({name: texts * 20 for name, texts in TEXTS.items()})
    assert [raw.number for raw in raw_rows([stored(suffix, table)])] == [*range(1, 41)]


def test_a_duplicate_column_is_an_error(stored):
    table = pa.Table.from_arrays([pa.array(["a"])] * 2, names=["prompt", "prompt"])
    with pytest.raises(DataError, match=r"rows\.parquet, field 'prompt'"):
        list(raw_rows([stored(".parquet", table)]))
