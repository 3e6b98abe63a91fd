"""The plug-in for vLLM, with a stub of its engine, with vLLM's own plug-in loader, and in a server of vLLM.

`LONGRM_VLLM_SOURCES` names a folder into which a wheel of vLLM was unpacked; nothing of it has to be installed.
`LONGRM_VLLM_VENV` names a virtual environment with vLLM, for a CPU or a GPU, and the dependencies of longrm.
"""

import asyncio
import importlib.util
import logging
import math
import os
import socket
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace

import httpx
import pytest
import torch
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.testclient import TestClient

import longrm
from longrm.errors import ModelError
from tests.reward_models.tiny_models import make_scorer

from . import vllm_stand_in

PLUGIN = Path(__file__).parents[2] / "plugins/longrm-vllm"
SOURCES = os.environ.get("LONGRM_VLLM_SOURCES", "")
VENV = os.environ.get("LONGRM_VLLM_VENV", "")
BODY = {"prompt": "Who holds bucket?", "responses": ["Corimo holds bucket.", "Nobody.", "bucket"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(make_scorer(tmp_path_factory.mktemp("served") / "tiny"))


@pytest.fixture
def plugin(monkeypatch):
    vllm_stand_in.installed(monkeypatch)
    spec = importlib.util.spec_from_file_location("longrm_vllm", PLUGIN / "longrm_vllm.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "longrm_vllm", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def serve(plugin, folder):
    """Starts the plug-in as vLLM does, and returns its engine and a client."""

    def begin(**engine):
        app, one = FastAPI(), plugin.ScoresPlugin()
        one.attach_router(app)
        engine = vllm_stand_in.Engine(folder, **engine)
        args = SimpleNamespace(model=folder, served_model_name=["tiny"], chat_template=None)
        asyncio.run(one.init_state(engine, app.state, args))
        return engine, TestClient(app, raise_server_exceptions=False)

    return begin


def test_scores_are_those_of_longrm(serve, folder):
    engine, client = serve()
    body = {**BODY, "prompt": " ".join([BODY["prompt"]] * 8)}
    answer = client.post("/v1/scores", json=body).json()
    expected = longrm.load(folder).score(body["prompt"], body["responses"])
    assert answer["scores"] == pytest.approx(expected, abs=1e-5)
    assert answer["order"] == sorted(range(3), key=lambda index: -expected[index])
    assert max(expected) - min(expected) > 1e-3
    assert answer["model"] == "tiny"
    ids = [ids for ids, _, _ in engine.asked]
    prompt = answer["usage"]["prompt_tokens"]
    assert len({one[:prompt] for one in ids}) == 1
    assert answer["usage"]["total_tokens"] == prompt + sum(len(one) - prompt for one in ids)
    assert answer["usage"]["cached_tokens"] == 0, "the first of them found nothing"
    assert client.post("/v1/scores", json=body).json()["usage"]["cached_tokens"] == 16 * (prompt // 16) > 0
    assert len({request for _, _, request in engine.asked}) == 6
    assert {(params.task, params.use_activation) for _, params, _ in engine.asked} == {("classify", False)}


def test_cached_tokens_are_tokens_of_the_prompt(serve):
    _, client = serve()
    long = {**BODY, "responses": ["Corimo holds bucket. " * 8]}
    first, second = (client.post("/v1/scores", json=long).json()["usage"] for _ in range(2))
    assert first["total_tokens"] > first["prompt_tokens"] + 16
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, first["prompt_tokens"])


def test_messages_and_lists_are_taken(serve):
    _, client = serve()
    alone = client.post("/v1/scores", json=BODY).json()["scores"]
    messages = {
        "prompt": [{"role": "user", "content": BODY["prompt"]}],
        "responses": [[{"role": "assistant", "content": text}] for text in BODY["responses"]],
    }
    answers = client.post("/v1/scores", json=[messages, BODY]).json()
    assert [answer["scores"] for answer in answers] == [alone, alone]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({**BODY, "responses": []}, 422, "at least 1"),
        ({**BODY, "extra": 1}, 422, "extra"),
        ({**BODY, "cut": "middle", "context": "Who"}, 400, "cut is not supported"),
        ({**BODY, "prompt": "bucket " * 700}, 400, "the limit of 600"),
        ({**BODY, "prompt": [{"role": "nobody", "content": "x"}], "responses": [[]]}, 400, ""),
    ],
)
def test_invalid_requests_are_refused(serve, body, status, message):
    engine, client = serve()
    reply = client.post("/v1/scores", json=body)
    assert (reply.status_code, message in reply.text) == (status, True), reply.text
    assert not engine.asked


def test_a_score_that_is_not_finite_is_null(serve):
    engine, client = serve()
    engine.change = lambda logits: torch.tensor([math.nan]) if len(engine.asked) == 2 else logits
    answer = client.post("/v1/scores", json=BODY).json()
    assert sum(score is None for score in answer["scores"]) == 1
    assert len(answer["order"]) == 2
    assert answer["error"]["type"] == "unscored"


def test_a_model_of_two_labels_is_an_error(serve):
    _, client = serve(change=lambda logits: torch.cat([logits, logits]))
    reply = client.post("/v1/scores", json=BODY)
    assert (reply.status_code, "2 labels" in reply.text) == (500, True)


def test_an_error_of_the_engine_is_raised(serve):
    class EngineError(Exception):
        pass

    _, client = serve(error=SimpleNamespace(to_exception=lambda: EngineError("late")))
    client.app.add_exception_handler(EngineError, lambda request, error: Response(status_code=503))
    assert client.post("/v1/scores", json=BODY).status_code == 503


def test_a_client_that_goes_away_has_its_requests_cancelled(plugin, folder):
    cancelled, begun = [], asyncio.Event()

    async def wait():
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def receive():
        await begun.wait()
        return {"type": "http.disconnect"}

    async def scenario():
        app = FastAPI()
        args = SimpleNamespace(model=folder, served_model_name=None, chat_template=None)
        await plugin.ScoresPlugin().init_state(vllm_stand_in.Engine(folder, wait=wait), app.state, args)
        request = SimpleNamespace(app=app, receive=receive)
        body = plugin.ScoreBody.model_validate(BODY)
        response = await asyncio.wait_for(plugin._scores(body, request), 30)
        await asyncio.sleep(0)
        return response

    assert asyncio.run(scenario()).status_code == 499
    assert len(cancelled) == 3


def test_a_chat_template_option_is_refused(plugin, folder):
    args = SimpleNamespace(model=folder, served_model_name=None, chat_template="x.jinja")
    with pytest.raises(ModelError, match="--chat-template"):
        asyncio.run(plugin.ScoresPlugin().init_state(vllm_stand_in.Engine(folder), SimpleNamespace(), args))


def test_the_package_names_the_plugin(plugin):
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    (named,) = project["entry-points"]["vllm.endpoint_plugins"].items()
    assert named == ("longrm", "longrm_vllm:ScoresPlugin")
    assert "has not been run on a GPU" in (PLUGIN / "README.md").read_text()


@pytest.mark.skipif(not SOURCES, reason="needs vLLM's sources: LONGRM_VLLM_SOURCES")
def test_the_loader_of_vllm_takes_the_plugin(plugin, folder, monkeypatch):
    """`vllm.plugins` needs only a logger and the name of a class of vLLM."""
    package, logger, protocol = (ModuleType(name) for name in ("vllm", "vllm.logger", "vllm.engine.protocol"))
    package.__path__ = [f"{SOURCES}/vllm"]
    logger.init_logger = logging.getLogger
    protocol.EngineClient = object
    for module in (package, logger, protocol):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "vllm.engine", ModuleType("vllm.engine"))
    monkeypatch.setenv("VLLM_PLUGINS", "longrm")
    point = EntryPoint("longrm", "longrm_vllm:ScoresPlugin", "vllm.endpoint_plugins")
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [point] if "endpoint" in group else []
    )
    before = set(sys.modules)
    try:
        from vllm.plugins.endpoint_plugins import interface

        app = FastAPI()
        interface.attach_endpoint_plugins(app, ("embed",))
        assert not app.state.endpoint_plugins, "the model does not classify"
        app.add_api_route("/v1/scores", lambda: None, methods=["POST"])
        interface.attach_endpoint_plugins(app, ("classify", "token_classify"))
        (loaded,) = app.state.endpoint_plugins
        assert isinstance(loaded, interface.EndpointPlugin)
        args = SimpleNamespace(model=folder, served_model_name=None, chat_template=None)
        asyncio.run(interface.init_endpoint_plugins_state(vllm_stand_in.Engine(folder), app.state, args))
        own = [one for one in app.routes if isinstance(one, APIRoute) and one.path == "/v1/scores"]
        assert len(own) == 1, "its route takes the place of an earlier one"
        assert len(TestClient(app).post("/v1/scores", json=BODY).json()["scores"]) == 3
    finally:
        for name in set(sys.modules) - before:
            if name.startswith("vllm"):
                del sys.modules[name]


@pytest.mark.full
@pytest.mark.skipif(not VENV, reason="needs an environment with vLLM: LONGRM_VLLM_VENV")
def test_scores_of_a_server_of_vllm(folder, tmp_path):
    points = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = tmp_path / "longrm_vllm-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: longrm-vllm\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in own.items()) for group, own in points.items()
        )
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    options = ["--runner", "pooling", "--convert", "classify", "--dtype", "float32", "--enforce-eager"]
    server = subprocess.Popen(
        [f"{VENV}/bin/vllm", "serve", folder, *options, "--host", "127.0.0.1", "--port", str(port)],
        env={
            **os.environ,
            "PATH": f"{VENV}/bin:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(
                [str(tmp_path), str(PLUGIN), str(Path(longrm.__file__).parents[1])]
            ),
            "VLLM_PLUGINS": "longrm",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        },
        cwd=tmp_path,  # not the repository, whose folders would be packages
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            for _ in range(600):
                assert server.poll() is None
                with suppress(httpx.TransportError):
                    if client.get("/health").status_code == 200:
                        break
                time.sleep(0.5)
            body = {**BODY, "prompt": " ".join([BODY["prompt"]] * 80)}
            expected = longrm.load(folder).score(body["prompt"], body["responses"])
            cached = []
            for _ in range(2):
                answer = client.post("/v1/scores", json=body).raise_for_status().json()
                assert answer["scores"] == pytest.approx(expected, abs=1e-4)
                cached.append(answer["usage"]["cached_tokens"])
            assert max(expected) - min(expected) > 1e-2, "scores of other responses would not be noticed"
            assert cached[1] > 0.5 * answer["usage"]["prompt_tokens"]
            refused = client.post("/v1/scores", json={**body, "cut": "middle", "context": "Who"})
            assert refused.status_code == 400
    finally:
        server.terminate()
        server.wait()
