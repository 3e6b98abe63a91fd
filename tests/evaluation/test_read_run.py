"""An evaluation by one call in Python equals that of the command line."""

import pytest
from click.testing import CliRunner

import longrm
from longrm.cli.commands import cli
from longrm.data import write
from longrm.evaluation.read_run import Run
from longrm.worlds import WorldPlan, generate, words_tokenizer

SETTINGS = {"probe.cells": [{"lengths": [64, 128], "groups": 4, "per_group": 2}], "judging.resamples": 100}


def test_a_loaded_model_is_evaluated_like_a_named_one(tmp_path):
    named = longrm.evaluate("baseline:overlap", "probe", tmp_path / "named", SETTINGS)
    loaded = longrm.evaluate(longrm.load("baseline:overlap"), "probe", tmp_path / "loaded", SETTINGS)
    assert loaded.summary == named.summary == Run(tmp_path / "named").summary
    rows = named.to_pandas()
    assert len(rows) == named.summary.counts.comparisons == 16
    assert rows["correct"].mean() == pytest.approx(named.summary.metrics.overall["pair_accuracy"].value)
    assert "pair_accuracy" in named._repr_html_()


def test_the_path_of_a_file_is_enough(tmp_path):
    path = tmp_path / "pairs.jsonl"
    write(path, generate(WorldPlan("records", 64), 4, words_tokenizer()))
    plain = longrm.evaluate("baseline:overlap", path, tmp_path / "plain")
    words = [
        "evaluate",
        "--model",
        "baseline:overlap",
        "--bench",
        str(path),
        "--out",
        str(tmp_path / "plain"),
    ]
    assert CliRunner().invoke(cli, words).exit_code == 0  # the settings of the run are the same
    named = longrm.evaluate("baseline:overlap", f"file:{path}", tmp_path / "named")
    assert plain.summary == named.summary
    assert plain.summary.counts.outcomes["answered"] == 4


def test_a_probe_in_python_is_that_of_the_command(tmp_path):
    run = longrm.probe(
        "baseline:overlap", tmp_path / "python", lengths=[64, 128], depths=[0, 1], tasks=["records"], n=4
    )
    words = ["probe", "baseline:overlap", "--lengths", "64,128", "--depths", "0,1", "--tasks", "records"]
    done = CliRunner().invoke(cli, [*words, "--n", "4", "--out", str(tmp_path / "command")])
    assert done.exit_code == 0, done.output
    for name in ("judgments.jsonl", "summary.json", "config.toml"):
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    assert len(run.to_pandas()) == 2 * 2 * 4
