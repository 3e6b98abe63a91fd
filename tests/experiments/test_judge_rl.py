"""The control of the judges' experiments: rewards that say nothing about the judgments."""

import importlib.util
import sys
from pathlib import Path

import pytest

from longrm.reward_models.verdict_rewards import VerdictReward

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def judge_rl(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    monkeypatch.syspath_prepend(str(EXPERIMENTS.parent / "perf"))
    spec = importlib.util.spec_from_file_location("judge_rl", EXPERIMENTS / "judge_rl.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "judge_rl", module)
    spec.loader.exec_module(module)
    return module


def test_shuffled_rewards_are_those_of_other_judgments(judge_rl):
    rows = [{"id": "one", "format": "pairwise", "gold": "A", "order": [0, 1]}] * 40
    texts = [f"{number}. [[{'AB'[number % 2]}]]" for number in range(40)]
    reward = VerdictReward({"correct": 1.0})
    plain = reward.judge(rows, texts, [5] * 40)
    assert [one.reward for one in plain] == [1.0, 0.0] * 20
    with judge_rl.shuffled_rewards():
        shuffled = VerdictReward({"correct": 1.0}).judge(rows, texts, [5] * 40)
    assert [one.verdict for one in shuffled] == [one.verdict for one in plain]
    assert sum(one.reward for one in shuffled) == 20
    right = sum(one.reward for one in shuffled[::2])
    assert 4 < right < 16
    assert reward.judge(rows, texts, [5] * 40) == plain
