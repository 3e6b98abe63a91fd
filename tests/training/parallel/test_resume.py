"""Trainings that one process began, continued by three: a number that divides few of a model's weights."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from longrm.training.train import train

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

LAYOUTS = {
    "sharded": {"shard": True},
    "sharded, kept for the backward pass": {"shard": True, "reshard_after_forward": False},
    "sharded, offloaded": {"shard": True, "offload": True},
}
MODELS = {
    "linear head": {},
    "mlp head": {"model__head": "mlp"},
    "mlp head, lora": {"model__head": "mlp", "model__lora": {"r": 2, "lora_alpha": 4.0}},
}


@pytest.fixture(
    scope="module",
    params=["linear head", *(pytest.param(name, marks=pytest.mark.full) for name in list(MODELS)[1:])],
)
def begun(recipe, tmp_path_factory, request):
    """The settings of a training of four steps, and its folder after the last step and as it was after the second."""
    folder = tmp_path_factory.mktemp("begun")
    model = MODELS[request.param]

    def settings(**changes):
        return recipe(
            "bradley_terry", optimizer__max_steps=4, checkpoint={"save_steps": 2}, **model, **changes
        )

    train(settings(), folder / "whole")
    shutil.copytree(folder / "whole", folder / "cut")
    for name in ("model", "checkpoints/4"):
        shutil.rmtree(folder / "cut" / name)
    (folder / "cut/summary.json").unlink()
    return settings, folder / "whole", folder / "cut"


def test_three_processes_continue_what_one_began(begun, train_all, stored, tmp_path):
    settings, whole, cut = begun
    for name in LAYOUTS:
        shutil.copytree(cut, tmp_path / name)
    train_all(3, [{"recipe": settings(parallel=LAYOUTS[name]), "out": tmp_path / name} for name in LAYOUTS])
    for name in LAYOUTS:
        assert_close(*(weights_of(folder) for folder in (tmp_path / name, whole)))
        assert_close(*(stored(folder / "checkpoints/4") for folder in (tmp_path / name, whole)))


def weights_of(folder):
    (path,) = (folder / "model").glob("*.safetensors")
    return load_file(path)


def assert_close(found, truth):
    assert found.keys() == truth.keys()
    for name, value in truth.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-3, atol=1e-4 * float(value.abs().max()), msg=name
        )
