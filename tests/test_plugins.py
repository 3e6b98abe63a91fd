"""A plug-in is a package with one entry point: what it registers is known to every command and in every output."""

import csv
import os
import re
import subprocess
import sys

import jsonschema
import pytest
from starlette.testclient import TestClient

import longrm
from longrm.errors import ConfigError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.summary_schema import read_summary, summary_schema
from longrm.plugins import load_plugins
from longrm.reward_models.baselines import BASELINES
from longrm.serving.app import build_app
from longrm.serving.settings import ServeSettings
from longrm.training.settings import EvaluationSettings
from longrm.types import message_text
from longrm.worlds import WorldPlan, generate

from .worlds.prose.prose_tokenizer import prose_tokenizer


@pytest.fixture
def evaluated(tmp_path):
    """Evaluates a baseline, and builds a report; returns the summary and the page."""

    def run(model="baseline:overlap", bench="probe", judging=(), **probe):
        judging = {"resamples": 100, **dict(judging)}
        settings = {"model": model, "bench": bench, "judging": judging} | ({"probe": probe} if probe else {})
        run_evaluation(Evaluation.model_validate(settings), tmp_path / "run")
        longrm.report([tmp_path / "run"], tmp_path / "report.html")
        return read_summary(tmp_path / "run"), (tmp_path / "report.html").read_text()

    return run


def command_line(site, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "longrm", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])},
        capture_output=True,
        text=True,
    )


def test_a_command_in_a_new_process_knows_what_is_installed(install_plugin):
    shown = command_line(install_plugin("tests.example_plugin:register"), "train", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "Imitate how completions end." in shown.stdout


def test_loading_a_model_calls_the_entry_point_once(example_plugin):
    del BASELINES["vowels"]
    with pytest.raises(ConfigError, match="vowels"):
        longrm.load("baseline:vowels")
    load_plugins.cache_clear()  # as in a new process
    assert longrm.load("baseline:vowels").score("?", ["aerie", "sky"]) == [4.0, 0.0]


def test_a_plugin_that_fails_is_named(install_plugin):
    site = install_plugin("no_such_module:register")
    failed = command_line(site, "recipes")
    assert failed.returncode == 1
    assert failed.stderr.startswith("longrm: error: the plug-in 'example' (no_such_module:register)")
    assert command_line(site, "--help").returncode == 0


def test_a_baseline_is_in_summary_and_report(example_plugin, evaluated):
    cells = [{"lengths": [64], "groups": 8, "per_group": 2}]
    summary, page = evaluated("baseline:longest", judging={"baselines": ["vowels"]}, cells=cells)
    assert [*summary["baselines"]] == ["vowels"]
    assert "over vowels" in page


def test_a_benchmark_and_its_rule_are_in_summary_and_report(example_plugin, evaluated, put):
    rows = [{"riddle": f"What is {n}?", "right": f"the number {n}", "wrong": "a"} for n in range(8)]
    riddles = put("riddles.jsonl", *rows, {**rows[0], "stale": True})
    summary, page = evaluated("baseline:longest", f"riddles:{riddles}")
    assert summary["riddles_rule"]["overall_percent"] == 100
    assert summary["audit"]["findings"]["stale_riddles"]["count"] == 1
    for shown in (
        "The riddlers&#39; own rule",
        "Solved riddles count one each.",
        "well-known riddles; left out",
    ):
        assert shown in page


def test_a_metric_a_section_and_a_world_are_in_all_outputs(example_plugin, evaluated, tmp_path):
    cells = [{"worlds": ["nicknames"], "lengths": [64, 128], "depths": [0.5], "groups": 6, "per_group": 2}]
    summary, page = evaluated(cells=cells)
    assert summary["complete"]
    measured = summary["metrics"]["by_length"]["128"]["beaten"]
    assert measured["n"] == 12
    assert measured["low"] <= measured["value"] <= measured["high"]
    assert summary["chance"]["beaten"] == 0.5
    jsonschema.Draft202012Validator(summary_schema()).validate(summary)
    rows = list(csv.DictReader((tmp_path / "run" / "results.csv").read_text().splitlines()))
    assert [row["source"] for row in rows] == ["this run, pair_accuracy", "this run, beaten"]
    assert rows[1]["avg"] == f"{summary['metrics']['overall']['beaten']['value']:.1f}"
    assert re.search(r"<th scope=\"row\">.*?responses beaten", page)
    assert (
        EvaluationSettings.resolve(
            None, {"metric_for_best_model": "beaten", "settings": {}}
        ).metric_for_best_model
        == "beaten"
    )
    assert '<h2 id="sizes">Sizes</h2>' in page
    assert '<a href="#sizes">Sizes</a>' in page
    assert '<dt id="term-groups">groups</dt><dd>Each group shares a context.</dd>' in page


def test_a_world_in_prose_is_asked_in_a_kind_of_text(example_plugin, evaluated, tmp_path):
    for row in generate(WorldPlan("hats", 900, 4, texts=("diary",)), 4, prose_tokenizer()):
        text = message_text(row.prompt[0])
        best = message_text(row.responses[row.best_first()[0]][0])
        assert all(f"{claim}." in text for claim in best.rstrip(".").split(". "))
        assert "near the" in text
    prose_tokenizer().save(tmp_path / "tokenizer")
    cells = [{"lengths": [256, 512], "groups": 8, "per_group": 2, "worlds": ["hats", "single-fact"]}]
    summary, _ = evaluated(tokenizer=str(tmp_path / "tokenizer"), texts=["diary", "mail"], cells=cells)
    assert summary["metrics"]["overall"]["pair_accuracy"]["n"] == 64
    assert {*summary["metrics"]["by_task"]} == {"hats", "single-fact"}


def test_a_wire_format_is_accepted_and_documented(example_plugin):
    built = build_app(ServeSettings(model="baseline:longest"), lambda: longrm.load("baseline:longest"))
    with TestClient(built, "http://127.0.0.1") as client:
        sent = {"question": "Who?", "answers": ["They.", "We all."]}
        expected = longrm.load("baseline:longest").score("Who?", ["They.", "We all."])
        assert client.post("/grade", json=sent).json() == {"grades": expected, "by": "baseline:longest"}
        assert client.post("/grade", json={"question": "Who?", "answers": []}).status_code == 400
        documented = client.get("/openapi.json").json()["paths"]["/grade"]["post"]
        assert "grades" in documented["summary"]
        assert client.get("/info").json()["formats"]["grades"] == ["/grade"]
