import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longrm.clients.redaction import redactor
from longrm.clients.replies import error_text, read_completion, read_rejection, retry_after_seconds
from longrm.types import Outcome

from .conftest import said

tell = redactor("")


def completion(*args, **message):
    return read_completion(json.dumps(said(*args, **message).body).encode(), tell)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thinking_is_told_apart(field):
    answer = completion("[[A]]", **{field: "first B, then"})
    assert (answer.text, answer.thinking, answer.outcome) == ("[[A]]", "first B, then", Outcome.ANSWERED)


@pytest.mark.parametrize(
    ("finish", "message", "outcome", "detail"),
    [
        ("stop", {}, Outcome.ANSWERED, ""),
        ("length", {}, Outcome.TRUNCATED, "reached max_tokens"),
        ("content_filter", {}, Outcome.REFUSED, "content filter"),
        ("stop", {"refusal": "I will\nnot"}, Outcome.REFUSED, "refused: I will not"),
        ("stop", {"refusal": None, "reasoning": None}, Outcome.ANSWERED, ""),
        (None, {}, Outcome.ANSWERED, ""),
    ],
)
def test_how_an_answer_ended(finish, message, outcome, detail):
    answer = completion("text", finish, **message)
    assert answer.outcome is outcome
    assert detail in answer.detail
    assert bool(answer.detail) == (outcome is not Outcome.ANSWERED)


def test_content_may_be_absent_or_in_parts():
    assert completion(None).text == ""
    assert completion([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]).text == "one two"


def test_half_a_surrogate_pair_becomes_storable():
    assert completion("a \ud83d b", reasoning="\ude00").text.encode() == b"a ? b"


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        {},
        *({"prompt_tokens": count} for count in ("many", -1, True, 1.5, 1e400, 10**9 + 1, 10**4000)),
    ],
)
def test_usage_may_be_anything(usage):
    body = said("text").body | {"usage": usage}
    answer = read_completion(json.dumps(body).encode(), tell)
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens) == ("text", None, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"\xff\xfe",
        b'{"choices": null}',
        b'{"choices": [{}]}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": ["text"]}',
        b'{"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]}',
        b'{"choices": [{"message": {"content": true}, "finish_reason": "stop"}]}',
        b'{"choices": [{"message": {"content": ["text"]}, "finish_reason": "stop"}]}',
        b'{"choices": [{"message": {"content": [{"text": ["a"]}]}, "finish_reason": "stop"}]}',
        b'{"choices": [{"message": {"content": null}}]}',
        b'{"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}',
        b'{"choices": [{"message": {"content": "a", "content": "b"}}]}',
        b'{"choices": [], "": 1, "": 2, "choices": [{"message": {"content": "a"}}]}',
        b"[" * 200_000,
        b'{"choices": [{"message": {"content": "half"}, "finish_reason": "error"}]}',
        b'{"choices": [{"message": {"content": "half"}, "finish_reason": "abort"}]}',
    ],
)
def test_a_body_without_a_message_is_said_to_be_one(body):
    with pytest.raises(ValueError, match=r"^the server('s answer| broke)"):
        read_completion(body, tell)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "the request exceeds the available context size. try increasing it",
        "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
        "prompt is too long: 208310 tokens > 200000 maximum",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575).",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    ],
)
def test_what_is_too_long_is_known_from_how_servers_say_it(message):
    body = json.dumps({"error": {"message": message}}).encode()
    assert read_rejection(400, body, tell).outcome is Outcome.TOO_LONG


def test_a_code_tells_too():
    body = {"error": {"message": "no", "code": "context_length_exceeded"}}
    assert read_rejection(400, json.dumps(body).encode(), tell).outcome is Outcome.TOO_LONG
    assert read_rejection(413, b"", tell).outcome is Outcome.TOO_LONG
    body = {"error": {"message": "The response was filtered", "code": "content_filter"}}
    assert read_rejection(400, json.dumps(body).encode(), tell).outcome is Outcome.REFUSED


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
        "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        "temperature must be between 0 and 2",
    ],
)
def test_other_rejections_are_errors(message):
    rejected = read_rejection(400, json.dumps({"error": {"message": message}}).encode(), tell)
    assert rejected.outcome is Outcome.ERROR
    assert message in rejected.detail


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "no\\n\\nroom", "code": "full"}}', "no room (full)"),
        (b'{"error": {"message": "no room", "code": 404}}', "no room"),
        (b'{"error": "no room"}', "no room"),
        (b'{"object": "error", "message": "no room"}', "no room"),
        (b'{"detail": "no room"}', "no room"),
        (b"<h1>no\nroom</h1>", "<h1>no room</h1>"),
        (b"x" * 1000, "x" * 300 + " ..."),
    ],
)
def test_explanations_are_one_line(body, said):
    assert tell(error_text(body)) == said


@pytest.mark.parametrize("shape", ['{"error": {"message": %s}}', '{"detail": %s}', '{"error": %s}', "%s"])
def test_no_depth_of_an_explanation_is_too_deep(shape):
    """What can just be parsed may be too deep to be written out."""
    for depth in range(800, 1010, 2):
        body = (shape % ("[" * depth + "]" * depth)).encode()
        assert tell(error_text(body)).isprintable()
        assert read_rejection(400, body, tell).outcome is Outcome.ERROR
        with pytest.raises(ValueError, match="the server's answer"):
            read_completion(body, tell)


def test_one_name_with_one_value_twice_is_no_contradiction():
    body = b'{"choices": [{"message": {"content": "a", "content": "a"}, "finish_reason": "stop"}]}'
    assert read_completion(body, tell).text == "a"


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(), st.emails(), st.datetimes().map(lambda date: date.strftime("%a, %d %b %Y %H:%M:%S %z"))
    )
)
@example("9" * 400)
@example("Fri, 31 Dec 9999 23:59:59 -2359")
@example("Mon, 01 Jan 0001 00:00:00 +2359")
@example("Mon, 01 Jan 99999 00:00:00")
@example("٣")
@example("1e9")
@example("0\x1f")
def test_whatever_stands_in_retry_after_is_a_wait(header):
    assert retry_after_seconds(header, 1e9) >= 0.0


def test_waits():
    assert retry_after_seconds(None, 0.0) == 0.0
    assert retry_after_seconds("7", 0.0) == 7.0
    assert retry_after_seconds("Thu, 01 Jan 1970 00:01:40 GMT", 90.0) == 10.0
    assert retry_after_seconds("Thu, 01 Jan 1970 00:01:40 -0000", 90.0) == 10.0
    assert retry_after_seconds("Thu, 01 Jan 1970 00:01:40 GMT", 200.0) == 0.0
    assert retry_after_seconds("-3", 0.0) == 0.0
