"""`longrm evaluate` and `longrm score` take every kind of judge that a language model can be."""

import json

import pytest
from click.testing import CliRunner

from longrm.cli.evaluate import command as evaluate
from longrm.cli.score import command as score
from longrm.data import write
from longrm.runs.judgments import Judgments
from longrm.types import Comparison

from .tiny_models import make_model, queries


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("judge") / "model")


@pytest.fixture
def data(tmp_path):
    asked = queries(*[(20 + 5 * number, 2) for number in range(6)])
    rows = [
        Comparison(one.id, one.id, one.prompt, one.responses, (1, 2), context=one.context) for one in asked
    ]
    write(tmp_path / "pairs.jsonl", rows)
    return str(tmp_path / "pairs.jsonl")


@pytest.mark.parametrize(
    "name",
    [
        "likelihood:{0}",
        "likelihood:{0}#{0}",
        "tokens:{0}",
        "compress:tokens:{0}",
        "ensemble:mean-rank:likelihood:{0}+tokens:{0}+baseline:overlap",
    ],
)
def test_every_kind_evaluates_and_scores(name, folder, data, tmp_path):
    given = ["--model", name.format(folder), "--bench", f"file:{data}", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(evaluate, [*given, "--set", "judging.resamples=100"])
    assert done.exit_code == 0, done.output
    assert "6 answered" in done.output
    trials = {len(record.trials) for record in Judgments(tmp_path / "run")}
    assert trials == ({2} if "tokens" in name and "ensemble" not in name else {1})
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["calibration"] is not None) == ("#" not in name)
    out = tmp_path / "scored.jsonl"
    done = CliRunner().invoke(score, ["--model", name.format(folder), "--data", data, "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(row["scores"]) for row in rows] == [2] * 6
