"""Endpoints that return log-probabilities, as vLLM, SGLang and llama.cpp do, and others that do not."""

import math

import pytest

import longrm
from longrm.clients.remote_settings import Remote
from longrm.errors import ModelError
from longrm.reward_models import JudgeSettings
from longrm.types import Outcome

from ..clients import conftest as peer
from .tiny_models import queries

server = peer.server


def told(*pairs):
    """A chat completion of one token, with the likeliest ones beside it."""
    content = (
        [{"token": pairs[0][0], "top_logprobs": [{"token": t, "logprob": v} for t, v in pairs]}]
        if pairs
        else []
    )
    reply = peer.said(pairs[0][0] if pairs else "", finish="length", usage=(77, 1))
    reply.body["choices"][0]["logprobs"] = {"content": content}
    return reply


def load(server, **judge):
    return longrm.load(
        f"tokens:openai:{server.url}/v1#tiny",
        judge=JudgeSettings(**judge),
        remote=Remote(concurrency=1, retries=0),
    )


def test_the_letters_are_taken_from_the_likeliest_first_tokens(server):
    server.script = lambda seen, number: told(("I", -0.5), (" A", -1.0), ("A", -5.0), ("B", -3.0))
    model = load(server)
    (judgment,) = model.judge(queries((20, 2)))
    assert judgment.scores[0] - judgment.scores[1] == pytest.approx(2.0)
    assert math.exp(judgment.scores[0]) + math.exp(judgment.scores[1]) == pytest.approx(1.0)
    assert judgment.explanation == "P(A) = 0.3679, P(B) = 0.0498"
    assert (judgment.prompt_tokens, judgment.attempts, judgment.outcome) == (77, 1, Outcome.ANSWERED)
    body = server.seen[0].body
    assert {name: body[name] for name in ("logprobs", "top_logprobs", "max_tokens", "temperature")} == {
        "logprobs": True, "top_logprobs": 20, "max_tokens": 1, "temperature": 0.0
    }  # fmt: skip
    assert model.name == f"tokens:openai:{server.url}/v1#tiny"
    assert (model.scale, model.sees_order, model.samples) == ("logit", True, False)


def test_a_token_beyond_the_likeliest_ones_counts_as_the_last_of_them(server):
    server.script = lambda seen, number: told(("B", -0.1), ("x", -4.0), ("y", -9.0))
    (judgment,) = load(server).judge(queries((20, 2)))
    assert judgment.scores[1] - judgment.scores[0] == pytest.approx(8.9)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 1e308, 800.0, 10**400, -(10**400), -1e308, True, "x", None]
)
def test_an_implausible_log_probability_affects_its_comparison_only(server, value):
    server.script = lambda seen, number: told(("A", value if number == 1 else -1.0), ("B", -2.0))
    judged = load(server).judge_in_all_orders(queries((20, 2), (30, 2)))
    assert sorted(trial.outcome for trial in judged) == [Outcome.ANSWERED, Outcome.UNPARSED]
    (failed,) = (trial for trial in judged if trial.outcome is Outcome.UNPARSED)
    assert "the score of response" in failed.detail


def test_a_server_without_log_probabilities_is_an_error(server):
    server.script = lambda seen, number: peer.said("A", finish="length")
    with pytest.raises(ModelError, match="log-probabilities"):
        load(server).judge(queries((20, 2)))


def test_refusals_and_errors_keep_their_outcomes(server):
    server.script = lambda seen, number: peer.Reply(
        {"error": {"message": "maximum context length is 8"}}, 400
    )
    assert load(server).judge(queries((20, 2)))[0].outcome is Outcome.TOO_LONG
    server.script = lambda seen, number: peer.Reply(
        {"error": {"message": "logprobs: not with this model"}}, 400
    )
    (judgment,) = load(server).judge(queries((20, 2)))
    assert judgment.outcome is Outcome.ERROR
    assert "not with this model" in judgment.detail
