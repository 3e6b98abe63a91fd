"""`longrm serve` as a process: its start and end, idle and slow connections, and clients that go away."""

import json
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest

from tests.serving.test_longrm_scores import TOLERANCE

from .processes import KEY, ONE, serving, slow_server, start

HEAD = b"POST /v1/scores HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def connect(stack, address, sent=b""):
    host, port = address.removeprefix("http://").split(":")
    connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
    connection.sendall(sent)
    return connection


def seconds(value):
    return {"prompt": str(value), "responses": ["w2"]}


def raw(value):
    """A request of the slow server as bytes."""
    content = json.dumps(seconds(value)).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content


def test_clients_get_right_numbers_with_the_key(names, plain):
    expected = plain.score("w1 w2?", ["w3"])
    sent = {"prompt": "w1 w2?", "responses": ["w3"]}
    text = "<|im_start|>user\nw1 w2?<|im_end|>\n<|im_start|>assistant\nw3<|im_end|>\n"
    with serving(model=names["scalar"], LONGRM_API_KEY=KEY) as (_, address):
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = httpx.post(f"{address}/v1/scores", json=sent, headers=headers).json()
        assert answer["scores"] == pytest.approx(expected, abs=TOLERANCE)
        assert httpx.post(f"{address}/v1/scores", json=sent).status_code == 401
        with_key = address.replace("http://", f"http://any:{KEY}@")
        assert httpx.post(f"{with_key}/v1/scores", json=sent).status_code == 200
        with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY) as client:
            assert [model.id for model in client.models.list()] == ["scalar"]
            found = client.embeddings.create(model="any", input=text, encoding_format="float")
            assert found.data[0].embedding == pytest.approx(expected, abs=TOLERANCE)
            with pytest.raises(openai.BadRequestError):
                client.embeddings.create(model="any", input={"no": "text"})
        curl = ["curl", "-s", f"{address}/v1/scores", "-H", f"Authorization: Bearer {KEY}"]
        done = subprocess.run([*curl, "-d", json.dumps(ONE)], capture_output=True, text=True)
        assert len(json.loads(done.stdout)["scores"]) == 2
        head = HEAD + b"Authorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n" % KEY.encode()
        with ExitStack() as stack:
            connect(stack, address, head + b'{"prompt"')
            for _ in range(20):
                connect(stack, address, head).close()
            assert httpx.post(f"{address}/v1/scores", json=sent, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "baseline:longest", "--host", "0.0.0.0"], "--without-key"),
        (["--model", "baseline:longest", "--host", "203.0.113.7", "--without-key"], "203.0.113.7"),
        (["--model", "no/such/folder"], "no/such/folder"),
    ],
)
def test_a_server_that_cannot_start_fails_with_one_line(arguments, named):
    server = start(["-m", "longrm", "serve", "--port", "0", *arguments])
    out, err = server.communicate(timeout=60)
    assert (server.returncode != 0, out) == (True, "")
    assert named in err
    assert len(err.splitlines()) == 1


def test_requests_in_work_are_answered_before_the_server_ends():
    with slow_server() as (server, address), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{address}/v1/scores", json=seconds(0.5), timeout=60)
        assert server.stdout.readline().startswith("judged")
        server.send_signal(signal.SIGTERM)
        assert asked.result().json()["scores"] == [1.0]
        assert (server.wait(30), server.stderr.read()) == (0, "")


def test_requests_that_are_not_answered_within_the_drain_time_get_503():
    with (
        slow_server("DRAIN_SECONDS=1") as (server, address),
        ThreadPoolExecutor(4) as pool,
        ExitStack() as stack,
    ):
        asked = [
            pool.submit(httpx.post, f"{address}/v1/scores", json=seconds(value), timeout=60)
            for value in (9, 8)
        ]
        assert server.stdout.readline().startswith("judged")
        arriving = connect(stack, address, raw(7)[:-1])
        time.sleep(0.2)
        begun = time.monotonic()
        server.send_signal(signal.SIGTERM)
        for one in asked:
            assert one.result().status_code == 503
            assert one.result().json()["error"]["type"] == "stopping"
        assert b" 503 " in arriving.recv(100)
        assert time.monotonic() - begun < 4
        assert (server.wait(30), server.stderr.read()) == (0, "")


def test_a_server_without_clients_ends_at_once_whatever_its_model_does():
    with slow_server() as (server, address), ExitStack() as stack:
        gone = connect(stack, address, raw(50))
        assert server.stdout.readline().startswith("judged")
        gone.close()
        time.sleep(1)  # until it is noticed
        begun = time.monotonic()
        server.send_signal(signal.SIGTERM)
        assert (server.wait(60), server.stderr.read()) == (0, "")
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize("value", [0, 1.2])
def test_a_client_that_closed_its_sending_half_gets_its_answer(value):
    with slow_server() as (_, address), ExitStack() as stack:
        connection = connect(stack, address, raw(value))
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b"HTTP/1.1 200 OK" in answer
    assert b'"scores":[1.0]' in answer


def test_the_request_of_a_client_that_went_away_is_not_read():
    with slow_server() as (server, address), ExitStack() as stack:
        connect(stack, address, raw(2.5))
        assert server.stdout.readline() == "judged 2.5\n"
        connect(stack, address, raw(0.125)).close()
        assert b" 200 " in connect(stack, address, raw(0.25)).recv(100)
        assert server.stdout.readline() == "judged 0.25\n", "and not 0.125"


def test_idle_connections_keep_no_client_out():
    with serving(files=600) as (server, address):  # room for 152 connections
        with ExitStack() as stack:
            for _ in range(250):
                connect(stack, address)
            begun = time.monotonic()
            assert httpx.get(f"{address}/health", timeout=10).status_code == 200
            assert httpx.post(f"{address}/v1/scores", json=ONE, timeout=10).status_code == 200
            assert time.monotonic() - begun < 5
        server.terminate()
        _, err = server.communicate(timeout=60)
    assert len(err.splitlines()) <= 5


def test_a_request_that_does_not_arrive_in_time_is_dropped():
    with slow_server("RECEIVE_SECONDS=1") as (_, address), ExitStack() as stack:
        slow = [connect(stack, address, HEAD) for _ in range(100)]
        slow += [connect(stack, address, HEAD + b"Content-Length: 9\r\n\r\n{") for _ in range(100)]
        for connection in slow:
            try:
                assert connection.recv(1) == b""
            except ConnectionResetError:
                continue
        assert httpx.post(f"{address}/v1/scores", json=seconds(0)).status_code == 200


def test_bodies_held_one_byte_short_keep_no_client_out():
    body = json.dumps(seconds(0)).encode().ljust(1000)
    head = HEAD + b"Content-Length: 1000\r\n\r\n"
    with slow_server("MAX_WAITING_BYTES=4000") as (_, address), ExitStack() as stack:
        held = [connect(stack, address, head + body[:-1]) for _ in range(8)]
        assert b" 429 " in held[0].recv(100)
        for _ in range(3):
            assert httpx.post(f"{address}/v1/scores", json=seconds(0)).status_code == 200
        held[-1].sendall(body[-1:])
        assert b" 200 " in held[-1].recv(100)


def test_a_large_wrong_body_delays_no_other_request():
    with serving() as (server, address):
        status = Path(f"/proc/{server.pid}/status")
        body = b'{"prompt":"x","responses":[' + b"1," * 10**6 + b"1]}"
        before, slowest = peak_memory(status), 0.0
        with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=address) as client:
            refused = pool.submit(httpx.post, f"{address}/v1/scores", content=body, timeout=60)
            for _ in range(100):
                begun = time.monotonic()
                assert client.get("/health").status_code == 200
                slowest = max(slowest, time.monotonic() - begun)
            assert refused.result().status_code == 400
        assert slowest < 2
        assert peak_memory(status) - before < 2**28


def peak_memory(status):
    """The most memory that a process has held, in bytes."""
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
