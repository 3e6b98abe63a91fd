"""Endpoints that tell log-probabilities, as vLLM, SGLang and llama.cpp do, and others that do not."""

import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner

import longrm
from longrm.cli import score as scoring
from longrm.clients.remote_settings import Remote
from longrm.errors import ConfigError, ModelError, RunError
from longrm.reward_models import JudgeSettings, ModelSettings
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.types import Outcome, Query
from tests.data.trajectories import HERMES, PROMPT, RESPONSES, TOOLS

from ..clients import conftest as peer
from .tiny_models import Plain, bytes_tokenizer, make_model, queries

server = peer.server


def told(*pairs):
    """A chat completion of one token, with its most likely alternatives."""
    content = (
        [{"token": pairs[0][0], "top_logprobs": [{"token": t, "logprob": v} for t, v in pairs]}]
        if pairs
        else []
    )
    reply = peer.said(pairs[0][0] if pairs else "", finish="length", usage=(77, 1))
    reply.body["choices"][0]["logprobs"] = {"content": content}
    return reply


def load(server, kind="tokens", remote=None, model_args=None, **judge):
    return longrm.load(
        f"{kind}:openai:{server.url}/v1#tiny",
        model_args=model_args,
        judge=judge,
        remote=Remote(concurrency=1, retries=0, **(remote or {})),
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


def test_a_token_that_may_be_as_likely_as_those_found_leaves_the_answer_unread(server):
    server.script = lambda seen, number: told(("I", -0.5), ("B", -3.0), ("x", -4.0), ("y", -6.0))
    (judgment,) = load(server).judge(queries((20, 2)))
    assert judgment.outcome is Outcome.UNPARSED
    assert "'A'" in judgment.detail
    assert "'B'" not in judgment.detail
    assert "remote.tokenizer" in judgment.detail


def choosing(folder, *, takes="ids"):
    """A server with the 20 most likely first tokens of the answer or, as vLLM, with those of `logprob_token_ids`."""
    plain = Plain(folder)

    def script(seen, number):
        import torch

        body, asked = seen.body, seen.body.get("logprob_token_ids")
        if asked and takes == "error":
            return peer.Reply({"error": {"message": "Unrecognized request argument: logprob_token_ids"}}, 400)
        given = plain.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        with torch.inference_mode():
            row = plain.model(torch.tensor([given["input_ids"]])).logits[0, -1].log_softmax(-1)
        most = row.topk(20).indices.tolist()
        ids = [most[0], *asked] if asked and takes == "ids" else most
        # Another token with the same text but for white space, which is not the one that is asked for.
        return told(("A ", -0.01), *((plain.tokenizer.decode([one]), row[one].item()) for one in ids))

    return script


@pytest.mark.parametrize("takes", ["ids", "nothing", "error"])
@pytest.mark.parametrize(
    ("form", "shapes"), [("pairwise", (2,) * 8), ("listwise", (7, 3)), ("pointwise", (4, 2))]
)
def test_with_the_servers_tokenizer_the_scores_are_the_models_own_where_it_returns_any_token(
    server, folder, form, shapes, takes
):
    server.script = choosing(folder, takes=takes)
    asked = queries(*((20 + number, count) for number, count in enumerate(shapes)))
    found = load(server, remote={"tokenizer": str(folder)}, format=form).judge(asked)
    truth = longrm.load(f"tokens:{folder}", judge=JudgeSettings(format=form)).judge(asked)
    for one, other in zip(found, truth, strict=True):
        # Negative control: of the 20 most likely tokens, "A " is taken for "A", or some letter is missing.
        assert (one.scores == pytest.approx(other.scores, abs=5e-4)) is (takes == "ids")
        assert one.outcome is Outcome.ANSWERED or "not among the" in one.detail
        assert "remote.tokenizer" not in one.detail
    # With one request at a time, one is rejected, and no other has the field.
    assert sum("logprob_token_ids" in seen.body for seen in server.seen) == (
        1 if takes == "error" else len(server.seen)
    )


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 1e308, 800.0, 10**400, -(10**400), -1e308, True, "x", None]
)
@pytest.mark.parametrize("kind", ["tokens", "likelihood"])
def test_what_is_no_log_probability_costs_its_comparison_alone(server, kind, value, tmp_path):
    bytes_tokenizer().save(tmp_path)

    def script(seen, number):
        bad = number == 1
        if kind == "tokens":
            return told(("A", value if bad else -1.0), ("B", -2.0))
        size = len(bytes_tokenizer().encode(seen.body["prompt"]))
        reply = peer.said("", finish="length", usage=(size, 1))
        values = [None, *[-1.0] * (size - 3), *([value, value] if bad else [-2.0, -2.0]), -1.0]
        reply.body["choices"][0] |= {
            "text": "",
            "logprobs": {"tokens": ["t"] * (size + 1), "token_logprobs": values},
        }
        return reply

    server.script = script
    model = load(server, kind, {"tokenizer": str(tmp_path)})
    judged = model.judge_in_all_orders(queries((20, 2), (30, 2)))
    assert sorted(trial.outcome for trial in judged) == [Outcome.ANSWERED, Outcome.UNPARSED]
    (failed,) = (trial for trial in judged if trial.outcome is Outcome.UNPARSED)
    assert "is nan" in failed.detail or "the score of response" in failed.detail


@pytest.mark.parametrize("kind", ["tokens", "likelihood"])
def test_a_server_that_tells_none_is_refused_in_one_line(server, kind, tmp_path):
    bytes_tokenizer().save(tmp_path)
    text = peer.said("A", finish="length")
    text.body["choices"][0]["text"] = "A"
    server.script = lambda seen, number: text
    with pytest.raises(ModelError, match="log-probabilities") as caught:
        load(server, kind, {"tokenizer": str(tmp_path)}).judge(queries((20, 2)))
    assert "\n" not in str(caught.value)


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("served") / "model")


def echoing(folder, extra=0):
    """A server that echoes, by a plain loop over the model."""
    plain = Plain(folder)

    def script(seen, number):
        import torch

        body = seen.body
        assert (seen.path, body["echo"], body["max_tokens"]) == ("/v1/completions", True, 1)
        ids = [0] * extra + plain.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            table = plain.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        values = [None, *(table[at - 1, ids[at]].item() for at in range(1, len(ids))), -0.5]
        logprobs = {"tokens": ["t"] * len(values), "token_logprobs": values}
        choice = {"text": body["prompt"] + "!", "logprobs": logprobs, "finish_reason": "length"}
        return peer.Reply({"choices": [choice], "usage": {"prompt_tokens": len(ids), "completion_tokens": 1}})

    return script


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_an_echoed_likelihood_is_that_of_the_model_itself(server, folder, how):
    server.script = echoing(folder)
    model = load(server, "likelihood", {"tokenizer": str(folder)}, {"likelihood": how})
    asked = queries((20, 2), (60, 3))
    here = longrm.load(f"likelihood:{folder}", model_args=ModelSettings(likelihood=how))
    for found, truth in zip(model.judge(asked), here.judge(asked), strict=True):
        assert found.scores == pytest.approx(truth.scores, abs=5e-4)
        assert found.prompt_tokens == truth.prompt_tokens
    assert model.scale == here.scale
    assert model.name == f"likelihood:openai:{server.url}/v1#tiny"


def test_of_an_echoed_trajectory_the_assistants_turns_count(server, tmp_path):
    folder = make_model(tmp_path / "model", tokenizer=bytes_tokenizer(HERMES))
    server.script = echoing(folder)
    asked = Query("q", PROMPT, RESPONSES, tools=TOOLS)
    for how in ("sum", "mean"):
        (truth,) = longrm.load(f"likelihood:{folder}", model_args=ModelSettings(likelihood=how)).judge(
            [asked]
        )
        (found,) = load(server, "likelihood", {"tokenizer": str(folder)}, {"likelihood": how}).judge([asked])
        assert found.scores == pytest.approx(truth.scores, abs=5e-3, rel=1e-5)
    (other,) = load(server, "likelihood", {"tokenizer": str(folder)}).judge([replace(asked, tools=())])
    assert other.scores != pytest.approx(truth.scores, abs=5e-3)


def test_a_server_that_reads_other_tokens_is_an_error(server, folder):
    server.script = echoing(folder, extra=1)
    (judgment,) = load(server, "likelihood", {"tokenizer": str(folder)}).judge(queries((20, 2)))
    assert judgment.outcome is Outcome.ERROR
    assert "remote.tokenizer" in judgment.detail


def test_files_are_scored_ranked_and_filtered_by_it(server, folder, put, tmp_path):
    pairs = [{"prompt": "w5 w6", "chosen": f"w{n} w{n + 1}", "rejected": "w2"} for n in range(3)]
    data, name = put("pairs.jsonl", *pairs), f"likelihood:openai:{server.url}/v1#tiny"
    plain, failing = echoing(folder), True

    def script(seen, number):
        return peer.Reply({}, 500) if failing and "w1 w2" in seen.body["prompt"] else plain(seen, number)

    def run(command, out, *options):
        settings = [f"remote.tokenizer={folder}", "remote.retries=0", "model_args.likelihood=mean"]
        words = ["--model", name, "--data", data, "--out", tmp_path / out, *options]
        words += [word for one in settings for word in ("--set", one)]
        done = CliRunner().invoke(command, list(map(str, words)))
        rows = (tmp_path / out).read_text().splitlines() if (tmp_path / out).exists() else []
        return done, [json.loads(line) for line in rows]

    server.script = script
    done, rows = run(scoring.command, "scored.jsonl")
    assert isinstance(done.exception, RunError)
    assert [row["scores_outcome"] for row in rows] == ["answered", "error", "answered"]
    failing, before = False, len(server.seen)
    done, rows = run(scoring.command, "scored.jsonl")
    assert (done.exit_code, len(server.seen) - before) == (0, 1), "paid answers are kept for the same command"
    here = longrm.load(f"likelihood:{folder}", model_args={"likelihood": "mean"})
    for row in rows:
        expected = here.score(row["prompt"], [row["chosen"], row["rejected"]])
        assert row["scores"] == pytest.approx(expected, abs=5e-4)
    assert not (tmp_path / "scored.jsonl.partial").exists()
    for command, option in ((scoring.rank, ["--pairs"]), (scoring.filter_, ["--min-margin", "-1000"])):
        done, rows = run(command, f"{command.name}.jsonl", *option)
        assert (done.exit_code, len(rows)) == (0, 3)


def test_without_the_tokenizer_the_error_names_its_setting(server, put, tmp_path):
    data = put("pairs.jsonl", {"prompt": "w5", "chosen": "w1", "rejected": "w2"})
    with pytest.raises(ConfigError, match=r"--set remote\.tokenizer="):
        score_file(
            ScoreSettings(model=f"likelihood:openai:{server.url}/v1#tiny", data=str(data)),
            tmp_path / "out.jsonl",
        )
    with pytest.raises(ConfigError, match="--model"):
        ScoreSettings.resolve(overrides={"data": str(data), "remote.tokenizer": "x"})
