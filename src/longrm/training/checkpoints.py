"""Checkpoints of a training run: which there are, and the weights in them."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from longrm.errors import RunError

CHECKPOINTS = "checkpoints"
_WEIGHTS = "trained.safetensors"


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


def _trained(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
