from longrm.types import text_of

VOTE = {
    "question_id": "q1",
    "model_a": "m",
    "model_b": "n",
    "winner": "model_b",
    "prompt": "Say hi.",
    "response_1": "No.",
    "response_2": "Hi!",
    "language": "English",
    "is_code": False,
}
CHECKED = {
    "question_id": "7",
    "model_name": "m",
    "category": "law",
    "prompt": "Which? A or B.",
    "scores": [True, False, True, False],
    "response_1": "A, surely",
    "response_2": "B",
    "response_3": "A",
    "response_4": "B, surely",
    "sampled_conflict_pairs": [[0, 3], [1, 2]],
}


def test_a_vote_is_a_pair(put, bench):
    loaded = bench(f"ppe:{put('rows.jsonl', VOTE, {**VOTE, 'question_id': 'q2', 'winner': 'model_a'})}")
    pair, other = loaded.comparisons
    assert (pair.id, pair.ranks, other.ranks) == ("q1", (2, 1), (1, 2))
    assert [text_of(response) for response in pair.responses] == ["No.", "Hi!"]
    assert pair.metadata == {
        "task": "Human preference",
        "subtype": "English",
        "model_a": "m",
        "model_b": "n",
        "language": "English",
        "length": 4,
    }


def test_votes_for_neither_are_left_out_and_counted(put, bench, counts):
    rows = [{**VOTE, "winner": winner} for winner in ("tie", "tie (bothbad)", "model_a")]
    loaded = bench(f"ppe:{put('rows.jsonl', *rows)}")
    assert [pair.ranks for pair in loaded.comparisons] == [(1, 2)]
    assert counts(loaded) == {"voted_ties": 2}


def test_sampled_pairs_have_the_right_answer_first(put, bench):
    other = {**CHECKED, "model_name": "n"}
    found = list(bench(f"ppe:{put('rows.jsonl', CHECKED, other)}").comparisons)
    assert [pair.id for pair in found] == ["7/m#0>3", "7/m#2>1", "7/n#0>3", "7/n#2>1"]
    assert [text_of(response) for response in found[1].responses] == ["A", "B"]
    assert {pair.ranks for pair in found} == {(1, 2)}
    assert len({pair.group for pair in found}) == 1  # of one question
    assert found[0].metadata == {
        "task": "Correctness",
        "subtype": "law",
        "model_name": "m",
        "category": "law",
        "length": 8,
    }


def test_a_pair_that_was_sampled_twice_counts_twice(put, bench, counts):
    twice = {**CHECKED, "sampled_conflict_pairs": [[0, 3], [0, 3]]}
    loaded = bench(f"ppe:{put('rows.jsonl', twice)}")
    assert [pair.id for pair in loaded.comparisons] == ["7/m#0>3", "7/m#0>3#2"]
    assert counts(loaded) == {"duplicates": 1}
