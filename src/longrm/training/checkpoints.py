"""Checkpoints of a training run: which there are, and the weights in them."""

import pickle
import shutil
from collections.abc import Mapping
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from longrm.errors import RunError
from longrm.modeling.folders import first_line

CHECKPOINTS = "checkpoints"
_WEIGHTS = "trained.safetensors"
_OPTIMIZER, _SCHEDULE = "optimizer.pt", "scheduler.pt"  # as Trainer calls them


def saved_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a run folder, rising."""
    place = folder / CHECKPOINTS
    names = [entry.name for entry in place.iterdir()] if place.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def latest(folder: Path) -> Path | None:
    """The latest checkpoint in a run folder."""
    steps = saved_steps(folder)
    return folder / CHECKPOINTS / str(steps[-1]) if steps else None


def prune(folder: Path, keep: int) -> None:
    """Removes all checkpoints but the latest `keep`."""
    for old in saved_steps(folder)[:-keep]:
        shutil.rmtree(folder / CHECKPOINTS / str(old))


def write_weights(model: Any, folder: Path) -> None:
    """Writes what is trained of a model, every bit of it: frozen weights are those of the start."""
    save_file({name: weight.detach() for name, weight in _trained(model).items()}, folder / _WEIGHTS)


def read_weights(model: Any, folder: Path) -> None:
    """Reads into a model, which is what it was at the start of training, what was trained of it.

    Raises:
        RunError: The weights cannot be read, or are those of another model.
    """
    path = folder / _WEIGHTS
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{path} cannot be read ({error}); remove {folder} to continue from what lies before it"
        ) from None
    trained = _trained(model)
    if {name: weight.shape for name, weight in stored.items()} != {
        name: weight.shape for name, weight in trained.items()
    }:
        raise RunError(f"{path} holds the weights of another model; take another --out")
    with torch.no_grad():
        for name, weight in trained.items():
            weight.copy_(stored[name])


def write_optimizer(state: Mapping[str, Any], schedule: Mapping[str, Any], folder: Path) -> None:
    """Writes the states of the optimizer and of its schedule."""
    torch.save(state, folder / _OPTIMIZER)
    torch.save(schedule, folder / _SCHEDULE)


def read_optimizer(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads the states of the optimizer and of its schedule.

    Raises:
        RunError: They cannot be read.
    """
    try:
        # Mapped: the processes of a machine read the same pages.
        state = torch.load(folder / _OPTIMIZER, map_location="cpu", weights_only=True, mmap=True)
        schedule = torch.load(folder / _SCHEDULE, weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise RunError(
            f"{folder} cannot be read ({first_line(error)}); remove it to continue from what lies before it"
        ) from None
    # Trainings of adapters once kept a group for weights without decay, which was empty.
    kept = [bool(group["params"]) for group in state["param_groups"]]
    state["param_groups"] = list(compress(state["param_groups"], kept))
    for name in ("base_lrs", "_last_lr", "lr_lambdas"):
        schedule[name] = list(compress(schedule[name], kept))
    return state, schedule


def _trained(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
