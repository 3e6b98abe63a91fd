"""A metric is added by one file and one entry: it is in summary, schema, results.csv, report and settings."""

import csv
import re

import jsonschema
import pytest

from longrm.evaluation.metrics import METRICS
from longrm.evaluation.summary_schema import summary_schema
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
    """The metric, registered."""
    monkeypatch.setitem(METRICS, "beaten", plugin(FILE).BEATEN)


def test_an_added_metric_is_in_all_outputs(beaten, evaluated, tmp_path):
    cells = [{"lengths": [64, 128], "depths": [0.5], "groups": 6, "per_group": 2}]
    summary, page = evaluated(cells=cells)
    measured = summary["metrics"]["by_length"]["128"]["beaten"]
    assert measured["n"] == 12
    assert measured["low"] <= measured["value"] <= measured["high"]
    assert summary["chance"]["beaten"] == 0.5
    jsonschema.Draft202012Validator(summary_schema()).validate(summary)
    rows = list(csv.DictReader((tmp_path / "run" / "results.csv").read_text().splitlines()))
    assert [row["source"] for row in rows] == ["this run, pair_accuracy", "this run, beaten"]
    assert rows[1]["avg"] == f"{summary['metrics']['overall']['beaten']['value']:.1f}"
    assert re.search(r"<th scope=\"row\">.*?responses beaten", page)
    assert EvaluationSettings.resolve(None, {"metric": "beaten", "settings": {}}).metric == "beaten"
