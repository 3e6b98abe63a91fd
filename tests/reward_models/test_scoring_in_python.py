"""`score` and `rank` as users call them: of one prompt, and of several."""

import pytest

from longrm import load
from longrm.errors import DataError

MODEL = "baseline:longest"
MESSAGES = [{"role": "user", "content": "Which?"}]


def test_several_prompts_are_scored_as_each_alone():
    model = load(MODEL)
    prompts = ["Which?", MESSAGES]
    responses = [["a", "abc"], ["abcd", [{"role": "assistant", "content": "ab"}], "abc"]]
    alone = [model.score(*pair) for pair in zip(prompts, responses, strict=True)]
    assert model.score(prompts, responses) == alone == [[1.0, 3.0], [4.0, 2.0, 3.0]]
    assert model.rank(prompts, responses) == [[1, 0], [0, 2, 1]]
    assert model.rank(prompts[0], responses[0]) == [1, 0]


def test_a_list_of_messages_is_one_prompt():
    assert load(MODEL).score(MESSAGES, ["a", "abc"]) == [1.0, 3.0]


def test_equal_responses_keep_their_order():
    assert load(MODEL).rank("Which?", ["ab", "a", "cd"]) == [0, 2, 1]


@pytest.mark.parametrize(
    ("prompt", "responses", "said"),
    [
        ("Which?", "one text", "one at least"),
        ("Which?", [], "one at least"),
        (["Which?", "What?"], [["a", "b"]], "got 1 for 2 prompts"),
        (["Which?", "What?"], "ab", "a list of responses for each prompt"),
        (["Which?"], [[]], "one at least"),
        (["Which?"], ["a"], "one at least"),
    ],
)
def test_what_is_no_list_of_responses_is_refused(prompt, responses, said):
    with pytest.raises(DataError, match=said):
        load(MODEL).score(prompt, responses)
