"""A faulty or hostile server costs one answer, and nothing else."""

import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longrm.clients.endpoint import MAX_ANSWER_BYTES
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import Remote
from longrm.errors import LongRMError, ModelError
from longrm.types import Outcome

from .conftest import Reply, Server, requests
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
