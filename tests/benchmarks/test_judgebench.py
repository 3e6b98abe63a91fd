import pytest

from longrm.errors import DataError

ROW = {
    "pair_id": "p1",
    "original_id": 3,
    "source": "mmlu-pro-computer science",
    "question": "Which?",
    "response_model": "m",
    "response_A": "This.",
    "response_B": "That.",
    "label": "B>A",
    "judge_name": "reward_model",
    "judgments": [],
}


def test_a_row_becomes_a_pair_with_its_category(put, bench):
    loaded = bench(f"judgebench:{put('j.jsonl', ROW)}")
    (pair,) = loaded.comparisons
    assert loaded.rule == "judgebench"
    assert (pair.id, pair.ranks) == ("p1", (2, 1))
    assert pair.metadata["task"] == "Knowledge"
    assert pair.metadata["subtype"] == "mmlu-pro-computer science"
    assert "judgments" not in pair.metadata


def test_the_category_follows_from_the_source(put, bench):
    sources = ("mmlu-pro-law", "livebench-reasoning", "livebench-math", "livecodebench")
    rows = [{**ROW, "pair_id": source, "source": source} for source in sources]
    tasks = [pair.metadata["task"] for pair in bench(f"judgebench:{put('j.jsonl', *rows)}").comparisons]
    assert tasks == ["Knowledge", "Reasoning", "Math", "Coding"]


def test_a_pair_that_two_judges_judged_comes_once(tmp_path, put, bench, counts):
    put("both/a.jsonl", ROW)
    put("both/b.jsonl", {**ROW, "judge_name": "other"})
    loaded = bench(f"judgebench:{tmp_path}/both")
    for _ in range(2):
        assert [pair.id for pair in loaded.comparisons] == ["p1"]
        assert counts(loaded) == {"repeated_pairs": 1}


def test_another_pair_under_the_same_name_is_refused(put, bench):
    with pytest.raises(DataError, match=r"line 2, field 'pair_id': 'p1' came before"):
        bench(f"judgebench:{put('j.jsonl', ROW, {**ROW, 'question': 'Another?'})}")


def test_identical_responses_tie_and_stay(put, bench, counts):
    loaded = bench(f"judgebench:{put('j.jsonl', {**ROW, 'response_B': 'This.'})}")
    assert [pair.ranks for pair in loaded.comparisons] == [(1, 1)]
    assert counts(loaded) == {"identical_responses": 1, "ties": 1}


@pytest.mark.parametrize("change", [{"label": "A"}, {"source": "arc"}, {"pair_id": [1]}])
def test_an_invalid_field_is_named(change, put, bench):
    with pytest.raises(DataError, match=f"field '{next(iter(change))}'"):
        bench(f"judgebench:{put('j.jsonl', {**ROW, **change})}")
