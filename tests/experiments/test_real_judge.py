"""experiments/real_judge.py with a tiny model and trainings of two steps."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from longrm.runs.logs import GOLD, JUDGMENTS, Log
from longrm.runs.records import GoldRecord, JudgmentRecord
from longrm.types import Outcome, Trial

pytestmark = pytest.mark.full

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXPERIMENTS)
        yield importlib.import_module("real_judge")
    for name in ("real_judge", "recording"):
        sys.modules.pop(name, None)


def test_verdicts_are_counted_by_trial(script, tmp_path):
    def trial(order, *scores):
        return Trial(order=order, outcome=Outcome.ANSWERED if scores else Outcome.UNPARSED, scores=scores)

    judged = {
        "right": (trial((0, 1), 0.0, 1.0), trial((1, 0), 0.0, 1.0)),
        "always A": (trial((0, 1), 1.0, 0.0), trial((1, 0), 0.0, 1.0)),
        "tie, then nothing": (trial((0, 1), 0.5, 0.5), trial((1, 0))),
        "nothing": (trial((0, 1)), trial((1, 0))),
    }
    with Log(tmp_path / JUDGMENTS, JudgmentRecord) as log, Log(tmp_path / GOLD, GoldRecord) as gold:
        for name, trials in judged.items():
            combined = min(trials, key=lambda trial: trial.outcome == Outcome.ANSWERED)
            log.append(JudgmentRecord.of(combined, id=name, group=name, length=256, trials=trials))
            gold.append(GoldRecord(name, ranks=(2, 1)))
    counts = script.verdicts(tmp_path, 256)
    assert counts == {"verdicts": 8, "parsed": 5, "right": 3, "for_the_first": 3, "same_winner": 1}
    assert script.verdicts(tmp_path, 512)["verdicts"] == 0


def test_a_model_is_trained_in_two_stages_and_judged(script, model, tmp_path, call, monkeypatch, capsys):
    def run(*arguments):
        flags = ["--model", model, "--out", tmp_path / "out", "--threads", "1"]
        call(script.main, *arguments, *flags)

    recipes = tmp_path / "recipes"
    recipes.mkdir()
    for stage, rest in {
        "sft": "data.per_step = 2",
        "grpo": """
            data.world = {name = "single-fact", texts = ["mail"], responses_per_step = 2}
            curriculum.lengths = [400]
            rollouts = {num_generations = 2, max_completion_length = 4}""",
    }.items():
        recipe = f'objective = "{stage}"\nmodel.lora = {{r = 2}}\noptimizer.max_steps = 2\nplateau_steps = 0\n{rest}'
        (recipes / f"judge_{stage}.toml").write_text(recipe)
    monkeypatch.setattr(script, "RECIPES", recipes)
    monkeypatch.setattr(script, "SHORT", 400)
    run("data", "--demonstrations", 4)
    run("sft")
    run("grpo")
    run("judge", "grpo", "--judged", tmp_path / "out" / "grpo" / "merged", "--lengths", 400, "--contexts", 1)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["by_length"]["400"]["verdicts"] == 4  # two pairs in both orders
