"""`longrm:URL`: a model behind `longrm serve` judges as it does in this process."""

import json
import threading

import pytest

import longrm
from longrm.clients.remote_settings import Remote
from longrm.errors import ConfigError, ModelError, RunError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.trials import JudgingSettings
from longrm.types import Outcome, Query, Span
from tests.serving.test_longrm_scores import TOLERANCE

from ..clients import conftest as peer
from ..reward_models.tiny_models import queries
from .processes import KEY

server, closed_port = peer.server, peer.closed_port


@pytest.fixture
def behind(server, start):
    """Puts one of this package's servers behind a real socket."""
    lock = threading.Lock()

    def put(kind="scalar", **settings):
        client = start(kind, **settings)

        def forward(seen, number):
            headers = {key: value for key, value in seen.headers.items() if key.lower() == "authorization"}
            method = "GET" if seen.path == "/info" else "POST"
            with lock:
                answer = client.request(method, seen.path, json=seen.body, headers=headers)
            return peer.Reply(answer.content, answer.status_code)

        server.script = forward
        return f"longrm:{server.url}"

    return put


def fast(**remote):
    return Remote(concurrency=2, retries=1, **remote)


def test_scores_and_cached_tokens_are_those_of_the_server(behind, plain, server):
    model = longrm.load(behind(), remote=fast())
    asked = queries((200, 3), (20, 2))
    found, expected = model.judge(asked), plain.judge(asked)
    for one, other in zip(found, expected, strict=True):
        assert one.outcome is Outcome.ANSWERED
        assert one.scores == pytest.approx(other.scores, abs=TOLERANCE)
        assert one.prompt_tokens == other.prompt_tokens
    assert (model.name, model.scale, model.sees_order) == (f"longrm:{server.url}", plain.scale, False)
    assert model.provenance["served_name"] == "scalar"
    again = model.judge(asked[:1])
    assert again[0].cached_tokens > 100
    assert again[0].scores == pytest.approx(found[0].scores, abs=TOLERANCE)
    # The control: other queries have other scores.
    assert found[0].scores[:2] != pytest.approx(found[1].scores, abs=TOLERANCE)


def test_it_works_in_evaluations_and_reward_functions(behind, names, plain, tmp_path):
    data = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"w{n} w3?", "chosen": f"w{n + 1}", "rejected": "w2 w5"} for n in range(6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    judging = JudgingSettings(baselines=(), resamples=100, orders="one")
    there, here = (
        run_evaluation(
            Evaluation(model=model, bench=f"file:{data}", remote=fast(), judging=judging), tmp_path / name
        ).to_dict()
        for name, model in (("there", behind()), ("here", names["scalar"]))
    )
    assert there["complete"]
    assert there["metrics"]["overall"] == here["metrics"]["overall"]
    reward = longrm.reward_function(longrm.load(behind(), remote=fast()))
    assert reward(["w1 w2?"], ["w3"]) == pytest.approx(plain.score("w1 w2?", ["w3"]), abs=TOLERANCE)


def test_outcomes_of_the_server_are_kept(behind, server):
    model = longrm.load(behind(model_args={"max_length": 400}), remote=fast())
    short, long = model.judge(queries((20, 2), (500, 2)))
    assert (short.outcome, long.outcome) == (Outcome.ANSWERED, Outcome.TOO_LONG)

    replies = {
        "the model gave no verdict (truncated)": Outcome.TRUNCATED,
        "a score is not a finite number": Outcome.UNPARSED,
        "the model could not be asked: no memory": Outcome.ERROR,
    }
    for message, outcome in replies.items():
        body = {"error": {"type": "unscored", "message": message, "code": 422}}
        server.script = lambda seen, number, body=body: peer.Reply(body, 422)
        assert model.judge(queries((20, 2)))[0].outcome is outcome
    server.script = lambda seen, number: peer.Reply({"scores": [1.0]})
    assert model.judge(queries((20, 2)))[0].outcome is Outcome.ERROR, "an answer in another form"


def test_the_context_is_cut_on_request(behind, server):
    context = " ".join(f"w{n}" for n in range(300))
    prompt = ({"role": "user", "content": f"{context} w1 w2?"},)
    responses = (({"role": "assistant", "content": "w3"},), ({"role": "assistant", "content": "w4"},))
    query = Query("q", prompt, responses, context=(Span(0, 0, len(context)),))
    address = behind(model_args={"max_length": 400})
    (cut,) = longrm.load(address, model_args={"cut": "middle"}, remote=fast()).judge([query])
    assert (cut.outcome, cut.cut.policy) == (Outcome.ANSWERED, "middle")
    assert cut.cut.tokens > 100
    (refused,) = longrm.load(address, remote=fast()).judge([query])
    assert refused.outcome is Outcome.TOO_LONG


def test_the_key_comes_from_the_environment(behind, monkeypatch):
    address = behind(api_key=KEY)
    monkeypatch.delenv("LONGRM_API_KEY", raising=False)
    with pytest.raises(ModelError, match="LONGRM_API_KEY"):
        longrm.load(address, remote=fast())
    monkeypatch.setenv("LONGRM_API_KEY", KEY)
    assert longrm.load(address, remote=fast()).judge(queries((20, 2)))[0].outcome is Outcome.ANSWERED
    monkeypatch.setenv("OTHER_KEY", "wrong-key-of-length")
    with pytest.raises(ModelError, match="OTHER_KEY"):
        longrm.load(address, remote=fast(api_key_env="OTHER_KEY"))


def test_a_missing_or_wrong_server_is_an_error(closed_port, server):
    with pytest.raises(ModelError, match=f"127.0.0.1:{closed_port}"):
        longrm.load(f"longrm:http://127.0.0.1:{closed_port}", remote=fast())
    server.script = lambda seen, number: peer.Reply({"detail": "Not Found"}, 404)
    with pytest.raises(ModelError, match="longrm serve"):
        longrm.load(f"longrm:{server.url}", remote=fast())
    server.script = lambda seen, number: peer.Reply({"version": "1"})
    with pytest.raises(ModelError, match="longrm serve"):
        longrm.load(f"longrm:{server.url}", remote=Remote(retries=0))
    for wrong in ("longrm:", "longrm:scalar", "longrm:http://user:secret@host"):
        with pytest.raises(ConfigError):
            longrm.load(wrong)


def test_the_budget_holds(behind):
    model = longrm.load(behind(), remote=fast(max_requests=2))
    with pytest.raises(RunError, match="budget"):
        model.judge(queries(*[(20, 2)] * 4))
