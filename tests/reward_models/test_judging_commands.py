"""`longrm evaluate` and `longrm score` take every kind of judge that a language model can be."""

import json

import pytest
from click.testing import CliRunner

from longrm.cli.evaluate import command as evaluate
from longrm.cli.score import command as score
from longrm.data import write
from longrm.runs.logs import read_judgments
from longrm.types import Comparison

from .tiny_models import make_model, queries


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("judge") / "model")


@pytest.fixture
def pairs():
    asked = queries(*[(20 + 5 * number, 2) for number in range(6)])
    return [
        Comparison(query.id, query.id, query.prompt, query.responses, (1, 2), context=query.context)
        for query in asked
    ]


@pytest.fixture
def data(tmp_path, pairs):
    write(tmp_path / "pairs.jsonl", pairs)
    return str(tmp_path / "pairs.jsonl")


NAMES = [
    "likelihood:{0}",
    "likelihood:{0}#{0}",
    "tokens:{0}",
    "compress:tokens:{0}",
    "ensemble:mean-rank:likelihood:{0}+tokens:{0}+baseline:overlap",
]


@pytest.mark.parametrize("name", NAMES)
def test_evaluate(name, folder, data, tmp_path):
    given = ["--model", name.format(folder), "--bench", f"file:{data}", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(evaluate, [*given, "--set", "judging.resamples=100"])
    assert done.exit_code == 0, done.output
    assert "6 answered" in done.output
    trials = {len(record.trials) for record in read_judgments(tmp_path / "run")}
    assert trials == ({2} if "tokens" in name and "ensemble" not in name else {1})
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["calibration"] is not None) == ("#" not in name)


@pytest.mark.parametrize("name", NAMES)
def test_score(name, folder, data, tmp_path):
    out = tmp_path / "scored.jsonl"
    done = CliRunner().invoke(score, ["--model", name.format(folder), "--data", data, "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(row["scores"]) for row in rows] == [2] * 6
