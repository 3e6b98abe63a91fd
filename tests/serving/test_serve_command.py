"""`longrm serve` as a process of its own, and clients that speak to it over loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import openai
import pytest

import longrm

from .test_native_route import TOLERANCE

KEY = "a-key-of-length"


def begin(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "longrm", "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def served(names):
    server = begin("--model", names["scalar"], LONGRM_API_KEY=KEY)
    line = server.stdout.readline()
    assert line.startswith("Serving "), server.stderr.read()
    yield server, line.split(" at ")[1].split()[0]
    server.kill()
    server.communicate()


def test_httpx_and_openai_get_right_numbers(served, plain):
    address = served[1]
    expected = plain.score("w1 w2?", ["w3"])
    headers = {"Authorization": f"Bearer {KEY}"}
    sent = {"prompt": "w1 w2?", "responses": ["w3"]}
    answer = httpx.post(f"{address}/v1/scores", json=sent, headers=headers).json()
    assert answer["scores"] == pytest.approx(expected, abs=TOLERANCE)
    assert httpx.post(f"{address}/v1/scores", json=sent).status_code == 401
    assert httpx.get(f"{address}/health").status_code == 200
    text = "<|im_start|>user\nw1 w2?<|im_end|>\n<|im_start|>assistant\nw3<|im_end|>\n"
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY) as client:
        assert [model.id for model in client.models.list()] == ["scalar"]
        found = client.embeddings.create(model="any", input=text, encoding_format="float")
        assert found.data[0].embedding == pytest.approx(expected, abs=TOLERANCE)
        assert found.usage.total_tokens > 10
        with pytest.raises(openai.BadRequestError, match="not as it should be"):
            client.embeddings.create(model="any", input={"no": "text"})
    with_key = address.replace("http://", f"http://any:{KEY}@")
    assert httpx.post(f"{with_key}/v1/scores", json=sent).status_code == 200


def test_curl_as_the_documentation_has_it(served):
    body = '{"prompt": "Capital of France?", "responses": ["Paris.", "Rome."]}'
    done = subprocess.run(
        ["curl", "-s", f"{served[1]}/v1/scores", "-H", f"Authorization: Bearer {KEY}", "-d", body],
        capture_output=True,
        text=True,
    )
    assert len(json.loads(done.stdout)["scores"]) == 2


def test_clients_that_vanish_or_send_slowly_hold_nothing_up(served):
    address = served[1]
    host, port = address.removeprefix("http://").split(":")
    head = (
        f"POST /v1/scores HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 1000\r\n\r\n"
    )
    slow = socket.create_connection((host, int(port)))
    slow.sendall(head.encode() + b'{"prompt"')
    for _ in range(20):
        with socket.create_connection((host, int(port))) as gone:
            gone.sendall(head.encode())
    sent = {"prompt": "w1 w2?", "responses": ["w3"]}
    answer = httpx.post(f"{address}/v1/scores", json=sent, headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 200
    slow.close()


def test_what_is_in_work_is_answered_before_the_server_ends(names):
    server = begin("--model", names["scalar"])
    address = server.stdout.readline().split(" at ")[1].split()[0]
    answers = []
    prompt = " ".join(["w1"] * 1300)

    def ask():
        answers.append(
            httpx.post(f"{address}/v1/scores", json={"prompt": prompt, "responses": ["w2"]}, timeout=60)
        )

    asking = threading.Thread(target=ask)
    asking.start()
    deadline = time.monotonic() + 30
    while "longrm:num_requests_running 1.0" not in httpx.get(f"{address}/metrics").text:
        assert asking.is_alive()
        assert time.monotonic() < deadline
    server.send_signal(signal.SIGTERM)
    _, err = server.communicate(timeout=60)
    asking.join()
    assert (server.returncode, err) == (0, "")
    assert answers[0].status_code == 200
    assert "scores" in answers[0].json()


def test_a_client_that_tries_again_gets_right_numbers_across_a_crash():
    server = begin("--model", "baseline:longest")
    address = server.stdout.readline().split(" at ")[1].split()[0]
    port, answers, crash = address.rpartition(":")[2], [], threading.Event()

    def ask():
        while len(answers) < 30:
            sent = {"prompt": "w1 w2?", "responses": ["w" * len(answers) + "."]}
            try:
                answers.append((sent, httpx.post(f"{address}/v1/scores", json=sent)))
            except httpx.TransportError:
                threading.Event().wait(0.1)  # as clients do that try again
            if len(answers) == 10:
                crash.set()

    asking = threading.Thread(target=ask)
    asking.start()
    assert crash.wait(30)
    server.kill()
    server.communicate()
    again = begin("--model", "baseline:longest", "--port", port)
    asking.join(60)
    again.kill()
    again.communicate()
    assert len(answers) == 30
    model = longrm.load("baseline:longest")
    for sent, answer in answers:
        assert answer.json()["scores"] == model.score(**sent)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "baseline:longest", "--host", "0.0.0.0"], "say --without-key as well"),
        (
            ["--model", "baseline:longest", "--host", "203.0.113.7", "--without-key"],
            "cannot listen at 203.0.113.7",
        ),
        (["--model", "no/such/folder"], "no/such/folder"),
        (["--model", "baseline:longest", "--set", "limits.waitin=3"], "did you mean 'waiting'"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(arguments, said):
    server = begin(*arguments)
    out, err = server.communicate(timeout=60)
    assert server.returncode == 1
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1
