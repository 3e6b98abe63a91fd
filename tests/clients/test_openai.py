import asyncio
import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jsonschema
import pytest

from longrm.clients import endpoint
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import Remote
from longrm.errors import ModelError, RunError
from longrm.types import Outcome

from .conftest import Reply, echo, requests, said

KEY = "sk-very-secret"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def client(server, url=None, **settings):
    return OpenAIClient(url or server.url, "tiny", Remote(**settings))


def failing(times, reply):
    """Sends `reply` that many times, and echoes after that."""
    return lambda seen, number: reply if number <= times else echo(seen)


def test_requests_follow_the_protocol_and_answers_keep_their_order(server):
    asking, shares = client(server, extra={"top_p": 0.5}), []
    asking.on_progress = shares.append
    answers = asking.generate(requests(20))
    assert shares == [done / 20 for done in range(1, 21)]
    assert [answer.text for answer in answers] == [f"echo of question {index}" for index in range(20)]
    assert {(a.outcome, a.prompt_tokens, a.completion_tokens) for a in answers} == {(Outcome.ANSWERED, 10, 5)}
    first = next(seen for seen in server.seen if seen.text == "question 0")
    assert first.path == "/v1/chat/completions"
    assert first.body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "question 0"}],
        "max_tokens": 16,
        "temperature": 0.0,
        "stream": False,
        "top_p": 0.5,
    }


def test_headers_have_the_key_and_nothing_about_this_machine(server, monkeypatch):
    monkeypatch.setenv("OPENAI_ORG_ID", "an-organization")
    client(server).generate(requests(1))
    monkeypatch.delenv("OPENAI_API_KEY")
    client(server).generate(requests(1))
    with_key, without = (
        {name.lower(): value for name, value in seen.headers.items()} for seen in server.seen
    )
    assert with_key.pop("authorization") == f"Bearer {KEY}"
    assert (
        with_key.keys()
        == without.keys()
        == {"host", "accept", "accept-encoding", "content-type", "content-length"}
    )


def test_openai_and_azure_get_the_new_name_of_max_tokens():
    for url, name in [
        ("https://api.openai.com", "max_completion_tokens"),
        ("https://mine.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("https://api.openai.com.example.org", "max_tokens"),
    ]:
        assert name in client(None, url=url)._body(requests(1)[0])


@pytest.mark.parametrize("concurrency", [1, 3, 120])  # a default connection pool has 100
def test_concurrency_is_reached_and_never_exceeded(server, concurrency):
    under_way, most = 0, 0
    together = threading.Barrier(concurrency)  # releases requests in full groups only
    overfull = threading.Event()

    def script(seen, number):
        nonlocal under_way, most
        with server.lock:
            under_way += 1
            most = max(most, under_way)
            if most > concurrency:
                overfull.set()
        together.wait(timeout=10)
        overfull.wait(timeout=0.05)  # leaves time for one too many to arrive
        with server.lock:
            under_way -= 1
        return echo(seen)

    server.script = script
    answers = client(server, concurrency=concurrency).generate(requests(4 * concurrency))
    assert {answer.outcome for answer in answers} == {Outcome.ANSWERED}
    assert most == concurrency


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_transient_failures_are_retried_with_growing_pauses(server, naps, status):
    server.script = failing(3, Reply({"error": {"message": "busy"}}, status))
    (answer,) = client(server).generate(requests(1))
    assert answer.text == "echo of question 0"
    assert len(naps) == 3
    assert all(0.75 * most <= nap <= most for nap, most in zip(naps, (0.5, 1.0, 2.0), strict=True))


def test_retry_after_is_honored_unless_it_is_too_long(server, naps):
    server.script = failing(1, Reply({}, 429, {"Retry-After": "30"}))
    client(server).generate(requests(1))
    assert naps == [30.0]
    server.script = lambda seen, number: Reply({"error": "tomorrow"}, 429, {"Retry-After": "86400"})
    (answer,) = client(server).generate(requests(1))
    assert answer.outcome is Outcome.ERROR
    assert naps == [30.0]


def test_retries_are_limited_and_counted(server):
    server.script = lambda seen, number: Reply({"error": {"message": "broken"}}, 500)
    asking = client(server, retries=2)
    (answer,) = asking.generate(requests(1))
    assert answer.outcome is Outcome.ERROR
    assert answer.detail == "the server answered 500: broken"
    assert len(server.seen) == asking.endpoint.requests == 3


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply({"error": {"message": f"no use for {KEY}"}}, 401), ["401", "OPENAI_API_KEY", "***"]),
        (Reply({"error": {"message": "no"}}, 404), ["404", "/v1/chat/completions", "'tiny'"]),
        (Reply({}, 301), ["301"]),
        (Reply({"error": {"message": "no", "code": "insufficient_quota"}}, 429), ["429", "account"]),
    ],
)
def test_what_fails_for_every_request_ends_the_run_at_once(server, reply, words):
    server.script = lambda seen, number: reply
    with pytest.raises(ModelError) as caught:
        client(server, concurrency=1).generate(requests(5))
    message = str(caught.value)
    assert all(word in message for word in words)
    assert KEY not in message
    assert len(server.seen) == 1


def test_a_rejected_request_concerns_no_other(server):
    def script(seen, number):
        if seen.text == "question 1":
            return Reply({"error": {"message": f"bad seed for {KEY}"}}, 400)
        return echo(seen)

    server.script = script
    answers = client(server).generate(requests(3))
    assert [answer.outcome for answer in answers] == [Outcome.ANSWERED, Outcome.ERROR, Outcome.ANSWERED]
    assert answers[1].detail == "the server answered 400: bad seed for ***"
    assert len(server.seen) == 3


def test_a_server_that_was_never_there_is_one_error_at_once(closed_port, naps):
    with pytest.raises(ModelError, match=f"http://127.0.0.1:{closed_port}/v1/chat"):
        client(None, url=f"http://127.0.0.1:{closed_port}").generate(requests(20))
    assert naps == []


def test_a_server_that_dies_midway_ends_the_run_and_the_answers_are_kept(server, closed_port, tmp_path):
    cache = str(tmp_path / "answers.sqlite")
    asked = requests(5)
    writer = client(server, cache=cache, concurrency=1, retries=2)
    writer.generate(asked[:3])
    url, writer.endpoint.url = writer.endpoint.url, f"http://127.0.0.1:{closed_port}/v1/chat/completions"
    with pytest.raises(RunError, match=str(closed_port)):
        writer.generate(asked[3:])
    writer.endpoint.url = url
    assert [answer.text for answer in writer.generate(asked)] == [
        f"echo of question {index}" for index in range(5)
    ]
    assert len(server.seen) == 5


@pytest.fixture
def health(monkeypatch):
    """Has the health of a silent server requested every 50 ms."""
    monkeypatch.setattr(endpoint, "_HEALTH_INTERVAL", 0.05)


@pytest.mark.usefixtures("health")
def test_a_server_that_leaves_requests_hanging_and_is_gone_ends_the_run(naps):
    listener = socket.create_server(("127.0.0.1", 0))
    port, begun, open_connections = listener.getsockname()[1], time.monotonic(), []

    def stop_after_two():
        while len(open_connections) < 2:
            open_connections.append(listener.accept()[0])
        listener.close()

    stopping = threading.Thread(target=stop_after_two)
    stopping.start()
    with pytest.raises(RunError, match=f"lost http://127.0.0.1:{port}/"):
        client(None, url=f"http://127.0.0.1:{port}", concurrency=2, timeout=600.0).generate(requests(5))
    stopping.join()
    for connection in open_connections:
        connection.close()
    assert len(naps) >= 5, "as after any lost connection"
    assert time.monotonic() - begun < 20


@pytest.mark.usefixtures("health")
@pytest.mark.parametrize(
    ("first", "status", "gone"),
    [(200, 200, False), (404, 429, False), (200, 502, True), (404, 503, True), (503, 503, False)],
)
def test_a_slow_server_is_waited_for_unless_its_health_gets_bad(server, first, status, gone):
    leaving, statuses = threading.Event(), iter([first])

    def script(seen, number):
        if seen.path == "/health":
            return Reply({}, next(statuses, status))
        leaving.wait(1.0)
        return echo(seen)

    server.script = script
    asking = client(server, retries=0)
    (answer,) = asking.generate(requests(1))
    leaving.set()
    assert answer.outcome is (Outcome.ERROR if gone else Outcome.ANSWERED)
    assert (f"/health answers {status}" in answer.detail) is gone
    asked = [seen for seen in server.seen if seen.path == "/health"]
    assert len(asked) >= 3
    assert not any("authorization" in map(str.lower, seen.headers) for seen in asked), "it needs no key"
    assert asking.endpoint.requests == 1, "it is not of the budget"


def test_the_budget_of_requests_counts_retries_and_is_exact(server, tmp_path):
    cache = str(tmp_path / "answers.sqlite")
    server.script = failing(1, Reply({}, 500))
    with pytest.raises(RunError, match=r"4 requests.*answers\.sqlite"):
        client(server, cache=cache, concurrency=2, max_requests=4).generate(requests(6))
    assert len(server.seen) == 4
    again = client(server, cache=cache, concurrency=2, max_requests=4).generate(requests(6))
    assert [answer.text for answer in again] == [f"echo of question {index}" for index in range(6)]
    assert len(server.seen) == 7
    assert len(client(server, max_requests=6).generate(requests(6))) == 6, "just enough is enough"


def test_the_budget_of_tokens_counts_what_is_read_and_generated(server):
    with pytest.raises(RunError, match="3 requests"):
        client(server, concurrency=1, max_total_tokens=31).generate(requests(6))
    assert len(server.seen) == 3


def test_write_works_while_an_event_loop_is_running(server):
    async def notebook():
        return client(server).generate(requests(2))

    assert [answer.text for answer in asyncio.run(notebook())] == ["echo of question 0", "echo of question 1"]


@pytest.fixture
def interruptible():
    """A shell starts background jobs with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_leaves_nothing_behind(server):
    arrived, done = threading.Event(), threading.Event()

    def script(seen, number):
        arrived.set()
        done.wait(10)
        return echo(seen)

    server.script = script
    main = threading.main_thread().ident

    def interrupt():
        arrived.wait(10)
        signal.pthread_kill(main, signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        client(server, concurrency=3).generate(requests(9))
    other.join()
    done.set()
    assert len(server.seen) <= 3


def test_an_interrupt_that_another_thread_receives_works_too():
    """The system may deliver a signal to any thread; the thread that waits for the answers is not woken by it."""
    patience, before = 10, set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        server.settimeout(patience)
        waiting = client(None, url=f"http://127.0.0.1:{server.getsockname()[1]}", retries=0)

        def interrupt() -> bool:
            """Whether the client has left before the patience was over."""
            asked, _ = server.accept()
            with asked:
                asked.settimeout(patience)
                new = set(threading.enumerate()) - before
                (loop,) = (thread for thread in new if thread.name.startswith("asyncio-portal"))
                signal.pthread_kill(loop.ident, signal.SIGINT)
                try:
                    while asked.recv(65536):
                        pass
                except TimeoutError:
                    return False
                return True

        left = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            waiting.generate(requests(1))
        assert left.result()


def test_an_answer_under_a_schema_reads_as_plain_text(server):
    answer = json.dumps({"analysis": "It is in line two.", "verdict": "[[7]]"})
    server.script = lambda seen, number: said(answer)
    request = replace(requests(1)[0], verdict=r"\[\[([0-9]|10)\]\]")
    assert client(server, json_schema=True).generate([request])[0].text == "It is in line two.\n\n[[7]]"
    schema = server.seen[0].body["response_format"]["json_schema"]["schema"]
    jsonschema.validate(json.loads(answer), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"analysis": "It is.", "verdict": "[[11]]"}, schema)
    assert list(schema["properties"]) == ["analysis", "verdict"], "in the order in which they are generated"

    client(server).generate([request])
    client(server, json_schema=True).generate(requests(1))
    assert all("response_format" not in seen.body for seen in server.seen[1:])


@pytest.mark.parametrize(
    ("finish", "message", "outcome"),
    [
        ("stop", {}, Outcome.ANSWERED),
        (None, {}, Outcome.ANSWERED),
        ("length", {}, Outcome.TRUNCATED),
        ("content_filter", {}, Outcome.REFUSED),
        ("stop", {"refusal": "I will\nnot"}, Outcome.REFUSED),
        ("stop", {"refusal": None, "reasoning": None}, Outcome.ANSWERED),
        ("error", {}, Outcome.ERROR),
    ],
)
def test_the_outcome_follows_from_how_the_answer_ended(server, finish, message, outcome):
    server.script = lambda seen, number: said("text", finish, **message)
    (answer,) = client(server, retries=0).generate(requests(1))
    assert answer.outcome is outcome
    assert (answer.detail == "") is (outcome is Outcome.ANSWERED)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thinking_is_separate(server, field):
    server.script = lambda seen, number: said("[[A]]", **{field: "first B, then"})
    (answer,) = client(server).generate(requests(1))
    assert (answer.text, answer.thinking) == ("[[A]]", "first B, then")


@pytest.mark.parametrize(
    ("body", "status", "outcome"),
    [
        ({"message": "This model's maximum context length is 8192 tokens."}, 400, Outcome.TOO_LONG),
        ({"message": "the request exceeds the available context size"}, 400, Outcome.TOO_LONG),
        ({"message": "`inputs` must have less than 100 tokens"}, 400, Outcome.TOO_LONG),
        ({"message": "prompt is too long: 210000 tokens > 200000 maximum"}, 400, Outcome.TOO_LONG),
        ({"message": "The input token count (1200000) exceeds the maximum"}, 400, Outcome.TOO_LONG),
        ({"message": "no", "code": "context_length_exceeded"}, 400, Outcome.TOO_LONG),
        ({}, 413, Outcome.TOO_LONG),
        ({"message": "The response was filtered by the content management policy"}, 400, Outcome.REFUSED),
        ({"message": "max_tokens is too large: 100000. At most 16384"}, 400, Outcome.ERROR),
        ({"message": "x" * 300 + " my prompt is about the maximum context length"}, 400, Outcome.ERROR),
    ],
)
def test_the_outcome_of_a_rejection_is_read_from_the_message(server, body, status, outcome):
    server.script = lambda seen, number: Reply({"error": body}, status)
    assert client(server).generate(requests(1))[0].outcome is outcome
