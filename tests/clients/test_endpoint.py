"""A faulty or hostile server costs one answer, and nothing else."""

import base64
import html
import json
import logging
import string
import time
import tracemalloc
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from longrm.clients.endpoint import MAX_ANSWER_BYTES, SHORT_KEY, redactor
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import Remote
from longrm.errors import LongRMError, ModelError
from longrm.types import Outcome

from .conftest import Reply, Server, requests, said
from .faults import FAULTS, HANGING, ODD, FaultyServer, right_answer, sends, serving

GIVEN_UP = {"429, no number", "429, never", "429, a far date"}  # they ask for a longer wait than is granted


def client(url, **fields):
    return OpenAIClient(url, "tiny", Remote(**{"timeout": 30.0, "retries": 1, "concurrency": 1} | fields))


@pytest.fixture(scope="module")
def faulty():
    with serving(FaultyServer(rate=1.0)) as server:
        yield server


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_retried_and_then_an_error_in_one_line(faulty, kind):
    faulty.forget(kinds={kind: FAULTS[kind]})
    started = time.monotonic()
    patience = 0.2 if kind in HANGING else 30.0
    (completion,) = client(faulty.url, timeout=patience).generate(requests(1))
    assert completion.outcome is Outcome.ERROR
    assert completion.detail
    assert completion.detail.isprintable()
    assert len(completion.detail) < 400
    assert sum(faulty.asked.values()) == (1 if kind in GIVEN_UP else 2)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_answer_is_an_answer(faulty, kind):
    faulty.forget(kinds={kind: ODD[kind]})
    answers = client(faulty.url).generate(requests(3))
    assert all(answer.outcome is Outcome.ANSWERED for answer in answers)
    assert [answer.prompt_tokens for answer in answers] == [len(body) for body in faulty.asked]
    for answer, body in zip(answers, faulty.asked, strict=True):
        assert answer.text.encode() in right_answer(body).replace(b"\\n", b"\n")


def test_an_answer_may_be_as_large_as_the_limit_and_no_larger(server):
    body = b'{"choices": [{"message": {"role": "assistant", "content": "%s"}, "finish_reason": "stop"}]}'
    size = len(body % b"")
    for room, outcome in ((0, Outcome.ANSWERED), (1, Outcome.ERROR)):
        text = b"x" * (MAX_ANSWER_BYTES - size + room)
        server.script = lambda seen, number, text=text: Reply(body % text)
        (answer,) = client(server.url, retries=0).generate(requests(1))
        assert answer.outcome is outcome


@pytest.mark.parametrize("kind", ["without end", "a bomb", "a bomb in a bomb"])
def test_no_more_than_the_limit_is_in_memory(faulty, kind):
    faulty.forget(kinds={kind: FAULTS[kind]})
    client(faulty.url, retries=0).generate(requests(1))  # allocates what stays
    tracemalloc.start()
    try:
        client(faulty.url, retries=0).generate(requests(1))
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 4 * MAX_ANSWER_BYTES


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda end: b"HTTP/1.1 200 OK\r\n" + end))
)
def test_whatever_a_server_sends_becomes_an_outcome_or_one_line(faulty, sent):
    faulty.forget(kinds={"noise": sends(lambda body: sent)})
    try:
        (answer,) = client(faulty.url, retries=0).generate(requests(1))
        outcome, message = answer.outcome, answer.detail
    except LongRMError as error:
        outcome, message = Outcome.ERROR, str(error)
    assert outcome is Outcome.ERROR
    assert message.isprintable()


@pytest.mark.parametrize("status", [301, 307])
def test_redirects_are_not_followed_so_that_the_key_stays_here(server, monkeypatch, status):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with serving(FaultyServer(rate=0.0)) as elsewhere:
        server.script = lambda seen, number: Reply(
            {}, status, {"Location": f"{elsewhere.url}/v1/chat/completions"}
        )
        with pytest.raises(ModelError, match=str(status)):
            client(server.url).generate(requests(1))
        assert not elsewhere.asked


def test_each_request_has_its_own_connection(server: Server):
    answers = client(server.url).generate(requests(5))
    assert len(answers) == len(server.seen) == 5
    assert len({seen.peer for seen in server.seen}) == 5


PRINTABLE = "".join(map(chr, range(33, 127)))
keys = st.text(PRINTABLE, min_size=1, max_size=60)
long_keys = st.text(PRINTABLE, min_size=SHORT_KEY, max_size=60)
texts = st.text(max_size=100)


def escaped_at_will(draw, key):
    """The key with each character in some form that JSON, Python, URLs or HTML allow."""
    forms = [
        lambda c: c,
        lambda c: f"\\u{ord(c):04x}",
        lambda c: f"\\u{ord(c):04X}",
        lambda c: f"\\\\u{ord(c):04x}",
        lambda c: f"\\x{ord(c):02x}",
        lambda c: f"%{ord(c):02X}",
        lambda c: f"%25{ord(c):02x}",
        lambda c: f"&#{ord(c)};",
        lambda c: f"&#x{ord(c):X};",
        lambda c: c if c.isalnum() else f"\\{c}",
        html.escape,
    ]
    return "".join(draw(st.sampled_from(forms))(character) for character in key)


@st.composite
def repeated_keys(draw):
    key = draw(long_keys)
    before, after = draw(texts), draw(texts)
    form = draw(
        st.sampled_from(
            [
                key,
                json.dumps(key)[1:-1],
                json.dumps(json.dumps(key))[3:-3],
                key.replace("/", "\\/"),
                quote(key, safe=""),
                quote(quote(key, safe=""), safe=""),
                html.escape(key),
                escaped_at_will(draw, key),
            ]
        )
    )
    return key, form, before + form + after


def undone(text):
    """Forms of a text that a reader of logs may come to."""
    yield text
    yield html.unescape(text)
    yield text.replace("\\", "")


@settings(max_examples=150)
@given(repeated_keys())
@example(("a/b/c/d/e", "a\\/b\\/c\\/d\\/e", "{a\\/b\\/c\\/d\\/e}"))
def test_no_form_of_a_key_is_shown(case):
    key, form, text = case
    shown = redactor(key)(text)
    assert key not in shown
    assert form not in shown
    assert not any(key in read for read in undone(shown))
    assert "***" in shown


@settings(max_examples=100)
@given(long_keys, st.binary(max_size=5), st.binary(max_size=5), st.booleans())
def test_no_base64_of_a_key_is_shown(key, before, after, url):
    encode = base64.urlsafe_b64encode if url else base64.b64encode
    shown = redactor(key)(f"Basic {encode(before + key.encode() + after).decode()}")
    assert "***" in shown
    rest = shown.removeprefix("Basic ").split("***")
    # What is left around it stands for the bytes before and after, and for a bit of the key at most.
    assert sum(map(len, rest)) <= 4 * (len(before) + len(after)) / 3 + 8


@pytest.mark.parametrize("key", ["A", "token", "sk-1234"])
def test_a_short_key_is_hidden_as_a_word_alone(key):
    hide = redactor(key)
    assert hide(f"no use for {key}, sorry") == "no use for ***, sorry"
    assert hide(f"x{key}x") == f"x{key}x"


def test_a_key_is_hidden_before_the_text_is_cut():
    key = "sk-" + "x" * 37
    for gap in range(12):
        shown = redactor(key)((" " * gap + "." + key) * 2000)
        assert "sk-" not in shown
        assert len(shown) <= 304
    long_key = (string.ascii_letters + string.digits + "-_./+=") * 30  # a signed token
    assert redactor(long_key)(f"{'x' * 290} {quote(long_key, safe='')} y") == f"{'x' * 290} *** y"


def test_control_characters_are_removed():
    assert redactor("")("one\x1b[2J\x07\r\ntwo \u202ethree\u2028four") == "one[2J two three four"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("kept")


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(repeated_keys(), st.sampled_from([200, 400, 413, 401, 429, 500, 301]), st.booleans())
def test_messages_logs_and_cache_do_not_contain_the_key(
    server, folder, caplog, monkeypatch, case, status, as_json
):
    key, form, text = case
    caplog.set_level(logging.DEBUG)
    caplog.clear()
    monkeypatch.setenv("OPENAI_API_KEY", key)
    body = {"error": {"message": text, "code": form}} if as_json else text.encode()
    server.script = lambda seen, number: Reply(body, status)
    cache = folder / "answers.sqlite"
    settings = Remote(cache=str(cache), retries=1, concurrency=1)

    client = OpenAIClient(server.url, "tiny", settings)
    try:
        (answer,) = client.generate(requests(1))
        shown = answer.detail
        assert answer.outcome is not Outcome.ANSWERED
    except LongRMError as error:
        shown = str(error)
    kept = b"".join(path.read_bytes() for path in folder.iterdir())
    for text in (shown, caplog.text):
        assert not any(key in read for read in undone(text))
    assert key.encode() not in kept
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("key", ["A", "content", "choices"])
def test_a_key_that_is_a_word_of_every_answer_changes_none(server, monkeypatch, key):
    text = f"{key}: I choose A, for its content. [[A]]"
    server.script = lambda seen, number: said(text)
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert OpenAIClient(server.url, "tiny", Remote()).generate(requests(1))[0].text == text


def test_the_outcome_is_read_before_the_key_is_hidden(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "maximum context length")
    server.script = lambda seen, number: Reply({"error": {"message": "the maximum context length is 8"}}, 400)
    (answer,) = OpenAIClient(server.url, "tiny", Remote()).generate(requests(1))
    assert (answer.outcome, answer.detail) == (Outcome.TOO_LONG, "the *** is 8")
