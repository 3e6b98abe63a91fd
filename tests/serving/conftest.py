"""Tiny models of every kind, and servers of them in this process."""

from contextlib import ExitStack

import pytest
from starlette.testclient import TestClient

import longrm
from longrm.serving.app import build_app
from longrm.serving.settings import ServeSettings

from ..reward_models.tiny_models import bytes_tokenizer, make_model, make_scorer


@pytest.fixture(scope="session")
def names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    make_scorer(folder / "scalar", positions=4096, tokenizer=bytes_tokenizer())
    make_model(folder / "writer")
    return {
        "scalar": str(folder / "scalar"),
        "likelihood": f"likelihood:{folder}/writer",
        "tokens": f"tokens:{folder}/writer",
        "baseline": "baseline:longest",
    }


@pytest.fixture(scope="session")
def start(names):
    """Serves a kind of model, with settings of its own."""
    with ExitStack() as servers:

        def begin(kind="scalar", judge=None, model_args=None, **settings):
            of_model = {"judge": judge or {}, "model_args": model_args or {}}
            model = longrm.load(names[kind], **of_model)
            app = build_app(ServeSettings(model=names[kind], **of_model, **settings), lambda: model)
            return servers.enter_context(TestClient(app, "http://127.0.0.1", raise_server_exceptions=False))

        yield begin


@pytest.fixture(scope="session")
def client(start):
    return start()


@pytest.fixture(scope="session")
def plain(names):
    """The same scalar model without a server."""
    return longrm.load(names["scalar"])
