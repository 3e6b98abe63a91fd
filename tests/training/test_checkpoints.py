"""The states in a checkpoint: those that earlier versions wrote are read, and damaged ones refused."""

import copy

import pytest
import torch

from longrm.errors import RunError
from longrm.training.run import run


def test_a_checkpoint_with_an_empty_group_is_continued(tmp_path, recipe, stop, results_of):
    settings, (stopped, at) = recipe("bradley_terry", model__lora={"rank": 2, "alpha": 4.0}), stop
    run(settings, tmp_path / "whole")
    with pytest.raises(stopped):
        run(settings, tmp_path / "cut", progress=at(5))
    checkpoint = tmp_path / "cut/checkpoints/3"
    optimizer = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    (group,) = optimizer["param_groups"]
    torch.save(
        optimizer | {"param_groups": [group, copy.deepcopy(group) | {"params": []}]},
        checkpoint / "optimizer.pt",
    )
    schedule = torch.load(checkpoint / "scheduler.pt", weights_only=True)
    doubled = {name: schedule[name] * 2 for name in ("base_lrs", "_last_lr", "lr_lambdas")}
    torch.save(schedule | doubled, checkpoint / "scheduler.pt")
    run(settings, tmp_path / "cut")
    assert results_of(tmp_path / "cut") == results_of(tmp_path / "whole")


def test_a_damaged_state_is_refused(tmp_path, recipe, stop):
    settings, (stopped, at) = recipe("bradley_terry"), stop
    with pytest.raises(stopped):
        run(settings, tmp_path / "run", progress=at(5))
    (tmp_path / "run/checkpoints/3/optimizer.pt").write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"checkpoints/3 cannot be read .*; remove it to continue"):
        run(settings, tmp_path / "run")
