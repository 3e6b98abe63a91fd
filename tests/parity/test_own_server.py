"""`longrm parity` against the server of this package, in each format that both speak."""

import pytest
from starlette.testclient import TestClient

import longrm
from longrm.clients.remote_settings import Remote
from longrm.parity.parity_run import ParitySettings, compare
from longrm.parity.servers import SERVERS
from longrm.serving.app import build_app
from longrm.serving.settings import ServeSettings
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_scorer

from ..clients import conftest as peer
from .served_models import rows

server = peer.server


@pytest.mark.parametrize("kind", SERVERS)
def test_our_own_server_scores_as_we_do(server, tmp_path, kind):
    model = str(make_scorer(tmp_path / "model", positions=131_072))
    data = rows(
        tmp_path / "rows.jsonl",
        [
            row
            for length in (60, 300)
            for row in generate(WorldPlan("records", length, responses=3), 2, words_tokenizer())
        ],
    )
    app = build_app(ServeSettings(model=model), longrm.load(model))
    with TestClient(app) as client:

        def forwarded(seen, number):
            reply = client.post(seen.path, json=seen.body)
            return peer.Reply(reply.content, reply.status_code)

        server.script = forwarded
        remote = Remote(retries=0, concurrency=4)
        settings = ParitySettings(
            url=server.url, model=model, data=str(data), server=kind, tolerance=1e-4, remote=remote
        )
        result = compare(settings)
    assert (result.server, result.fault, result.within) == (kind, None, True)
    cold, warm, *_ = result.passes
    assert warm.cached_tokens > 0, "or the warm pass is cold"
    if kind != "sglang":  # which takes no salt
        assert cold.cached_tokens == 0, "responses to one prompt do not warm each other"
