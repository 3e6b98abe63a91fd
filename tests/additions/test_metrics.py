"""A metric is added by one file and one entry: summary, schema, results.csv, report and settings know it at once."""

import csv

import jsonschema
import pytest

from longrm.benchmarks import Probe
from longrm.evaluation.comparison_trials import JudgingSettings
from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.evaluation.metrics import METRICS
from longrm.evaluation.summaries import read_summary, summary_schema
from longrm.report import build
from longrm.training.settings import EvaluationSettings

FILE = '''
from longrm.evaluation.metrics import EvaluationMetric


def beaten(values, ranks):
    """How many responses gold ranks below those judged best."""
    top = [rank for value, rank in zip(values, ranks, strict=True) if value == max(values)]
    worse = [sum(other > rank for other in ranks) for rank in top]
    return sum(worse) / len(worse)


BEATEN = EvaluationMetric(
    "beaten",
    "responses beaten",
    "responses that gold ranks below the one judged best",
    lambda table: table.per_comparison(beaten),
    span=(0.0, 7.0),
    for_pairs=True,
    in_results=True,
)
'''


@pytest.fixture
def beaten(plugin, monkeypatch):
    """The metric of a file outside the package, entered into the registry."""
    monkeypatch.setitem(METRICS, "beaten", plugin(FILE).BEATEN)


def evaluated(out):
    cells = ({"lengths": (64, 128), "depths": (0.5,), "groups": 6, "per_group": 2},)
    settings = Evaluation(
        model="baseline:overlap",
        bench="probe",
        probe=Probe(cells=cells),
        judging=JudgingSettings(resamples=100),
    )
    return run_evaluation(settings, out).to_dict()


def test_a_metric_that_is_entered_runs_to_the_end(beaten, tmp_path):
    summary = evaluated(tmp_path / "run")
    measured = summary["metrics"]["by_length"]["128"]["beaten"]
    assert measured["n"] == 12
    assert measured["low"] <= measured["value"] <= measured["high"]
    assert summary["chance"]["beaten"] == 0.5
    jsonschema.Draft202012Validator(summary_schema()).validate(summary)
    assert read_summary(tmp_path / "run") == summary

    rows = list(csv.DictReader((tmp_path / "run" / "results.csv").read_text().splitlines()))
    assert [row["source"] for row in rows] == ["this run, pair_accuracy", "this run, beaten"]
    assert rows[1]["avg"] == f"{summary['metrics']['overall']['beaten']['value']:.1f}"

    build([tmp_path / "run"], tmp_path / "report.html")
    assert '<th scope="col">responses beaten</th>' in (tmp_path / "report.html").read_text()
    assert EvaluationSettings.resolve(None, {"metric": "beaten", "settings": {}}).metric == "beaten"
