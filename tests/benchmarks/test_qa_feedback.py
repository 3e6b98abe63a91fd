"""Synthetic rows in the layout of QA-Feedback, and the published rows where they are at hand."""

import json
from collections import Counter
from itertools import combinations

import pytest

from longrm.errors import DataError
from longrm.types import message_text, text_of
from tests.benchmarks.conftest import REAL

ROW = {
    "question": "Who took the boat?",
    "passages": [["Boat", "Boat\n\nAnn took it.", "Ben waited."], ["Quay", "It is old."]],
    "gold": "Ann took it.",
    "prediction 1": "Ann did. It is old.",
    "prediction 2": "Ben did.",
    "prediction 3": "Ann.",
    "prediction 4": "Ann took it.",
    "feedback": {
        "errors": [{"error type": "Irrelevant", "explanation": "", "start": 9, "end": 19}],
        "missing-info": [],
        "corrected-prediction": "Ann did.",
    },
    "preference": [1, 0, 2, 2, 2, 0],
}


def test_every_two_answers_with_a_preference_are_a_pair(put, bench, counts):
    loaded = bench(f"qa-feedback:{put('r.jsonl', ROW, {**ROW, 'question': 'Who waited?'})}")
    pairs = list(loaded.comparisons)
    assert {pair.id: pair.ranks for pair in pairs[:4]} == {
        "1/1+2": (1, 2),
        "1/1+4": (2, 1),
        "1/2+3": (2, 1),
        "1/2+4": (2, 1),
    }
    assert [text_of(answer) for answer in pairs[1].responses] == [ROW["prediction 1"], ROW["prediction 4"]]
    assert len(pairs) == 8
    assert len({pair.group for pair in pairs[:4]}) == 1
    assert len({pair.group for pair in pairs}) == 2
    assert [pair.metadata["answers"] for pair in pairs[:4]] == [[1, 2], [1, 4], [2, 3], [2, 4]]
    assert counts(loaded) == {"no_preference": 4}
    # Errors are marked in answer 1, the first response of its pairs.
    marked = [pair.metadata["errors"] for pair in pairs[:4]]
    assert marked == [[{"kind": "Irrelevant", "start": 9, "end": 19}]] * 2 + [[]] * 2
    assert text_of(pairs[0].responses[0])[9:19] == "It is old."


def test_the_prompt_is_the_passages_and_the_question_which_are_marked(put, bench):
    pair, *_ = bench(f"qa-feedback:{put('r.jsonl', ROW)}").comparisons
    text = message_text(pair.prompt[0])
    (context,) = pair.context
    assert text[context.start : context.end] == "Boat\nAnn took it. Ben waited.\n\nQuay\nIt is old."
    assert text[pair.question.start : pair.question.end] == ROW["question"]


def test_a_question_without_passages_has_no_context(put, bench):
    pair, *_ = bench(f"qa-feedback:{put('r.jsonl', {**ROW, 'passages': []})}").comparisons
    assert (pair.context, message_text(pair.prompt[0])) == ((), ROW["question"])


def test_answers_that_cannot_be_rated_are_counted(put, bench, counts):
    loaded = bench(f"qa-feedback:{put('r.jsonl', {**ROW, 'prediction 4': 'Ben did.', 'prediction 3': ''})}")
    assert [pair.id for pair in loaded.comparisons] == ["1/1+2", "1/1+4"]
    assert counts(loaded) == {
        "no_preference": 2,
        "empty_responses": 1,
        "identical_responses": 1,
        "duplicates": 1,
    }


def test_a_missing_answer_is_an_error(put, bench):
    with pytest.raises(DataError, match=r"line 1, field 'prediction 3'"):
        bench(f"qa-feedback:{put('r.jsonl', {key: ROW[key] for key in ROW if key != 'prediction 3'})}")


def test_feedback_may_be_null(put, bench):
    pair, *_ = bench(f"qa-feedback:{put('r.jsonl', {**ROW, 'feedback': None})}").comparisons
    assert pair.metadata["errors"] == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"preference": [1, 0, 2, 2, 2]}, "preference"),
        ({"preference": [1, 0, 2, 2, 2, 3]}, r"preference\[5\]"),
        ({"passages": [["Boat"]]}, r"passages\[0\]"),
        ({"question": ""}, "question"),
        ({"prediction 2": 3}, "prediction 2"),
        ({"feedback": {"errors": [{"error type": "Irrelevant", "start": 9}]}}, r"feedback.errors\[0\].end"),
    ],
)
def test_an_invalid_field_is_named(change, field, put, bench):
    with pytest.raises(DataError, match=f"line 1, field '{field}'"):
        bench(f"qa-feedback:{put('r.jsonl', {**ROW, **change})}")


def test_the_published_rows_by_an_independent_count(bench, counts):
    file = REAL / "qa-feedback" / "dev_feedback.json"
    if not file.is_file():
        pytest.skip("QA-Feedback is not in ../shared/data")
    loaded = bench(f"qa-feedback:{file}")
    found, longest = Counter(), 0
    for pair in loaded.comparisons:
        chosen, rejected = (text_of(pair.responses[at]) for at in pair.best_first())
        found[chosen, rejected] += 1
        longest += (len(chosen) > len(rejected)) + 0.5 * (len(chosen) == len(rejected))
    expected, ties, longer = Counter(), 0, 0
    for row in json.loads(file.read_text(encoding="utf-8")):
        for (one, other), preferred in zip(combinations("1234", 2), row["preference"], strict=True):
            texts = [row[f"prediction {one}"], row[f"prediction {other}"]]
            ties += preferred == 0
            if preferred:
                expected[texts[preferred - 1], texts[2 - preferred]] += 1
                sizes = [len(text) for text in texts]
                longer += 0.5 if sizes[0] == sizes[1] else sizes[preferred - 1] == max(sizes)
    assert found == expected
    assert counts(loaded).get("no_preference") == ties
    assert longest == longer
    # Negative control: with the coding reversed, the gold is another one.
    assert Counter({(rejected, chosen): n for (chosen, rejected), n in found.items()}) != expected
