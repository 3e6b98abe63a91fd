"""Columns of criteria are read in the forms in use, and written back."""

import json
import re

import pytest

from longrm.data import read, write
from longrm.data.criteria import criteria_of
from longrm.errors import DataError
from longrm.types import Criterion

PAIR = {"prompt": "Who?", "chosen": "Ann.", "rejected": "Bo.", "id": "a"}
TWO = (Criterion("Names Ann."), Criterion("Brief and plain.", -2.0))
OPEN = {
    "instruction": "Who?",
    "response_a": "Bo.",
    "response_b": "Ann.",
    "winner": "Response B",
    "rubric": "Rubric:\n1. Names Ann. [Hard Rule]\n2. Brief\n   and plain. [Principle]\n",
}


@pytest.mark.parametrize(
    "given",
    [
        [{"criterion": "Names Ann.", "weight": 1}, {"criterion": "Brief and plain.", "weight": -2}],
        [" Names Ann. ", {"description": "Brief and plain.", "points": -2.0, "tags": ["x"]}],
        json.dumps(["Names Ann.", {"criterion": "Brief and plain.", "weight": -2}]),
    ],
)
@pytest.mark.parametrize("column", ["rubrics", "rubric"])
def test_lists_and_their_json_are_read_and_written_without_loss(given, column, put, tmp_path):
    (row,) = read(put("rows.jsonl", PAIR | {column: given}))
    assert row.comparison.rubrics == TWO
    assert row.comparison.metadata == {}
    for name in ("again.jsonl", "again.parquet"):
        write(tmp_path / name, [row.comparison])
        assert [one.comparison for one in read(tmp_path / name)] == [row.comparison]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1. a\n2) b", ["a", "b"]),
        ("- a [Hard Rule]\n* b [principle]\n• c", ["a", "b", "c"]),
        ("Criteria\n\n1. a\n   goes on\n2. b", ["a goes on", "b"]),
        ("It is 3.5 m long.", ["It is 3.5 m long."]),
        ("Be brief\nand plain", ["Be brief and plain"]),
        (" \n", []),
    ],
)
def test_a_text_is_one_criterion_or_has_one_per_line(text, found):
    assert [one.text for one in criteria_of(text, "rubric")] == found


def test_rows_of_open_rubrics_are_pairs(put):
    (row,) = read(put("rows.jsonl", OPEN))
    assert row.comparison.ranks == (2, 1)
    assert [one.text for one in row.comparison.rubrics] == ["Names Ann.", "Brief and plain."]
    for winner, ranks in (("A", (1, 2)), ("response_a", (1, 2)), ("b", (2, 1)), ("Tie", (1, 1))):
        (row,) = read(put("rows.jsonl", OPEN | {"winner": winner}))
        assert row.comparison.ranks == ranks


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (PAIR | {"rubrics": 3}, "rubrics"),
        (PAIR | {"rubrics": [3]}, "rubrics[0]"),
        (PAIR | {"rubrics": ["a", ""]}, "rubrics[1].criterion"),
        (PAIR | {"rubrics": [{"criterion": "a", "weight": 0}]}, "rubrics[0].weight"),
        (PAIR | {"rubrics": [{"criterion": "a", "weight": "2"}]}, "rubrics[0].weight"),
        (PAIR | {"rubrics": [{"criterion": "a", "weight": float("nan")}]}, "rubrics[0].weight"),
        (OPEN | {"winner": "C"}, "winner"),
    ],
)
def test_an_invalid_criterion_is_named(put, row, field):
    with pytest.raises(DataError, match=re.escape(f"field '{field}'")):
        list(read(put("rows.jsonl", row)))


def test_no_criteria(put):
    for given in (None, [], "", "[]"):
        (row,) = read(put("rows.jsonl", PAIR | {"rubrics": given}))
        assert row.comparison.rubrics == ()
