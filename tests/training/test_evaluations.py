"""Evaluation while training goes on: when, of what, and which model is kept."""

import json

import pytest
import torch
from safetensors.torch import load_file

from longrm.errors import ConfigError, DataError, TrainingError
from longrm.evaluation.evaluate import Evaluation
from longrm.evaluation.evaluate import run_evaluation as evaluate
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.loading import LanguageModel
from longrm.reward_models import packed
from longrm.runs.progress import no_progress
from longrm.training.checkpoints import saved_steps
from longrm.training.evaluations import evaluator_of
from longrm.training.settings import EvaluationSettings
from longrm.training.train import train


class Judge:
    """An evaluator with given values, which records the weights that it gets."""

    def __init__(self, values, *, broken_at=None):
        self.values = values
        self.broken_at = broken_at
        self.steps = []
        self.weights = {}

    def __call__(self, trainee, folder):
        step = int(folder.name)
        self.steps.append(step)
        torch.rand(7)
        if self.broken_at == step:
            raise KeyboardInterrupt
        trainee.model.eval()
        self.weights[step] = {name: w.detach().clone() for name, w in trainee.model.state_dict().items()}
        return {"metrics": {"overall": {"pair_accuracy": {"value": self.values[step]}}}}


EVALUATION = {"eval_steps": 2, "load_best_model_at_end": True, "settings": {"bench": "probe"}}
VALUES = {2: 0.5, 4: 0.9, 6: None, 7: 0.9}


def settings_of(recipe, **changes):
    return recipe("bradley_terry", evaluation=EVALUATION, optimizer__max_steps=7, **changes)


def test_the_best_model_is_kept_and_said(tmp_path, recipe):
    judge = Judge(VALUES)
    summary = train(settings_of(recipe), tmp_path / "run", evaluator=judge)
    assert judge.steps == [2, 4, 6, 7]
    values = {"2": 0.5, "4": 0.9, "6": None, "7": 0.9}
    assert summary["evaluations"] == {"metric": "pair_accuracy", "values": values, "best": 4}
    assert summary["model_step"] == 4
    kept = load_file(tmp_path / "run/model/model.safetensors")
    assert all(torch.equal(weight, judge.weights[4][name]) for name, weight in kept.items())
    assert not all(torch.equal(weight, judge.weights[7][name]) for name, weight in kept.items())


def test_the_last_model_is_kept_where_the_best_is_not_asked_for(tmp_path, recipe):
    judge = Judge(VALUES)
    settings = recipe(
        "bradley_terry", evaluation={**EVALUATION, "load_best_model_at_end": False}, optimizer__max_steps=7
    )
    summary = train(settings, tmp_path / "run", evaluator=judge)
    assert (summary["evaluations"]["best"], summary["model_step"]) == (4, 7)
    kept = load_file(tmp_path / "run/model/model.safetensors")
    assert all(torch.equal(weight, judge.weights[7][name]) for name, weight in kept.items())
    assert not (tmp_path / "run/best").exists()


def test_evaluations_disturb_nothing(tmp_path, recipe, results_of):
    """Neither the steps nor the random state, though the evaluator draws."""
    plain = recipe("bradley_terry", optimizer__max_steps=7)
    judged = recipe(
        "bradley_terry", optimizer__max_steps=7, evaluation={**EVALUATION, "load_best_model_at_end": False}
    )
    train(plain, tmp_path / "plain")
    train(judged, tmp_path / "judged", evaluator=Judge(VALUES))
    one, other = (
        {name: held for name, held in results_of(tmp_path / run_).items() if "summary" not in name}
        for run_ in ("plain", "judged")
    )
    other.pop("evaluations.jsonl")
    assert one == other
    states = [torch.load(tmp_path / f / "checkpoints/7/random_0.pt") for f in ("plain", "judged")]
    assert torch.equal(states[0]["cpu"], states[1]["cpu"])


@pytest.mark.parametrize("broken_at", [2, 4, 7])
def test_a_run_killed_in_an_evaluation_repeats_no_other(tmp_path, recipe, results_of, broken_at):
    settings = settings_of(recipe)
    whole = train(settings, tmp_path / "whole", evaluator=Judge(VALUES))
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "cut", evaluator=Judge(VALUES, broken_at=broken_at))
    assert saved_steps(tmp_path / "cut")[-1] == broken_at, "an evaluation is of what a checkpoint holds"
    judge = Judge(VALUES)
    assert train(settings, tmp_path / "cut", evaluator=judge) == whole
    assert judge.steps == [step for step in VALUES if step >= broken_at]
    assert results_of(tmp_path / "cut") == results_of(tmp_path / "whole")


def test_evaluations_of_weights_that_are_lost_are_made_anew(tmp_path, recipe, stop):
    settings, (stopped, at) = settings_of(recipe), stop
    with pytest.raises(stopped):
        train(settings, tmp_path / "run", evaluator=Judge(VALUES), progress=at(5))
    (tmp_path / "run/checkpoints/4").rename(tmp_path / "lost")
    (tmp_path / "run/evaluations/4").mkdir(parents=True)
    judge = Judge(VALUES)
    train(settings, tmp_path / "run", evaluator=judge)
    assert judge.steps == [4, 6, 7]
    assert not (tmp_path / "run/evaluations/4").exists()


def failing(error):
    def evaluator(trainee, folder):
        raise error

    return evaluator


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")], ids=["CPU", "CUDA"]
)
def test_out_of_memory_in_an_evaluation_is_reported_as_such(tmp_path, recipe, error):
    with pytest.raises(TrainingError) as caught:
        train(settings_of(recipe), tmp_path / "run", evaluator=failing(error))
    assert "evaluation after step 2" in str(caught.value)
    assert saved_steps(tmp_path / "run") == [2]
    assert train(settings_of(recipe), tmp_path / "run", evaluator=Judge(VALUES))["steps"] == 7


@pytest.mark.parametrize("room", [0, 100])
def test_memory_that_runs_out_over_some_comparisons_leaves_the_others(
    tmp_path, recipe, monkeypatch, caplog, room
):
    """Of an evaluation; training itself has room."""
    real = packed.scores

    def scores(model, packed):
        if packed.layout.tokens > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(model, packed)

    monkeypatch.setattr(packed, "scores", scores)
    probe = {"cells": [{"lengths": [64, 256], "groups": 4, "per_group": 1}]}
    evaluation = {"eval_steps": 4, "settings": SETTINGS | {"probe": probe}}
    evaluator = evaluator_of(EvaluationSettings.model_validate(evaluation), no_progress)
    settings = recipe("bradley_terry", evaluation=evaluation, optimizer__max_steps=4)
    if not room:
        with pytest.raises(DataError, match=r"evaluation after step 4: "):
            train(settings, tmp_path / "run", evaluator=evaluator)
        return
    summary = train(settings, tmp_path / "run", evaluator=evaluator)
    assert summary["evaluations"]["values"]["4"] is not None
    (line,) = [text for text in caplog.messages if "ended in errors" in text]
    assert line.startswith("step 4: 4 of 8 comparisons ended in errors")


SETTINGS = {
    "bench": "probe",
    "probe": {"cells": [{"lengths": [64], "groups": 4, "per_group": 2}]},
    "judging": {"resamples": 100},
    "judge": {"max_tokens": 4, "retries": 0, "format": "pointwise"},
}


ROUNDING = 1e-5
"""By how much scores may differ where the same weights lie elsewhere in memory: trained, and mapped from a file."""


def about(value, rounding=ROUNDING):
    """The same, but for the rounding of its numbers."""
    if isinstance(value, dict):
        return {key: about(one, rounding) for key, one in value.items()}
    if isinstance(value, list):
        return [about(one, rounding) for one in value]
    return pytest.approx(value, rel=0, abs=rounding) if isinstance(value, float) else value


@pytest.mark.parametrize("objective", ["bradley_terry", "preference"])
def test_the_model_in_memory_is_judged_as_the_saved_one(tmp_path, recipe, objective, results_of):
    template = tmp_path / "judge.j2"  # in words that the model knows
    template.write_text("{{ conversation }} {{ response }}")
    settings = SETTINGS | {"judge": SETTINGS["judge"] | {"template": str(template)}}
    evaluation = {"eval_steps": 4, "settings": settings}
    seen = []
    inner = evaluator_of(EvaluationSettings.model_validate(evaluation), no_progress)

    def evaluator(trainee, folder):
        summary = inner(trainee, folder)
        seen.append((isinstance(trainee, LanguageModel), trainee.model.config._attn_implementation))
        return summary

    judged = recipe(objective, evaluation=evaluation)
    train(judged, tmp_path / "run", evaluator=evaluator)
    assert seen == [(objective == "preference", SHARED_PREFIX)] * 2
    in_memory = json.loads((tmp_path / "run/evaluations/8/summary.json").read_text())
    assert in_memory["model"] == "run at step 8"
    saved = evaluate(
        Evaluation.model_validate(settings | {"model": str(tmp_path / "run/model")}), tmp_path / "saved"
    ).to_dict()
    saved["model"] = in_memory["model"]
    saved["measured"]["tokenizer"] = in_memory["measured"]["tokenizer"]  # the same one, by another name
    assert saved == about(in_memory)
    here, there, earlier = (
        [json.loads(line) for line in (tmp_path / at / "judgments.jsonl").read_text().splitlines()]
        for at in ("run/evaluations/8", "saved", "run/evaluations/4")
    )
    assert there == about(here)
    assert objective == "preference" or earlier != about(here, 100 * ROUNDING), (
        "other weights judge otherwise"
    )
    train(recipe(objective), tmp_path / "plain")
    assert results_of(tmp_path / "plain")["steps.jsonl"] == results_of(tmp_path / "run")["steps.jsonl"]


def test_a_metric_that_the_benchmark_lacks_is_refused_before_training():
    probe = {"cells": [{"lengths": [64], "groups": 2}]}
    told = {"metric_for_best_model": "top1", "settings": {"bench": "probe", "probe": probe}}
    with pytest.raises(ConfigError, match="evaluation.metric_for_best_model: 'top1'"):
        evaluator_of(EvaluationSettings.model_validate(told), no_progress)
