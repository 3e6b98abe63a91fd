"""Rows of judging prompts: what a judge that knows the better response would answer is always their gold."""

import re
from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from longrm.judging import load_format
from longrm.judging.judge_prompts import ASK_ANSWER, ASK_CONFIDENCE, judge_prompt_rows, stated_answers
from longrm.types import Comparison
from longrm.worlds.words_tokenizer import approximate_tokenizer

TOKENIZER = approximate_tokenizer()
COMPARISON = Comparison(
    "c1",
    "g1",
    ({"role": "user", "content": "Who has the key?"},),
    tuple(({"role": "assistant", "content": f"Answer {number}."},) for number in range(4)),
    (2, 1, 2, 4),
)


def rows_of(comparison, name, **options):
    return judge_prompt_rows(comparison, load_format(name), tokenizer=TOKENIZER, **options)


def shown(row):
    """The numbers of the responses in the order in which the prompt shows them."""
    return [int(number) for number in re.findall(r"Answer (\d)\.", row["prompt"][-1]["content"])]


def test_every_pair_that_gold_orders_is_shown_in_both_orders():
    rows = rows_of(COMPARISON, "pairwise")
    ranks = COMPARISON.ranks
    pairs = [pair for pair in combinations(range(4), 2) if ranks[pair[0]] != ranks[pair[1]]]
    assert len(pairs) == 5
    assert Counter(tuple(row["order"]) for row in rows) == Counter([*pairs, *(pair[::-1] for pair in pairs)])
    for row in rows:
        one, other = shown(row)
        assert [one, other] == row["order"]
        assert row["gold"] == ("A" if ranks[one] < ranks[other] else "B")
    assert Counter(row["gold"] for row in rows) == {"A": 5, "B": 5}


def test_a_ranking_is_asked_for_in_an_order_and_its_reverse():
    rows = rows_of(COMPARISON, "listwise", seed=3)
    assert rows[0]["order"] == rows[1]["order"][::-1]
    for row in rows:
        assert shown(row) == row["order"]
        names = dict(zip(row["order"], "ABCD", strict=True))
        middle = " = ".join(sorted(names[index] for index in (0, 2)))
        assert row["gold"] == f"{names[1]} > {middle} > {names[3]}"
    drawn = {tuple(rows_of(COMPARISON, "listwise", seed=seed)[0]["order"]) for seed in range(20)}
    assert len(drawn) > 5


def test_every_response_is_scored_alone():
    rows = rows_of(COMPARISON, "pointwise")
    assert [row["order"] for row in rows] == [[0], [1], [2], [3]]
    assert [shown(row) for row in rows] == [[0], [1], [2], [3]]
    assert [row["gold"] for row in rows] == ["2", "1", "2", "4"]


@pytest.mark.parametrize("name", ["pairwise", "listwise", "pointwise"])
def test_columns(name):
    (row, *_) = rows_of(COMPARISON, name)
    assert {key: row[key] for key in ("id", "group", "format")} == {"id": "c1", "group": "g1", "format": name}
    assert row["length"] == TOKENIZER.count(row["prompt"][-1]["content"])
    assert "answer" not in row
    assert rows_of(replace(COMPARISON, ranks=(1, 1, 1, 1)), name) == []


def test_prompts_may_ask_for_an_answer_and_a_confidence():
    (row, *_) = rows_of(COMPARISON, "pairwise", solve=True, confidence=True)
    (plain, *_) = rows_of(COMPARISON, "pairwise")
    assert row["prompt"][-1]["content"] == "\n\n".join(
        [plain["prompt"][-1]["content"], ASK_ANSWER, ASK_CONFIDENCE]
    )
    assert row["answer"] == ["Answer 1."], "the best response"
    assert row["length"] > plain["length"]
    for stated, answers in (("key", ["key"]), (["key", "a key"], ["key", "a key"])):
        known = replace(COMPARISON, metadata={"answer": stated})
        assert rows_of(known, "pointwise", solve=True)[0]["answer"] == answers


@pytest.mark.parametrize(
    ("answer", "stated"),
    [
        ("amber", ["amber"]),
        (["two", "2", " "], ["two", "2"]),
        (7, ["7"]),
        ("", []),
        (None, []),
        ({"text": "x"}, []),
    ],
)
def test_gold_answers_that_the_data_states(answer, stated):
    assert stated_answers(replace(COMPARISON, metadata={"answer": answer})) == stated
