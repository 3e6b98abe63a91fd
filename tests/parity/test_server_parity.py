"""`longrm parity` against servers in this process, each fault of which it must name."""

import json
import math
import re

import numpy as np
import pytest
import scipy.stats
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from longrm.cli.commands import cli
from longrm.clients.remote_settings import Remote
from longrm.errors import ConfigError, DataError, ModelError, RunError
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.parity.asking import ScoringServer
from longrm.parity.parity_run import ParitySettings, compare
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_scorer

from ..clients import conftest as peer
from .served_models import FakeServer, openai_classify, rows

server, closed_port = peer.server, peer.closed_port


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("served")
    for seed, name in enumerate(["tiny", "other"]):
        make_scorer(path / name, seed=seed)
    return path


@pytest.fixture(scope="module")
def comparisons():
    tokenizer = words_tokenizer()
    plans = [WorldPlan("records", length, responses=3, per_group=1) for length in (60, 200)]
    return [one for plan in plans for one in generate(plan, 4, tokenizer)]


@pytest.fixture(scope="module")
def data(folder, comparisons):
    return rows(folder / "rows.jsonl", comparisons)


@pytest.fixture(scope="module")
def truth(folder, comparisons):
    """What transformers alone computes, as (ids, score) by row."""
    path = folder / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    found = []
    for one in comparisons:
        texts = [tokenizer.apply_chat_template([*one.prompt, *own])["input_ids"] for own in one.responses]
        with torch.inference_mode():
            found.append([(ids, model(torch.tensor([ids])).logits.item()) for ids in texts])
    return found


def settings(server, folder, data, /, **more):
    remote = {"retries": 0, "concurrency": 3, "timeout": 20.0} | more.pop("remote", {})
    own = {"url": server.url, "model": str(folder / "tiny"), "data": str(data)}
    return ParitySettings(**(own | more), remote=Remote(**remote))


def test_columns_of_other_names_are_compared_alike(server, folder, data, tmp_path):
    server.script = FakeServer(str(folder / "tiny"), "longrm")
    theirs = [json.loads(line) for line in data.read_text().splitlines()]
    renamed = [{"asked" if key == "prompt" else key: value for key, value in row.items()} for row in theirs]
    (tmp_path / "theirs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed))
    told = settings(server, folder, tmp_path / "theirs.jsonl", columns={"prompt": "asked"}, tolerance=1e-4)
    assert compare(told).tokens == compare(settings(server, folder, data, tolerance=1e-4)).tokens
    with pytest.raises(DataError):  # negative control
        compare(settings(server, folder, tmp_path / "theirs.jsonl"))


@pytest.mark.parametrize("kind", ["vllm", "sglang", "longrm"])
def test_a_server_that_is_right_agrees_in_every_pass(server, folder, data, truth, kind):
    fake = server.script = FakeServer(str(folder / "tiny"), kind)
    result = compare(settings(server, folder, data, tolerance=1e-4))
    assert (result.server, result.rows, result.texts) == (kind, 8, 24)
    assert result.tokens == sum(len(ids) for row in truth for ids, _ in row)
    assert [one.name for one in result.passes] == [
        "alone, cold",
        "alone, warm",
        "batched, cold",
        "batched, warm",
    ]
    assert (result.fault, result.within, result.unscored) == (None, True, 0)
    for one in result.passes:
        assert one.overall.max_difference < 1e-4
        assert one.overall.max_change == 0.0
        assert one.overall.spearman > 0.999
        assert one.overall.flipped == 0
        assert sum(part.texts for part in one.buckets.values()) == 24
    assert [*result.passes[0].buckets] == [64, 256]
    assert fake.most_at_once <= 3


def test_the_ids_that_are_sent_are_those_that_transformers_makes(server, folder, data, truth):
    fake = server.script = FakeServer(str(folder / "tiny"))
    compare(settings(server, folder, data))
    expected = sorted(tuple(ids) for row in truth for ids, _ in row)
    greeting, asked = fake.asked[0], fake.asked[1:]
    assert greeting[0] == (1, 2, 3)
    for number in range(4):
        assert sorted(ids for ids, _ in asked[24 * number : 24 * (number + 1)]) == expected


def test_salts_keep_cold_requests_cold(server, folder, data):
    fake = server.script = FakeServer(str(folder / "tiny"))
    compare(settings(server, folder, data))
    salts = [salt for _, salt in fake.asked[1:]]
    alone, again, batched = salts[:24], salts[24:48], salts[48:]
    assert len(set(alone)) == 24
    assert alone == again
    assert len(set(batched)) == 1
    assert not set(batched) & set(alone)
    compare(settings(server, folder, data))
    assert not {salt for _, salt in fake.asked[98:]} & set(salts), "another run is cold again"


def test_the_figures_are_those_that_scipy_computes(server, folder, data, truth):
    noise = np.random.default_rng(0)
    answers = {}

    def noisy(score, ids, number):
        value = round(score + noise.normal(0, 0.4), 1)
        if number > 1:
            answers.setdefault(tuple(ids), []).append(value)
        return value

    server.script = FakeServer(str(folder / "tiny"), change=noisy)
    result = compare(settings(server, folder, data, remote={"concurrency": 1}))
    flat = [(tuple(ids), score, row) for row, texts in enumerate(truth) for ids, score in texts]
    ours, first = np.array([score for _, score, _ in flat]), np.array([answers[ids][0] for ids, _, _ in flat])
    for number, one in enumerate(result.passes):
        theirs = np.array([answers[ids][number] for ids, _, _ in flat])
        check(one.overall, ours, theirs, first, [row for _, _, row in flat])
        for bucket, part in one.buckets.items():
            long = {row for ids, _, row in flat if len(ids) > 128}
            own = [at for at, (_, _, row) in enumerate(flat) if (row in long) == (bucket == 256)]
            check(part, ours[own], theirs[own], first[own], [flat[at][2] for at in own])
    assert result.passes[1].overall.max_change > 0
    assert sum(one.overall.flipped for one in result.passes) > 0, "or the noise is too small to show anything"
    assert sum(one.overall.tied for one in result.passes) > 0


def check(found, ours, theirs, first, row):
    assert found.texts == len(ours)
    assert found.max_difference == pytest.approx(max(abs(ours - theirs)), abs=1e-4)
    assert found.mean_difference == pytest.approx(np.mean(abs(ours - theirs)), abs=1e-4)
    assert found.max_change == pytest.approx(max(abs(first - theirs)))
    ranks = scipy.stats.rankdata(ours), scipy.stats.rankdata(theirs)
    assert found.spearman == pytest.approx(scipy.stats.pearsonr(*ranks).statistic)
    pairs = [(a, b) for a in range(len(row)) for b in range(a) if row[a] == row[b]]
    products = [(ours[a] - ours[b]) * (theirs[a] - theirs[b]) for a, b in pairs]
    assert found.pairs == len(pairs)
    assert found.flipped == sum(product < 0 for product in products)
    assert found.tied == sum(product == 0 for product in products)


def sigmoid(score, ids, number):
    return 1 / (1 + math.exp(-score))


FAULTS = {
    "sigmoid": ({"change": sigmoid}, r"answers the sigmoid of the score.*problem_type"),
    "rounded sigmoid": (
        {"change": lambda score, ids, number: round(sigmoid(score, ids, number) * 256) / 256},
        "answers the sigmoid of the score",
    ),
    "softmax of one label": ({"change": lambda *_: 1.0}, r"answers 1\.0 whatever it reads.*/classify"),
    "constant": ({"change": lambda *_: -40.0}, r"do not go with ours \(constant\)"),
    "another model": (
        {"change": lambda score, ids, number: 9 * math.sin(7919 * sum(ids))},
        "serves another model",
    ),
    "BOS": ({"extra_ids": (1,)}, r"read \d+ tokens where we read \d+: .*BOS"),
    "two labels": ({"change": lambda score, ids, number: [score, -score]}, "gives 2 numbers for a text"),
    "null": (
        {"change": lambda score, ids, number: None if number == 9 else score},
        r"no score for 1 of 48 requests, first: its score is not finite",
    ),
    "NaN": ({"change": lambda score, ids, number: math.nan if number == 9 else score}, "is not finite"),
    "text": (
        {"change": lambda score, ids, number: "high" if number == 9 else score},
        r"no score for 1 of 48 requests, first: no answer of a vllm server",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_named(server, folder, data, name):
    fault, expected = FAULTS[name]
    server.script = FakeServer(str(folder / "tiny"), **fault)
    result = compare(settings(server, folder, data, rows=4, tolerance=0.5))
    assert result.fault is not None
    assert result.fault == " ".join(result.fault.split())
    assert re.search(expected, result.fault), result.fault


def test_a_server_of_other_weights_is_beyond_the_tolerance(server, folder, data):
    server.script = FakeServer(str(folder / "other"))
    result = compare(settings(server, folder, data, tolerance=0.01))
    assert result.within is False
    assert result.max_difference > 0.1


def test_what_rounds_as_bf16_does_is_no_fault(server, folder, data):
    server.script = FakeServer(
        str(folder / "tiny"), change=lambda score, ids, number: torch.tensor(score).bfloat16().item()
    )
    result = compare(settings(server, folder, data, tolerance=0.05))
    assert result.fault is None
    assert 1e-4 < result.max_difference < 0.05
    assert result.within is True


def test_softmax_of_one_label_behind_v1_is_named(server, folder, data):
    server.script = openai_classify
    result = compare(settings(server, folder, data, url=f"{server.url}/v1"))
    assert "softmax of a single label" in result.fault


def test_a_server_below_a_path_is_found(server, folder, data):
    server.script = FakeServer(str(folder / "tiny"), at="/proxy")
    assert compare(settings(server, folder, data, url=f"{server.url}/proxy/", rows=2)).rows == 2


def test_a_text_that_is_too_long_there_is_told(server, folder, data):
    fake = FakeServer(str(folder / "tiny"))

    def refuse(seen, number):
        if len(seen.body.get("input", ())) > 128:
            message = "This model's maximum context length is 128 tokens. However, you requested more."
            return peer.Reply({"error": {"message": message, "type": "BadRequestError", "code": 400}}, 400)
        return fake(seen, number)

    server.script = refuse
    result = compare(settings(server, folder, data, tolerance=1.0))
    assert "no score for 48 of 96 requests, first: answered 400: This model's maximum context" in result.fault
    assert result.within is False
    assert result.passes[0].overall.texts == 12, "the others are compared"


def test_what_passes_is_asked_again(server, folder):
    fake = server.script = FakeServer(str(folder / "tiny"), fails=[503, 0, 429, 500])
    naps = []

    async def nap(seconds):
        naps.append(seconds)

    assert ScoringServer(server.url, Remote(retries=5), sleep=nap).recognize(["vllm"]) == "vllm"
    assert not fake.fails
    assert len(naps) == 4
    fake.fails = [503] * 3
    with pytest.raises(RunError, match=r"/v1/scores: the server answered 503: later; given up after 3 tries"):
        ScoringServer(server.url, Remote(retries=2), sleep=nap).recognize()


def test_a_server_that_is_not_there(folder, data, closed_port):
    peer_less = peer.Server(url=f"http://127.0.0.1:{closed_port}")
    with pytest.raises(ModelError, match=r"^cannot reach http://127.*is the server running\?$"):
        compare(settings(peer_less, folder, data))


def test_a_server_that_goes_away(server, folder, data):
    server.script = FakeServer(str(folder / "tiny"), gone_after=9)
    with pytest.raises(RunError, match=r"/classify: the connection broke: .*given up after 1 tries"):
        compare(settings(server, folder, data))


def test_no_route_that_is_known(server, folder, data):
    server.script = lambda seen, number: peer.Reply({"detail": "Not Found"}, 404)
    with pytest.raises(
        ModelError, match=r"^no route of a server that is known answers \(.*as sglang has it: answ"
    ):
        compare(settings(server, folder, data))
    with pytest.raises(ModelError) as told:
        compare(settings(server, folder, data, server="vllm"))
    assert "sglang" not in str(told.value)


def test_a_model_that_the_server_does_not_know(server, folder, data):
    server.script = FakeServer(str(folder / "tiny"), model_name="right")
    with pytest.raises(ModelError, match="The model `wrong` does not exist"):
        compare(settings(server, folder, data, name="wrong", server="vllm"))
    assert compare(settings(server, folder, data, name="right", rows=1)).fault is None


def test_a_key_is_sent_and_never_told(server, folder, data, monkeypatch):
    server.script = FakeServer(str(folder / "tiny"), key="the-right-key-0123")
    monkeypatch.setenv("SOME_KEY", "a-wrong-key-4567")
    with pytest.raises(ModelError, match="answered 401.*set SOME_KEY to a key that the server knows") as told:
        compare(settings(server, folder, data, remote={"api_key_env": "SOME_KEY"}))
    assert "4567" not in str(told.value)
    monkeypatch.setenv("SOME_KEY", "the-right-key-0123")
    assert compare(settings(server, folder, data, rows=1, remote={"api_key_env": "SOME_KEY"})).fault is None


def test_rows_that_we_cannot_read_are_counted(server, folder, data, comparisons):
    server.script = FakeServer(str(folder / "tiny"))
    tokenizer = words_tokenizer()
    (long,) = generate(WorldPlan("records", 900, responses=2, per_group=1), 1, tokenizer)
    mixed = rows(folder / "mixed.jsonl", [long, *comparisons[:1]])
    result = compare(settings(server, folder, mixed))
    assert (result.rows, dict(result.left_out)) == (1, {"too_long": 1})
    with pytest.raises(DataError, match=r"no row can be scored here \(1 too_long\)"):
        compare(settings(server, folder, mixed, rows=1))


def test_settings_that_cannot_be(server, folder, data):
    with pytest.raises(ConfigError, match="servers are compared by scalar heads; name a folder"):
        compare(settings(server, folder, data, model="likelihood:x"))
    with pytest.raises(ConfigError, match="no kind of server 'vlm'; did you mean 'vllm'"):
        ParitySettings.resolve(None, {"url": server.url, "model": "m", "data": "d", "server": "vlm"})


def run(server, folder, data, *more):
    arguments = ["parity", server.url, "--model", str(folder / "tiny"), "--data", str(data)]
    cli.main([*arguments, "--set", "remote.retries=0", *more], standalone_mode=False)


def test_the_command_prints_a_table_of_80_columns(server, folder, data, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    server.script = FakeServer(str(folder / "tiny"), "sglang")
    run(server, folder, data, "--tolerance", "0.001")
    out = capsys.readouterr().out
    assert out.count("up to 64 tokens") == 4
    assert "asked as sglang" in out
    assert max(map(len, out[out.index("texts") :].splitlines())) <= 80
    assert "Tokens that the server had kept: alone, cold 72;" in " ".join(out.split())


def test_the_command_fails_beyond_the_tolerance_and_by_a_fault(server, folder, data, capsys):
    server.script = FakeServer(str(folder / "tiny"), change=lambda score, ids, number: score + 0.01)
    with pytest.raises(RunError, match=r"a score differs by 0\.01, more than the tolerance of 0\.001$"):
        run(server, folder, data, "--tolerance", "0.001", "--json", "--rows", "2")
    result = json.loads(capsys.readouterr().out)
    assert (result["within"], result["fault"], result["texts"]) == (False, None, 6)
    assert result["max_difference"] == pytest.approx(0.01, abs=1e-3)
    run(server, folder, data, "--rows", "2")  # no tolerance was named
    server.script = FakeServer(str(folder / "tiny"), change=sigmoid)
    with pytest.raises(RunError, match="http://127.*answers the sigmoid"):
        run(server, folder, data, "--rows", "2")


@pytest.mark.parametrize(("dtype", "agrees"), [(torch.float32, True), (torch.bfloat16, False)])
def test_our_scores_are_of_fp32_whatever_the_checkpoint_is(server, folder, data, dtype, agrees):
    stored = folder / "bf16"
    if not stored.exists():
        scorer = new_scorer(ModelShape(hidden=32, init_std=0.3, max_positions=600), words_tokenizer(), seed=0)
        scorer.model.to(torch.bfloat16)
        scorer.model.config.dtype = torch.bfloat16
        save(scorer, stored)
    fake = server.script = FakeServer(str(stored))
    fake.cast(dtype)
    result = compare(settings(server, folder, data, model=str(stored), rows=4, tolerance=1e-4))
    assert result.within is agrees, result.max_difference
    assert result.fault is None
