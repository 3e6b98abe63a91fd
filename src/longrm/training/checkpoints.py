"""Checkpoints of a training run: `checkpoints/STEP`, and the logs as they were after that step.

A checkpoint appears in one rename after everything in it is on the disk, so no run resumes from half of one.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from longrm.errors import RunError, first_line
from longrm.modeling.process_group import is_lost_process
from longrm.runs.folder import keep_umask
from longrm.runs.logs import Log
from longrm.runs.records import ContextRecord, StepRecord, TimingRecord
from longrm.runs.scratch import discard, empty_trash, move_in
from longrm.training.distributed import DistributedContext
from longrm.training.zero import Zero, gather_weights

CHECKPOINTS = "checkpoints"
LOGS = STEPS, TIMING, CONTEXTS = "steps.jsonl", "timing.jsonl", "contexts.jsonl"

_KEPT = 2  # checkpoints: the latest, and the one before it in case that cannot be read
_WEIGHTS, _OPTIMIZER, _SCHEDULER = "trained.safetensors", "optimizer.pt", "scheduler.pt"

Logs = tuple[Log[StepRecord], Log[TimingRecord], Log[ContextRecord]]


def saved_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a run folder, ascending."""
    entries = (folder / CHECKPOINTS).glob("*")  # none if the folder does not exist
    return sorted(int(entry.name) for entry in entries if entry.name.isdecimal() and entry.is_dir())


def latest(folder: Path) -> Path | None:
    """The latest checkpoint in a run folder, if there is one."""
    empty_trash(folder / CHECKPOINTS)
    steps = saved_steps(folder)
    return folder / CHECKPOINTS / str(steps[-1]) if steps else None


def save_checkpoint(
    main_folder: Path,
    folder: Path,
    step: int,
    model: Any,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    zero: Zero | None,
    context: DistributedContext,
) -> None:
    """Writes the state after a step to the run folder of the main process; every process takes part.

    Only trained weights are written: frozen ones are those of the initial model. With ZeRO the weights and the
    optimizer state are gathered, so that a checkpoint can be resumed in any layout.
    """
    checkpoints = main_folder / CHECKPOINTS
    scratch = main_folder / ".checkpoint"
    if context.is_main_process:
        shutil.rmtree(scratch, ignore_errors=True)  # left by a run that was killed
        scratch.mkdir()
    context.wait()
    try:
        with gather_weights(model):
            if context.is_main_process:
                weights = {name: weight.detach() for name, weight in trained_weights(model).items()}
                save_file(weights, scratch / _WEIGHTS)
                keep_umask(scratch / _WEIGHTS)
        optimizer_state = zero.state() if zero else optimizer.state_dict()
        # Dropout draws from torch's generators; nothing else in training is random.
        random_states = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            random_states["cuda"] = torch.cuda.get_rng_state()
        torch.save(random_states, scratch / f"random_{context.rank}.pt")
        context.wait()
        if context.is_main_process:
            torch.save(optimizer_state, scratch / _OPTIMIZER)
            torch.save(scheduler.state_dict(), scratch / _SCHEDULER)
            for name in LOGS:
                shutil.copyfile(folder / name, scratch / name)
            checkpoints.mkdir(exist_ok=True)
            move_in(scratch, checkpoints / str(step))
    except (OSError, RuntimeError, SafetensorError) as error:
        if is_lost_process(error):
            raise
        raise RunError(
            f"cannot write a checkpoint to {checkpoints}: {first_line(error)}; free some space and run the same "
            "command again"
        ) from None
    if context.is_main_process:
        for old in saved_steps(main_folder)[:-_KEPT]:
            discard(checkpoints / str(old))
    context.wait()  # no process continues, or ends, before the checkpoint is there


def load_checkpoint(
    checkpoint: Path,
    model: Any,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    zero: Zero | None,
    context: DistributedContext,
) -> None:
    """Loads the state that `save_checkpoint` wrote, except for the weights, which `load_weights` loads before."""
    with _reading(checkpoint):
        # mmap: the processes of one machine share the pages
        state = torch.load(checkpoint / _OPTIMIZER, map_location="cpu", weights_only=True, mmap=True)
        if zero:
            zero.load(state)
        else:
            optimizer.load_state_dict(state)
        scheduler.load_state_dict(torch.load(checkpoint / _SCHEDULER, weights_only=True))
        random_file = checkpoint / f"random_{context.rank}.pt"
        if random_file.is_file():  # the layout that wrote it may have had fewer processes
            states = torch.load(random_file, weights_only=True)
            torch.set_rng_state(states["cpu"])
            if torch.cuda.is_available() and "cuda" in states:
                torch.cuda.set_rng_state(states["cuda"])


def load_weights(checkpoint: Path, model: Any) -> None:
    """Loads the trained weights of a checkpoint into the initial model, before ZeRO shards them."""
    with _reading(checkpoint):
        # Missing are the frozen weights, which are those of the initial model.
        missing, unexpected = model.load_state_dict(load_file(checkpoint / _WEIGHTS), strict=False)
        if unexpected or trained_weights(model).keys() & {*missing}:
            raise ValueError(f"{_WEIGHTS} has the weights of another model")


def trained_weights(model: Any) -> dict[str, torch.Tensor]:
    """The weights of a model that are trained, by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


@contextmanager
def training_logs(folder: Path, checkpoint: Path | None) -> Iterator[Logs]:
    """Opens the logs of a run as they were at a checkpoint; without one they are empty."""
    for name in LOGS:
        if checkpoint is None:
            (folder / name).unlink(missing_ok=True)
        else:
            with _reading(checkpoint):
                shutil.copyfile(checkpoint / name, folder / name)
    with (
        Log(folder / STEPS, StepRecord) as steps,
        Log(folder / TIMING, TimingRecord) as timing,
        Log(folder / CONTEXTS, ContextRecord) as contexts,
    ):
        yield steps, timing, contexts


@contextmanager
def _reading(checkpoint: Path) -> Iterator[None]:
    """Names the checkpoint in every error, and what to do about it."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, SafetensorError) as error:
        raise RunError(
            f"cannot resume from {checkpoint}: {first_line(error)}; remove that folder to resume from the checkpoint "
            "before it, or choose another --out"
        ) from error
