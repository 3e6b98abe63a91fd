import json
from collections import Counter
from pathlib import Path

import pytest

from longrm.errors import DataError
from longrm.types import text_of

REAL = Path(__file__).parents[3] / "shared" / "data" / "judgelrm"

ROW = {
    "idx": 3,
    "motivation_app": "Notes",
    "cmp_key": "one_two",
    "instruction": "Sort the names.",
    "input": "Quill, Noreth",
    "response1": "Noreth, Quill",
    "response2": "Quill",
    "annotator1": 1,
    "annotator2": 2,
    "annotator3": 1,
    "output": "<answer>9</answer><answer>2</answer>",
    "result": 1,
}


def test_a_row_becomes_a_pair_with_its_majority(put, bench):
    loaded = bench(f"judgelrm:{put('r.jsonl', ROW, {**ROW, 'idx': 4, 'input': ''})}")
    assert loaded.rule == "judgelrm"
    pair, alone = loaded.comparisons
    assert (pair.id, pair.ranks) == ("3", (1, 2))
    assert [text_of(response) for response in pair.responses] == ["Noreth, Quill", "Quill"]
    assert (text_of(pair.prompt), text_of(alone.prompt)) == (
        "Sort the names.\nQuill, Noreth",
        "Sort the names.",
    )
    assert pair.metadata == {
        "task": "one_two",
        "motivation_app": "Notes",
        "votes": ["1", "2", "1"],
        "length": 8,
    }
    assert pair.group != alone.group


@pytest.mark.parametrize(
    ("votes", "ranks"),
    [
        ((2, 2, 0), (2, 1)),
        (("1", "0", "1"), (1, 2)),
        ((0, 0, 1), (1, 1)),
        ((0, 1, 2), (1, 1)),
        ((2, 1, 0), (1, 1)),
    ],
)
def test_gold_is_the_majority_and_without_one_a_tie(votes, ranks, put, bench):
    row = {**ROW, **{f"annotator{number}": vote for number, vote in enumerate(votes, start=1)}}
    assert [pair.ranks for pair in bench(f"judgelrm:{put('r.jsonl', row)}").comparisons] == [ranks]


def test_an_empty_response_was_compared_and_stays(put, bench, counts):
    loaded = bench(f"judgelrm:{put('r.jsonl', {**ROW, 'response2': ''})}")
    assert len(list(loaded.comparisons)) == 1
    assert counts(loaded) == {"empty_responses": 1}


@pytest.mark.parametrize("change", [{"annotator2": 3}, {"response1": None}, {"idx": None}])
def test_an_invalid_field_is_named(change, put, bench):
    with pytest.raises(DataError, match=f"line 1, field '{next(iter(change))}'"):
        bench(f"judgelrm:{put('r.jsonl', {**ROW, **change})}")


@pytest.mark.skipif(not REAL.is_dir(), reason="JudgeLRM's results are not in ../shared/data")
def test_the_published_pairs_are_read_in_full(bench, counts):
    file = REAL / "results_judgelrm3b.json"
    loaded = bench(f"judgelrm:{file}")
    pairs, rows = list(loaded.comparisons), json.loads(file.read_text(encoding="utf-8"))
    assert [pair.id for pair in pairs] == [str(row["idx"]) for row in rows]
    assert Counter(pair.ranks for pair in pairs) == {(2, 1): 472, (1, 2): 422, (1, 1): 105}
    assert (
        len({pair.group for pair in pairs})
        == len({(row["instruction"], row["input"]) for row in rows})
        == 170
    )
    assert counts(loaded) == {"duplicates": 136, "empty_responses": 54, "ties": 105}
