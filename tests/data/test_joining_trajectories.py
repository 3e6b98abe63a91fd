"""Responses of several turns, with tools: the tokens are those of transformers for every whole conversation."""

from itertools import takewhile

import pytest

from longrm.data.joining import encode
from longrm.errors import DataError
from tests.data.trajectories import (
    ANSWERED,
    PLAIN,
    PROMPT,
    RESPONSES,
    TOOLS,
    WRITTEN_HERE,
    installed,
    pair_of_tokenizers,
    say,
)

# Real families; the first five render calls and results of tools, Phi-3 knows none.
FAMILIES = ("llama3_1", "qwen2_5", "qwen3", "glm4moe", "gptoss", "gemma4", "phi3")


def template_of(name: str) -> str:
    return WRITTEN_HERE[name] if name in WRITTEN_HERE else installed(name)


def shared_start(sequences: list[list[int]]) -> int:
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in takewhile(lambda ids: len({*ids}) == 1, columns))


@pytest.mark.parametrize("name", [*FAMILIES, *WRITTEN_HERE])
def test_prompt_and_response_are_what_transformers_makes_of_the_conversation(name):
    ours, theirs = pair_of_tokenizers(template_of(name))
    encoded = encode(ours, PROMPT, RESPONSES, TOOLS)
    wholes = [theirs.apply_chat_template([*PROMPT, *one], tools=[*TOOLS])["input_ids"] for one in RESPONSES]
    assert [[*encoded.prompt, *own] for own in encoded.responses] == wholes
    # What all of them share of the prompt is read once.
    alone = theirs.apply_chat_template([*PROMPT], tools=[*TOOLS])["input_ids"]
    assert len(encoded.prompt) >= shared_start([alone, *wholes])
    if name != "mistral":
        assert len(encoded.prompt) >= len(alone) - 1, "system, tools and task"
    if name != "phi3":
        bare = encode(ours, PROMPT, RESPONSES)
        assert [[*bare.prompt, *own] for own in bare.responses] != wholes, "without the tools"


def test_a_template_that_moves_the_tools_shares_what_stays():
    ours, _ = pair_of_tokenizers(WRITTEN_HERE["mistral"])
    stays = encode(ours, PROMPT, RESPONSES[:3], TOOLS)
    moves = encode(ours, PROMPT, RESPONSES, TOOLS)
    assert "AVAILABLE_TOOLS" in ours.decode(stays.prompt)
    assert "AVAILABLE_TOOLS" not in ours.decode(moves.prompt)
    with pytest.raises(DataError):
        encode(ours, PROMPT, RESPONSES, TOOLS, completion_tokens=True)
    assert len(encode(ours, PROMPT, RESPONSES[:3], TOOLS, completion_tokens=True).completion_tokens) == 3


# Those whose training templates of TRL mark the same characters as ours: the rest count a header, or a thought that the
# template opens, to the assistant's turn, or do not.
@pytest.mark.parametrize("name", ["qwen3", "qwen3_instruct_2507", "glm4moe", "lfm2"])
@pytest.mark.parametrize("response", RESPONSES, ids=["plain", "answered", "retried", "continued"])
def test_own_tokens_are_those_that_transformers_marks_as_the_assistants(name, response):
    ours, theirs = pair_of_tokenizers(installed(f"{name}_training"))
    marked = theirs.apply_chat_template(
        [*PROMPT, *response], tools=[*TOOLS], return_dict=True, return_assistant_tokens_mask=True
    )
    encoded = encode(ours, PROMPT, [response], TOOLS, completion_tokens=True)
    end = len(marked["input_ids"])
    (written,) = encoded.completion_tokens
    assert {end + place for place in written} == {
        at for at, own in enumerate(marked["assistant_masks"]) if own
    }
    if len(response) > 1:
        assert len(written) < len(encoded.responses[0]), "all that follows the prompt is more"


@pytest.mark.parametrize("name", WRITTEN_HERE)
def test_neither_results_nor_users_turns_count(name):
    ours, _ = pair_of_tokenizers(WRITTEN_HERE[name])
    responses = RESPONSES if name == "hermes" else RESPONSES[:3]
    encoded = encode(ours, PROMPT, responses, TOOLS, completion_tokens=True)
    for response, ids, written in zip(responses, encoded.responses, encoded.completion_tokens, strict=True):
        text = ours.decode([ids[place] for place in written])
        left_out = ours.decode([ids[place] for place in range(-len(ids), 0) if place not in {*written}])
        for message in response:
            holder, other = (text, left_out) if message["role"] == "assistant" else (left_out, text)
            assert message["content"] in holder
            assert not message["content"] or message["content"] not in other
        assert text.count(ours.closing()) == sum(one["role"] == "assistant" for one in response)
    assert encoded.only([1]).completion_tokens == [encoded.completion_tokens[1]]


def test_a_response_may_begin_with_the_result_of_the_prompts_last_call():
    ours, theirs = pair_of_tokenizers(WRITTEN_HERE["hermes"])
    prompt, responses = (*PROMPT, ANSWERED[0]), (ANSWERED[1:], (ANSWERED[1], say("assistant", "No.")))
    encoded = encode(ours, prompt, responses, TOOLS, completion_tokens=True)
    wholes = [theirs.apply_chat_template([*prompt, *one], tools=[*TOOLS])["input_ids"] for one in responses]
    assert [[*encoded.prompt, *own] for own in encoded.responses] == wholes
    (first, _), ids = encoded.completion_tokens, encoded.responses[0]
    assert "degrees" in ours.decode(ids)
    assert "21 degrees." in ours.decode([ids[place] for place in first])
    assert "tool_response" not in ours.decode([ids[place] for place in first])


def test_own_tokens_need_a_template_and_a_turn_of_the_assistant():
    ours, _ = pair_of_tokenizers(WRITTEN_HERE["hermes"])
    with pytest.raises(DataError):
        encode(ours, PROMPT, [(say("user", "a"), say("user", "b"))], completion_tokens=True)
    bare = type(ours).from_backend(ours.backend)
    with pytest.raises(DataError, match="chat template"):
        encode(bare, PROMPT, [ANSWERED, PLAIN], completion_tokens=True)
    assert encode(bare, PROMPT, [ANSWERED, PLAIN]).assistant_spans is None
