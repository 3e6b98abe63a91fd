import threading
import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import Remote
from longrm.clients.transport import Endpoint, RetryableError
from longrm.errors import ConfigError, LongRMError, ModelError
from longrm.types import Outcome

from .conftest import Reply, Server, echo, requests
from .faults import FAULTS, HANGING, LIES, ODD, FaultyServer, right_answer, sends, serving

GIVEN_UP = {"429, never", "429, a far date"}  # they ask for a longer wait than is granted


async def no_sleep(seconds):
    pass


def client(url, **fields):
    fields = {"timeout": 30.0, "max_answer_bytes": 2_000_000, "retries": 1, "concurrency": 1} | fields
    return OpenAIClient(url, "tiny", Remote(**fields), sleep=no_sleep, jitter=lambda: 1.0, clock=lambda: 0.0)


@pytest.fixture(scope="module")
def faulty():
    with serving(FaultyServer(rate=1.0)) as server:
        yield server


def test_there_are_enough_kinds_of_fault():
    assert len(FAULTS) >= 50


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_tried_again_and_then_an_error_in_one_line(faulty, kind):
    faulty.forget(kinds={kind: FAULTS[kind]})
    started = time.monotonic()
    patience = 0.2 if kind in HANGING else 30.0
    (completion,) = client(faulty.url, timeout=patience).write(requests(1))
    assert completion.outcome is Outcome.ERROR
    assert completion.detail
    assert completion.detail.isprintable()
    assert len(completion.detail) < 400
    assert sum(faulty.asked.values()) == (1 if kind in GIVEN_UP else 2)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("kind", ODD)
def test_an_answer_is_one_however_it_comes(faulty, kind):
    faulty.forget(kinds={kind: ODD[kind]})
    answers = client(faulty.url).write(requests(3))
    assert all(answer.outcome is Outcome.ANSWERED for answer in answers)
    assert [answer.prompt_tokens for answer in answers] == [len(body) for body in faulty.asked]
    for answer, body in zip(answers, faulty.asked, strict=True):
        assert answer.text.encode() in right_answer(body).replace(b"\\n", b"\n")


def test_a_lie_is_not_seen_but_by_comparing(faulty):
    faulty.forget(kinds=LIES)
    (answer,) = client(faulty.url).write(requests(1))
    (body,) = faulty.asked
    assert answer.text.encode() not in right_answer(body).replace(b"\\n", b"\n")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("a byte at a time", "no answer within 0.2 seconds"),
        ("without end", "longer than 2,000,000 bytes (remote.max_answer_bytes)"),
        ("a bomb", "longer than 2,000,000 bytes (remote.max_answer_bytes)"),
        ("no gzip", "the server's answer is no gzip"),
        ("cut gzip", "breaks off within its gzip"),
        ("a bomb in a bomb", "encoded as 'gzip, gzip'"),
        ("two choices", "holds 2 choices"),
        ("one name, two values", "two things under 'choices'"),
        ("a page", "is not JSON"),
        ("nested", "is not JSON"),
        ("no content", "holds no message"),
    ],
)
def test_what_is_wrong_is_said(faulty, kind, words):
    faulty.forget(kinds={kind: FAULTS[kind]})
    assert (
        words
        in client(faulty.url, retries=0, timeout=0.2 if kind in HANGING else 30.0)
        .write(requests(1))[0]
        .detail
    )


def test_an_answer_may_be_as_large_as_the_limit_and_no_larger(server):
    size = len(b'{"choices": [{"message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]}')
    server.script = lambda seen, number: echo(seen)
    body = b'{"choices": [{"message": {"role": "assistant", "content": "%s"}, "finish_reason": "stop"}]}'
    for room, outcome in ((0, Outcome.ANSWERED), (1, Outcome.ERROR)):
        text = b"x" * (5000 - size + room)
        server.script = lambda seen, number, text=text: Reply(body % text)
        (answer,) = client(server.url, retries=0, max_answer_bytes=5000).write(requests(1))
        assert answer.outcome is outcome


@pytest.mark.parametrize("kind", ["without end", "a bomb", "a bomb in a bomb"])
def test_no_more_than_the_limit_is_held(faulty, kind):
    faulty.forget(kinds={kind: FAULTS[kind]})
    client(faulty.url, retries=0, max_answer_bytes=100_000).write(requests(1))  # what is made once
    tracemalloc.start()
    try:
        client(faulty.url, retries=0, max_answer_bytes=100_000).write(requests(1))
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 5_000_000


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda end: b"HTTP/1.1 200 OK\r\n" + end))
)
def test_whatever_a_server_sends_becomes_an_outcome_or_one_line(faulty, sent):
    faulty.forget(kinds={"noise": sends(lambda body: sent)})
    try:
        (answer,) = client(faulty.url, retries=0).write(requests(1))
        told = (answer.outcome, answer.detail)
    except LongRMError as error:
        told = (Outcome.ERROR, str(error))
    assert told[0] is Outcome.ERROR
    assert told[1].isprintable()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_so_that_the_key_stays_here(server, monkeypatch, status):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with serving(FaultyServer(rate=0.0)) as elsewhere:
        server.script = lambda seen, number: Reply(
            {}, status, {"Location": f"{elsewhere.url}/v1/chat/completions"}
        )
        with pytest.raises(ModelError, match=f"answered {status}"):
            client(server.url).write(requests(1))
        assert not elsewhere.asked


def test_each_request_has_a_connection_of_its_own(server: Server):
    server.script = lambda seen, number: echo(seen)
    answers = client(server.url).write(requests(5))
    assert len(answers) == len(server.seen) == 5
    assert len({seen.peer for seen in server.seen}) == 5


def test_more_requests_at_once_than_a_pool_of_connections_holds(server):
    together = threading.Barrier(120)

    def script(seen, number):
        together.wait(20)
        return echo(seen)

    server.script = script
    answers = client(server.url, concurrency=120, retries=0).write(requests(120))
    assert {answer.outcome for answer in answers} == {Outcome.ANSWERED}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTP_PROXY", "ftp://127.0.0.1"),
        ("ALL_PROXY", "socks5://127.0.0.1:1"),
        ("SSL_CERT_FILE", "/nowhere/at/all"),
        ("HTTP_PROXY", "http://127.0.0.1:99999"),
    ],
)
def test_an_environment_that_cannot_be_is_told_in_one_line(server, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises((ConfigError, ModelError), match="as the environment asks") as caught:
        client(server.url).write(requests(1))
    assert "\n" not in str(caught.value)


def test_so_many_retries_that_two_to_their_number_is_no_float(monkeypatch):
    async def refused(endpoint, http, body):
        raise RetryableError("no")

    monkeypatch.setattr(Endpoint, "post", refused)
    writer = client("http://127.0.0.1:1", retries=1030)
    assert writer.write(requests(1))[0].detail == "no"
    assert writer.requests == 1031
