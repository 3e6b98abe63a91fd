"""Columns of criteria are read in the forms in use, and written back."""

import json

import pytest

from longrm.data import read, write
from longrm.data.criteria import criteria_of
from longrm.errors import DataError
from longrm.jsonl import json_text
from longrm.types import Criterion

PAIR = {"prompt": "Who?", "chosen": "Ann.", "rejected": "Bo.", "id": "a"}
TWO = (Criterion("Names Ann."), Criterion("Brief and plain.", -2.0))
OPEN = {
    "instruction": "Who?",
    "response_a": "Bo.",
    "response_b": "Ann.",
    "winner": "Response B",
    "rubric": "Rubric:\n1. Names Ann. [Hard Rule]\n2. Brief\n   and plain. [Principle]\n",
    "source": "made",
}


@pytest.fixture
def put(tmp_path):
    def written(*rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json_text(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return written


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
    (row,) = read(put(PAIR | {column: given}))
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
        ("[Hard Rule]", None),
        ("", []),
        (" \n", []),
    ],
)
def test_a_text_holds_an_item_a_line_or_is_one(text, found):
    if found is None:
        with pytest.raises(Exception, match="list of criteria as JSON"):
            criteria_of(text, "rubric")
    else:
        assert [one.text for one in criteria_of(text, "rubric")] == found


def test_rows_of_open_rubrics_are_pairs(put):
    (row,) = read(put(OPEN))
    assert row.comparison.ranks == (2, 1)
    assert [one.text for one in row.comparison.rubrics] == ["Names Ann.", "Brief and plain."]
    assert row.comparison.metadata == {"source": "made"}
    for winner, ranks in (("A", (1, 2)), ("response_a", (1, 2)), ("b", (2, 1))):
        (row,) = read(put(OPEN | {"winner": winner}))
        assert row.comparison.ranks == ranks


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (PAIR | {"rubrics": 3}, "field 'rubrics'"),
        (
            PAIR | {"rubrics": [3]},
            r"field 'rubrics\[0\]'",
        ),
        (PAIR | {"rubrics": ["a", ""]}, r"field 'rubrics\[1\].criterion'"),
        (
            PAIR | {"rubrics": [{"criterion": "a", "weight": 0}]},
            r"'rubrics\[0\].weight'",
        ),
        (PAIR | {"rubrics": [{"criterion": "a", "weight": True}]}, r"'rubrics\[0\].weight'"),
        *(
            (
                PAIR | {"rubrics": [{"criterion": "a", "weight": weight}]},
                r"'rubrics\[0\].weight'",
            )
            for weight in ("2",)
        ),
        (OPEN | {"winner": "Tie"}, "field 'winner'"),
        (OPEN | {"winner": 1}, "field 'winner'"),
    ],
)
def test_what_is_no_criterion_is_named(put, row, said):
    with pytest.raises(DataError, match=said):
        list(read(put(row)))
    good = OPEN if "winner" in row else PAIR
    assert len(list(read(put(row, good), on_bad_row="skip"))) == 1


def test_no_criteria(put):
    for given in (None, [], "", "[]"):
        (row,) = read(put(PAIR | {"rubrics": given}))
        assert row.comparison.rubrics == ()


@pytest.mark.parametrize("weight", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_weight_that_is_no_number_is_no_weight_of_one(weight, as_text, tmp_path):
    rubrics = f'[{{"criterion": "a", "weight": {weight}}}, "b"]'
    row = json.dumps(PAIR)[:-1] + f', "rubrics": {json.dumps(rubrics) if as_text else rubrics}}}'
    (tmp_path / "rows.jsonl").write_text(row + "\n")
    with pytest.raises(DataError, match=r"'rubrics\[0\].weight'"):
        list(read(tmp_path / "rows.jsonl"))
