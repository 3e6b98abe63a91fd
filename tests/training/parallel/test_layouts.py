"""Whole trainings under every layout: as one process, evaluated as one, and killed and continued on this or another."""

import importlib.util
import shutil

import pytest
import torch
from safetensors.torch import load_file

from longrm.modeling.folders import ADAPTER_HEAD
from longrm.runs.logs import Log
from longrm.runs.progress import no_progress
from longrm.runs.records import EvaluationRecord, JudgmentRecord, StepRecord
from longrm.training.checkpoints import saved_steps
from longrm.training.evaluations import evaluator_of
from longrm.training.train import train

TOLERANCE = (
    1e-4  # of losses, norms of gradients and weights: ten steps of AdamW make much of small differences
)
# Adapters begin at zero, where AdamW makes steps of the rounding of gradients: one process that cuts a step into other
# micro-batches is 1.3e-4 from itself with them, and 4e-2 in bfloat16, where losses and norms are within 3e-3.
TOLERANCES = {"lora": 1e-3, "mlp head, lora": 1e-3, "lora, 4 bits": 1e-3, "lora, bfloat16": 1.2e-1}
COARSE = 1e-2
LAYOUTS = {
    "sequence": (2, {"sequence_parallel_size": 2}),
    "data": (2, {}),
    "data x sequence": (4, {"sequence_parallel_size": 2}),
    "sharded": (2, {"shard": True}),
    "sharded, kept for the backward pass": (2, {"shard": True, "reshard_after_forward": False}),
    "sharded, offloaded": (2, {"shard": True, "offload": True}),
    "sharded x sequence": (2, {"shard": True, "sequence_parallel_size": 2}),
    "sharded x data x sequence": (4, {"shard": True, "sequence_parallel_size": 2}),
}
LORA = {"r": 2, "lora_alpha": 4.0}
EVALUATION = {
    "eval_steps": 5,
    "load_best_model_at_end": True,
    "settings": {
        "bench": "probe",
        "probe": {"cells": [{"lengths": [64], "groups": 4, "per_group": 2}]},
        "judging": {"resamples": 100},
        "judge": {"max_tokens": 4, "retries": 0, "format": "pointwise"},
    },
}
QUANTIZED = {}
if importlib.util.find_spec("bitsandbytes") is not None:
    QUANTIZED["lora, 4 bits"] = ("preference", {"model__lora": LORA | {"load_in_4bit": True}})
WAYS = {
    "sft": ("sft", {}),
    "logo": ("preference", {}),
    "simpo": ("preference", {"loss__loss_type": "simpo", "loss__label_smoothing": 0.1}),
    "dpo": ("preference", {"loss__loss_type": "dpo"}),
    "bradley_terry": ("bradley_terry", {}),
    "centered": ("bradley_terry", {"loss__center_rewards_coefficient": 0.1}),
    "hardest": ("bradley_terry", {"loss__loss_type": "hardest"}),
    "mean_rejected": ("bradley_terry", {"loss__loss_type": "mean_rejected"}),
    "plackett_luce": ("bradley_terry", {"loss__loss_type": "plackett_luce"}),
    "prm": ("prm", {}),
    "step_pairs": ("prm", {"loss__loss_type": "step_pairs"}),
    "mlp head": ("bradley_terry", {"model__head": "mlp"}),
    "lora": ("bradley_terry", {"model__lora": LORA}),
    "mlp head, lora": ("bradley_terry", {"model__head": "mlp", "model__lora": LORA}),
    "lora, bfloat16": ("preference", {"model__lora": LORA, "model__bf16": True}),
    "recomputed": ("preference", {"memory__gradient_checkpointing": True, "memory__tiled_mlp": True}),
    **QUANTIZED,
    "evaluated": ("bradley_terry", {"evaluation": EVALUATION}),
    "evaluated, writes": ("preference", {"evaluation": EVALUATION}),
}
ALL, FEW = tuple(WAYS), ("logo", "prm", "mlp head, lora", "evaluated")
CASES = [  # all of them need more time than a plain run has
    pytest.param("sequence", FEW, id="sequence, few"),
    pytest.param("sharded", FEW, id="sharded, few"),
    *(pytest.param(name, ALL, id=name, marks=pytest.mark.full) for name in LAYOUTS),
]
SAVING = {"save_steps": 3}
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(1800)]  # four processes on two busy processors


@pytest.fixture(scope="module")
def settings(recipe):
    """Ten steps of five examples each, in micro-batches of two or three."""

    def make(way, **changes):
        objective, own = WAYS[way]
        told = {"optimizer__max_steps": 10, "data__per_step": 5, "memory__max_tokens_per_microbatch": 300}
        return recipe(objective, **told, **own, **changes)

    return make


@pytest.fixture(scope="module")
def truth(settings, tmp_path_factory):
    """The folders of the trainings by one process."""
    folder = tmp_path_factory.mktemp("one")
    for way in WAYS:
        train_alone(settings(way), folder / way)
    return folder


@pytest.fixture(scope="module")
def several(settings, train_all, tmp_path_factory):
    """Trains under a layout in one spawned group: some of the ways, or all and then one that is killed."""
    known = {}

    def folder_of(name, ways):
        count, parallel = LAYOUTS[name]
        if (name, ways) in known:
            return known[name, ways]
        folder = known[name, ways] = tmp_path_factory.mktemp("several")
        entries = [{"recipe": settings(way, parallel=parallel), "out": folder / way} for way in ways]
        if ways == ALL:
            saving = settings("bradley_terry", parallel=parallel, checkpoint=SAVING)
            entries.append({"recipe": saving, "out": folder / "saving"})
            entries.append({"recipe": saving, "out": folder / "killed", "killed": 5})
        ends = [-9] + [1] * (count - 1) if ways == ALL else None
        outputs = train_all(count, entries, ends=ends)
        if ways == ALL:
            assert all("another process of this run ended" in output for output in outputs[1:]), outputs
        return folder

    return folder_of


def train_alone(settings, out):
    evaluator = evaluator_of(settings.evaluation, no_progress) if settings.evaluation else None
    return train(settings, out, evaluator=evaluator)


def weights_of(out):
    (path,) = (out / "model").glob("*.safetensors")
    return load_file(path)


def steps_of(out):
    return list(Log(out / "steps.jsonl", StepRecord))


def relative(found, truth):
    return float((found - truth).abs().max() / truth.abs().max())


def figures_of(out):
    return {
        name: torch.tensor([getattr(step, name) for step in steps_of(out)], dtype=torch.float64)
        for name in ("loss", "grad_norm")
    }


def farthest(found, truth):
    assert {name: value.shape for name, value in found.items()} == {k: v.shape for k, v in truth.items()}
    return max(relative(found[name].double(), truth[name].double()) for name in truth)


def deviation(found, truth):
    """How far a training is from another, in any of its losses, norms of gradients and weights."""
    return max(farthest(read(found), read(truth)) for read in (figures_of, weights_of))


def cut_after(step, run_folder, to):
    """A run as it was after a checkpoint."""
    shutil.copytree(run_folder, to)
    shutil.rmtree(to / "model")
    (to / "summary.json").unlink()
    for entry in (to / "checkpoints").iterdir():
        if int(entry.name) > step:
            shutil.rmtree(entry)


@pytest.mark.parametrize(("name", "ways"), CASES)
def test_ten_steps_are_those_of_one_process(several, truth, name, ways):
    folder = several(name, ways)
    found = {way: deviation(folder / way, truth / way) for way in ways}
    print(name, found)
    assert all(found[way] < TOLERANCES.get(way, TOLERANCE) for way in ways), found
    assert all(len(steps_of(folder / way)) == 10 for way in ways)
    assert weights_of(folder / "mlp head, lora")[ADAPTER_HEAD].dtype == torch.float32
    coarse = "lora, bfloat16"
    if coarse in ways:
        assert farthest(figures_of(folder / coarse), figures_of(truth / coarse)) < COARSE


@pytest.mark.parametrize(("name", "ways"), CASES)
def test_evaluations_are_those_of_one_process(several, truth, name, ways):
    folder = several(name, ways)
    for way in (way for way in ways if "evaluated" in way):
        found, other = (list(Log(f / way / "evaluations.jsonl", EvaluationRecord)) for f in (folder, truth))
        assert found == other
        assert [record.step for record in found] == [5, 10]
        kept = {(where / way / "best/config.json").exists() for where in (folder, truth)}
        assert kept == {found[-1].value is not None}
    scores = [
        torch.tensor(
            [one.scores for one in Log(f / "evaluated/evaluations/10/judgments.jsonl", JudgmentRecord)]
        )
        for f in (folder, truth)
    ]
    assert relative(*scores) < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_killed_training_continues_on_this_layout_and_on_another(
    several, settings, train_all, tmp_path, name
):
    count, parallel = LAYOUTS[name]
    folder = several(name, ALL)
    recipe = settings("bradley_terry", parallel=parallel, checkpoint=SAVING)
    assert saved_steps(folder / "killed") == [3]
    shutil.copytree(folder / "killed", tmp_path / "same")
    shutil.copytree(folder / "killed", tmp_path / "alone")
    train(settings("bradley_terry", checkpoint=SAVING), tmp_path / "alone")
    cut_after(3, tmp_path / "alone", tmp_path / "back")
    train_all(count, [{"recipe": recipe, "out": tmp_path / name} for name in ("same", "back")])
    assert steps_of(tmp_path / "same") == steps_of(folder / "saving")
    found, truth = weights_of(tmp_path / "same"), weights_of(folder / "saving")
    assert all(torch.equal(found[name], truth[name]) for name in truth)
    assert deviation(tmp_path / "alone", folder / "saving") < TOLERANCE
    assert deviation(tmp_path / "back", folder / "saving") < TOLERANCE


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("sequence", "no exchange"),
        ("data", "no reduction"),
        ("data", "the same rows"),
        ("sharded", "the same rows"),
        ("sharded, kept for the backward pass", "the same rows"),
    ],
)
def test_a_fault_is_seen(settings, truth, train_all, tmp_path, name, fault):
    count, parallel = LAYOUTS[name]
    ways = [way for way in WAYS if "evaluated" not in way and "bfloat16" not in way]
    train_all(
        count,
        [{"recipe": settings(way, parallel=parallel), "out": tmp_path / way, "fault": fault} for way in ways],
    )
    found = {way: deviation(tmp_path / way, truth / way) for way in ways}
    print(found)
    assert all(found[way] > 100 * TOLERANCES.get(way, TOLERANCE) for way in ways), found
