"""A baseline is added by one function and one entry: it judges, and a report compares models with it."""

import pytest

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


def test_an_added_baseline_is_in_summary_and_report(evaluated):
    cells = [{"lengths": [64], "groups": 8, "per_group": 2}]
    summary, page = evaluated("baseline:longest", judging={"baselines": ["vowels"]}, cells=cells)
    assert [*summary["baselines"]] == ["vowels"]
    assert "over vowels" in page
