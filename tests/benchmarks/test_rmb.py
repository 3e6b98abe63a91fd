import json
from collections import Counter
from pathlib import Path

import pytest

from longrm.errors import DataError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.types import text_of

REAL = Path(__file__).parents[3] / "shared" / "data" / "rmb"

PATH = "Pairwise_set/Helpfulness/Open QA/Factual"
TURNS = [
    {"role": "user", "content": "Who wrote the code?", "language": "English"},
    {"role": "assistant", "content": "Quill.", "language": "English"},
    {"role": "user", "content": "Wer noch?", "language": "German"},
]
PAIR = {
    "pair_uid": "7",
    "conversation_input": TURNS,
    "chosen": {"answer": "Noreth.", "llm_name": "one"},
    "reject": {"answer": "Nobody.", "llm_name": "two"},
    "category_path": PATH,
}
BEST = {
    "bon_uid": "7",
    "conversation_input": TURNS,
    "bon_best": {"answer": "Noreth.", "llm_name": "one"},
    "loser_list": [{"answer": "Nobody.", "llm_name": "two"}, {"answer": "You.", "llm_name": "three"}],
    "category_path": PATH.replace("Pairwise", "BoN"),
}


@pytest.fixture
def rmb(tmp_path, bench):
    """Loads the benchmark with these files below its folder, each a JSON list."""

    def find(**sets):
        for name, rows in sets.items():
            folder = tmp_path / "rmb" / name / "Helpfulness" / "Open QA"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "Factual.json").write_text(json.dumps(rows))
        return bench(f"rmb:{tmp_path}/rmb")

    return find


def test_both_sets_are_one_benchmark_clustered_by_conversation(rmb, bench, tmp_path):
    loaded = rmb(Pairwise_set=[PAIR], BoN_set=[BEST])
    assert loaded.rule == "rmb"
    best, pair = loaded.comparisons
    assert (best.id, best.ranks) == ("bon/7", (1, 2, 2))
    assert (pair.id, pair.ranks) == ("pairwise/7", (1, 2))
    assert [text_of(response) for response in best.responses] == ["Noreth.", "Nobody.", "You."]
    assert pair.group == best.group
    assert pair.prompt == tuple({"role": turn["role"], "content": turn["content"]} for turn in TURNS)
    known = {"task": "Open QA", "subtype": "Factual", "language": "German", "length": 16}
    assert pair.metadata == {**known, "models": ["one", "two"]}
    assert best.metadata == {**known, "models": ["one", "two", "three"]}
    for part, name in (("Pairwise_set", "pairwise/7"), ("BoN_set/Helpfulness/Open QA/Factual.json", "bon/7")):
        assert [item.id for item in bench(f"rmb:{tmp_path}/rmb/{part}").comparisons] == [name]


def test_files_without_rows_and_no_files_are_errors(rmb, bench, tmp_path):
    rmb(BoN_set=[])
    settings = Evaluation(model="baseline:first", bench=f"rmb:{tmp_path}/rmb")
    with pytest.raises(DataError, match="rmb: no row in it"):
        run_evaluation(settings, tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: no \.json"):
        bench(f"rmb:{tmp_path}/empty")


def test_other_turns_are_another_group(rmb):
    other = {**PAIR, "pair_uid": 8, "conversation_input": TURNS[:1]}
    pair, alone = rmb(Pairwise_set=[PAIR, other]).comparisons
    assert alone.id == "pairwise/8"
    assert pair.group != alone.group


def test_an_answer_identical_to_the_best_ties_and_stays(rmb, counts):
    pair = {**PAIR, "reject": {"answer": "Noreth.", "llm_name": "two"}}
    best = {**BEST, "loser_list": [*BEST["loser_list"], {"answer": "Noreth.", "llm_name": "four"}]}
    loaded = rmb(Pairwise_set=[pair], BoN_set=[best])
    assert [item.ranks for item in loaded.comparisons] == [(1, 2, 2, 1), (1, 1)]
    assert counts(loaded) == {"identical_responses": 2, "ties": 2}


def test_an_empty_last_turn_is_read_and_an_empty_answer_is_left_out(rmb, counts):
    silent = {
        **PAIR,
        "conversation_input": [*TURNS[:2], {"role": "user", "content": "", "language": "Nolang"}],
    }
    empty = {**PAIR, "pair_uid": "8", "reject": {"answer": " ", "llm_name": "two"}}
    loaded = rmb(Pairwise_set=[silent, empty])
    assert [item.prompt[-1]["content"] for item in loaded.comparisons] == [""]
    assert counts(loaded) == {"empty_responses": 1}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({**PAIR, "chosen": "Noreth."}, "chosen"),
        ({**PAIR, "category_path": "Factual"}, "category_path"),
        ({**PAIR, "conversation_input": []}, "conversation_input"),
        ({**BEST, "loser_list": [{"llm_name": "two"}]}, "loser_list.0..answer"),
        ({"category_path": PATH, "conversation_input": TURNS}, "pair_uid"),
    ],
)
def test_an_invalid_field_is_named(row, field, rmb):
    with pytest.raises(DataError, match=f"row 1, field '{field}'"):
        rmb(Pairwise_set=[row])


def test_a_folder_without_json_is_an_error(bench, tmp_path):
    with pytest.raises(DataError, match=str(tmp_path)):
        bench(f"rmb:{tmp_path}")


@pytest.mark.skipif(not REAL.is_dir(), reason="RMB is not in ../shared/data")
def test_the_published_files_are_read_in_full(bench, counts):
    loaded = bench(f"rmb:{REAL}")
    items = list(loaded.comparisons)
    rows = {
        kind: [
            (file.parent.name, file.stem, row)
            for file in (REAL / folder).rglob("*.json")
            for row in json.loads(file.read_text(encoding="utf-8"))
        ]
        for kind, folder in (("pairwise", "Pairwise_set"), ("bon", "BoN_set"))
    }
    assert {kind: len(found) for kind, found in rows.items()} == {"pairwise": 6308, "bon": 1538}
    assert Counter(item.id.split("/")[0] for item in items) == {"pairwise": 6308, "bon": 1538}
    places = Counter((category, name) for found in rows.values() for category, name, _ in found)
    assert Counter((item.metadata["task"], item.metadata["subtype"]) for item in items) == places
    assert len({category for category, _ in places}) == 12
    conversations = {json.dumps(row["conversation_input"]) for found in rows.values() for _, _, row in found}
    assert len({item.group for item in items}) == len(conversations) == 1523
    assert {kind: counts(loaded).get(kind, 0) for kind in ("duplicates", "empty_responses")} == {
        "duplicates": 9,
        "empty_responses": 0,
    }
