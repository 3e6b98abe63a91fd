"""Scores of the turns of a trajectory over HTTP, against the model without a server."""

import pytest

from longrm.types import Trajectory

CHAT = [
    {"role": "user", "content": "What is the code?"},
    {"role": "assistant", "content": "I look it up."},
    {"role": "user", "content": "row 1: blue"},
    {"role": "assistant", "content": "It is blue."},
]


@pytest.fixture(scope="module")
def truth(plain):
    steps = (tuple(CHAT[1:2]), tuple(CHAT[2:4]))
    (judged,) = plain.judge([Trajectory("t", "g", tuple(CHAT[:1]), steps).query()])
    assert abs(judged.scores[0] - judged.scores[1]) > 5e-3
    return list(judged.scores)


def test_own_format(client, truth):
    body = {"prompt": CHAT[:1], "responses": [CHAT[1:]], "steps": True}
    answer = client.post("/v1/scores", json=body).json()
    assert answer["scores"] == pytest.approx(truth, abs=5e-5)
    # Without `steps` the same body has one score, that of the whole.
    whole = client.post("/v1/scores", json={**body, "steps": False}).json()
    assert whole["scores"] == pytest.approx(truth[1:], abs=5e-5)
    # A prompt may have turns of the assistant, which are not scored.
    later = client.post(
        "/v1/scores", json={"prompt": CHAT[:2], "responses": [CHAT[2:]], "steps": True}
    ).json()
    assert later["scores"] == pytest.approx(truth[1:], abs=5e-5)


def test_token_classification_of_vllm(client, truth):
    body = {"model": "any", "messages": CHAT, "task": "token_classify"}
    (row,) = client.post("/pooling", json=body).json()["data"]
    assert [score for (score,) in row["data"]] == pytest.approx(truth, abs=5e-5)
    (whole,) = client.post("/pooling", json={**body, "task": "classify"}).json()["data"]
    assert whole["data"] == pytest.approx(truth[1:], abs=5e-5)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "Hi", "responses": ["text"], "steps": True},
        {"prompt": CHAT[:1], "responses": [CHAT[1:], CHAT[1:]], "steps": True},
        {"prompt": CHAT[:1], "responses": [CHAT[2:3]], "steps": True},
    ],
)
def test_bodies_without_steps_are_refused(client, body):
    assert client.post("/v1/scores", json=body).status_code in (400, 422)


def test_classification_needs_messages(client):
    assert client.post("/pooling", json={"input": "text", "task": "token_classify"}).status_code in (400, 422)
