"""Optimizers of a recipe: what is refused before any work, and 8-bit moments where bitsandbytes is installed."""

import importlib.util

import pytest
import torch

from longrm.errors import ConfigError
from longrm.training.train import train

IS_THERE = importlib.util.find_spec("bitsandbytes") is not None


@pytest.mark.parametrize("kind", ["adamw_8bit", "paged_adamw_8bit"])
def test_without_its_library_it_is_refused_before_any_work(tmp_path, recipe, monkeypatch, kind):
    monkeypatch.setattr("longrm.training.train.is_bitsandbytes_available", lambda: False)
    with pytest.raises(ConfigError, match=rf'optimizer.kind = "{kind}" needs bitsandbytes'):
        train(recipe("bradley_terry", optimizer__kind=kind), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_paging_without_a_gpu_is_refused(tmp_path, recipe, monkeypatch):
    monkeypatch.setattr("longrm.training.train.is_bitsandbytes_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="needs a GPU"):
        train(recipe("bradley_terry", optimizer__kind="paged_adamw_8bit"), tmp_path / "run")


def _tensors(tree):
    for value in tree.values():
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _tensors(value)


@pytest.mark.skipif(not IS_THERE, reason="bitsandbytes is not installed")
def test_moments_in_8_bits_train_and_continue_to_the_same_bytes(tmp_path, recipe, stop, results_of, steps_of):
    # A matrix of 64 x 64 is the smallest that has its moments in 8 bits.
    model = {"layers": 2, "hidden": 64, "heads": 2, "head_dim": 32, "init_std": 0.1}
    settings = {
        kind: recipe("bradley_terry", model__new=model, optimizer__kind=kind)
        for kind in ("adamw", "adamw_8bit")
    }
    stopped, at = stop
    train(settings["adamw"], tmp_path / "fp32")
    train(settings["adamw_8bit"], tmp_path / "whole")
    with pytest.raises(stopped):
        train(settings["adamw_8bit"], tmp_path / "cut", progress=at(5))
    state = torch.load(tmp_path / "cut/checkpoints/3/optimizer.pt", weights_only=True)["state"]
    dtypes = [values.dtype for one in state.values() for values in _tensors(one)]
    assert torch.uint8 in dtypes
    train(settings["adamw_8bit"], tmp_path / "cut")
    assert results_of(tmp_path / "cut") == results_of(tmp_path / "whole")
    exact, rounded = ([step.loss for step in steps_of(tmp_path / name)] for name in ("fp32", "whole"))
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.05)
