"""`score` and `rank` as users call them: of one prompt, and of several."""

import pytest

from longrm import load, reward_function
from longrm.errors import DataError

MODEL = "baseline:longest"
MESSAGES = [{"role": "user", "content": "Which?"}]
CHOSEN, REJECTED = ([*MESSAGES, {"role": "assistant", "content": text}] for text in ("This.", "That one."))


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
        ("Which?", "one text", "at least one"),
        ("Which?", [], "at least one"),
        (["Which?", "What?"], [["a", "b"]], "2 prompts, got 1"),
        (["Which?", "What?"], "ab", "2 prompts, got 2"),
        (["Which?"], [[]], "at least one"),
        (["Which?"], ["a"], "at least one"),
        ("Which?", MESSAGES[0], "at least one"),
        (CHOSEN, REJECTED, "messages of one conversation"),
        ([CHOSEN, CHOSEN], [REJECTED, REJECTED], "messages of one conversation"),
        ("Which?", ["a", None], "must be text or a list of messages, got None"),
        (MESSAGES[0], ["a", "b"], "must be text or a list of messages, got {'role'"),
    ],
)
def test_what_is_no_list_of_responses_is_refused(prompt, responses, said):
    with pytest.raises(DataError, match=said):
        load(MODEL).score(prompt, responses)


def test_a_response_that_repeats_the_prompt_is_refused():
    asked, answer = {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ann"}
    model = load("baseline:longest")
    for prompt in ("Who?", [asked]):
        with pytest.raises(DataError, match="a response repeats the prompt"):
            model.score(prompt, [[asked, answer], [asked, answer | {"content": "Bob"}]])
        with pytest.raises(DataError, match="a response repeats the prompt"):
            reward_function(model)([prompt], [[asked, answer]])
        assert len(model.score(prompt, [[answer], [answer | {"content": "Bobby"}]])) == 2
