"""A baseline that is added as one function and one entry is judged beside a model, and shown."""

import pytest

from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.evaluation.summaries import read_summary
from longrm.report import build
from longrm.reward_models import load
from longrm.reward_models.baselines import BASELINES

MOST_VOWELS = """
from longrm.reward_models.baselines import BaselineRule
from longrm.types import text_of


def vowels(query):
    return [float(sum(letter in "aeiou" for letter in text_of(response))) for response in query.responses]


RULE = BaselineRule(vowels)
"""


@pytest.fixture(autouse=True)
def _registered(plugin, monkeypatch):
    monkeypatch.setitem(BASELINES, "vowels", plugin(MOST_VOWELS).RULE)


def test_an_added_baseline_is_a_model_by_its_name():
    assert load("baseline:vowels").score("?", ["aerie", "sky"]) == [4.0, 0.0]


def test_an_added_baseline_stands_in_summary_and_report(tmp_path):
    told = {
        "model": "baseline:longest",
        "bench": "probe",
        "probe": {"cells": [{"lengths": [64], "groups": 8, "per_group": 2}]},
        "judging": {"baselines": ["vowels"], "resamples": 100},
    }
    run_evaluation(Evaluation.model_validate(told), tmp_path / "run")
    assert [*read_summary(tmp_path / "run")["baselines"]] == ["vowels"]
    build([tmp_path / "run"], tmp_path / "report.html")
    assert "over vowels" in (tmp_path / "report.html").read_text()
