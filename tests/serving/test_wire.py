"""Tools of a prompt, as clients send them, reach the chat template."""

import pytest
from starlette.testclient import TestClient

import longrm
from longrm.serving.app import build_app
from longrm.serving.settings import ServeSettings
from tests.data.trajectories import ANSWERED, HERMES, PLAIN, PROMPT, TOOLS
from tests.serving.test_longrm_scores import TOLERANCE, ask

from ..reward_models.tiny_models import bytes_tokenizer, make_scorer

BODY = {"prompt": [*PROMPT], "responses": [[*ANSWERED], [*PLAIN]]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model") / "scalar"
    return str(make_scorer(place, positions=4096, tokenizer=bytes_tokenizer(HERMES)))


@pytest.fixture(scope="module")
def server(folder):
    app = build_app(ServeSettings(model=folder), lambda: longrm.load(folder))
    with TestClient(app, "http://127.0.0.1") as client:
        yield client


@pytest.fixture(scope="module")
def scores(folder):
    model = longrm.load(folder)
    found, without = (
        model.score(PROMPT, [ANSWERED, PLAIN], tools=TOOLS),
        model.score(PROMPT, [ANSWERED, PLAIN]),
    )
    assert abs(found[0] - without[0]) > 100 * TOLERANCE
    return found


@pytest.mark.parametrize(
    "tools", [[*TOOLS], [tool["function"] for tool in TOOLS]], ids=["tools", "functions"]
)
def test_tools_change_scores(server, scores, tools):
    assert ask(server, BODY | {"tools": tools})["scores"] == pytest.approx(scores, abs=TOLERANCE)
    assert ask(server, BODY)["scores"] != pytest.approx(scores, abs=TOLERANCE)


def test_vllm_clients_send_tools_with_messages(server, scores):
    body = {"messages": [*PROMPT, *ANSWERED], "tools": [*TOOLS], "use_activation": False}
    answer = ask(server, body, "/classify")
    assert answer["data"][0]["probs"] == pytest.approx(scores[:1], abs=TOLERANCE)


@pytest.mark.parametrize(
    "body",
    [
        BODY | {"tools": [{"secret": 1}]},
        BODY | {"responses": [[{"role": "assistant", "content": [{"type": "image_url", "text": "secret"}]}]]},
        BODY | {"responses": [[{"role": "assistant", "tool_calls": [{"function": "secret"}]}]]},
        {"prompt": "<|im_start|>user\nHi", "responses": ["a"], "tools": [*TOOLS]},
    ],
)
def test_malformed_tools_are_refused(server, body):
    response = server.post("/v1/scores", json=body)
    assert response.status_code == 400
    assert "secret" not in response.text
