"""Rows in memory are read as the same rows in a file are."""

import json
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest

from longrm.data import read, read_demonstrations
from longrm.data.files import find_files, raw_rows, rows_digest
from longrm.data.memory import IN_MEMORY, named
from longrm.errors import DataError

ROWS = [
    {"prompt": "Which is larger?", "chosen": "9", "rejected": ["2", "4"], "margin": 1.5, "id": "a"},
    {
        "prompt": [{"role": "user", "content": "Which is smaller?"}],
        "chosen": "2",
        "rejected": ["9"],
        "margin": 2.0,
        "id": "b",
    },
]
PLAIN = [ROWS[0], ROWS[0] | {"id": "b", "margin": 2.0}]
NATIVE = [{"prompt": "Which?", "responses": ["9", "2"], "ranks": [1, 2], "length": 4096, "x": None}]

OBJECTS = {
    "list": lambda rows: rows,
    "DataFrame": pd.DataFrame,
    "Dataset": datasets.Dataset.from_list,
    "generator": iter,
    "formatted": lambda rows: datasets.Dataset.from_list(rows).with_format("numpy"),
    "arrays": lambda rows: [{name: _array(value) for name, value in row.items()} for row in rows],
}


def _array(value):
    return (
        np.array(value) if isinstance(value, list) else np.float64(value) if type(value) is float else value
    )


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("rows", [PLAIN, NATIVE], ids=["trl", "longrm"])
def test_objects_are_read_as_a_file_is(kind, rows, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = read(OBJECTS[kind](rows))
    for _ in range(2):  # a generator, too
        assert [row.comparison for row in reader] == [row.comparison for row in read(file)]
    assert str(reader.path) == str(named(rows))  # the same digest
    assert str(named(rows[:1] * 2)) != str(reader.path)


def test_a_list_may_have_columns_of_mixed_types():
    assert [len(row.comparison.responses) for row in read(ROWS)] == [3, 2]
    kept = named(ROWS)
    (file,) = find_files(Path(str(kept)))
    assert rows_digest(file) == kept.digest


@pytest.mark.parametrize(
    ("make", "what"), [(list, "list"), (pd.DataFrame, "DataFrame"), (datasets.Dataset.from_list, "Dataset")]
)
def test_errors_name_the_row_of_the_object(make, what):
    rows = make([*PLAIN, {"prompt": "Which?", "id": "c"}])
    with pytest.raises(DataError, match=rf"row 3 of the {what}, field 'chosen'"):
        list(read(rows))
    reader = read(rows, on_bad_row="skip")
    assert len(list(reader)) == 2
    assert f"row 3 of the {what}" in reader.skipped.messages[0]


def test_missing_cells_of_a_data_frame_are_null():
    frame = pd.DataFrame([*PLAIN, PLAIN[0] | {"id": "c"}])
    frame.loc[2, "margin"] = float("nan")
    frame["when"] = pd.to_datetime(["2026-01-01", None, None])
    reader = read(frame)
    rows = [raw.value for raw in raw_rows(reader.files)]
    assert [row["margin"] for row in rows] == [1.5, 2.0, None]
    assert [row["when"] for row in rows][1:] == [None, None]


@pytest.mark.parametrize("data", [[], ["x"], {"prompt": "x"}, 3, datasets.DatasetDict({"train": None})])
def test_other_objects_are_refused(data):
    with pytest.raises(DataError, match="the (list|dict|int|DatasetDict)"):
        read(data)


def test_columns_and_demonstrations():
    rows = [{"question": "Which?", "good": "9", "bad": "2"}]
    (row,) = read(rows, columns={"prompt": "question", "chosen": "good", "rejected": "bad"})
    assert row.comparison.ranks == (1, 2)
    (one,) = read_demonstrations([{"prompt": "Which?", "completion": "9"}])
    assert one.place == "row 1 of the list"


def test_rows_are_kept_only_as_long_as_they_are_used():
    reader = read([{"prompt": "Which one?", "chosen": "9", "rejected": "2"}])
    name = str(reader.path)
    assert name in IN_MEMORY
    equal = read([{"prompt": "Which one?", "chosen": "9", "rejected": "2"}])
    del reader
    assert next(iter(equal)).id == "row-1"
    del equal
    assert name not in IN_MEMORY
