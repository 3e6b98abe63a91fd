"""Checkpoints of a training run: `checkpoints/STEP`, and the logs as they were after that step.

A checkpoint appears in one rename after everything in it is on the disk, so no run resumes from half of one. Weights
and optimizer state are those of `torch.distributed.checkpoint`, so that any layout can resume any other's.
"""

import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from longrm.errors import RunError, first_line
from longrm.modeling.process_group import is_lost_process, set_timeouts
from longrm.modeling.sharding import is_sharded
from longrm.runs.logs import CONTEXTS, STEPS, TIMING, Log
from longrm.runs.records import ContextRecord, StepRecord, TimingRecord
from longrm.runs.scratch import discard, empty_trash, move_in
from longrm.training.distributed import DistributedContext

CHECKPOINTS = "checkpoints"
LOGS = STEPS, TIMING, CONTEXTS

_MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW
_NO_GROUP = "torch.distributed is disabled"  # a warning of torch, for a process that trains alone
_FAILURES = (OSError, RuntimeError, ValueError, KeyError, EOFError, UnpicklingError, CheckpointException)

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


class CheckpointWriter:
    """Writes checkpoints to the run folder of the main process; all are there at the end of a `with` block.

    Every process takes part, and writes its own shards. Only trained weights are written: frozen ones are those of the
    initial model. Weights in GPU memory are copied and written while training goes on. Those in CPU memory, which may
    have no room for a copy, are written at once.
    """

    def __init__(
        self, main_folder: Path, folder: Path, context: DistributedContext, *, keep: int = 2
    ) -> None:
        self._scratch, self._checkpoints = main_folder / ".checkpoint", main_folder / CHECKPOINTS
        self._folder, self._context, self._keep = folder, context, keep
        # Of its own, as the training's exchanges go on at the same time.
        self._group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        set_timeouts()
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None

    def save(self, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """Begins to write the state after a step; every process takes part."""
        self.finish()
        context, scratch = self._context, self._scratch
        with _writing(self._checkpoints):
            if context.is_main_process:
                shutil.rmtree(scratch, ignore_errors=True)  # left by a run that was killed
                scratch.mkdir()
            context.wait()
            # Dropout draws from torch's generators; nothing else in training is random.
            random_states = {"cpu": torch.get_rng_state()}
            if torch.cuda.is_available():
                random_states["cuda"] = torch.cuda.get_rng_state()
            torch.save(random_states, scratch / f"random_{context.rank}.pt")
            if context.is_main_process:
                for name in LOGS:
                    shutil.copyfile(self._folder / name, scratch / name)
        # Without shards, all processes have the same state.
        state = _state(model, optimizer) if context.is_main_process or is_sharded(model) else {}
        in_background = _copies(model)
        if in_background:
            state = {name: tensor.to("cpu", copy=True) for name, tensor in state.items()}
        self._pending = self._thread.submit(self._write, step, state)
        if not in_background:
            self.finish()

    def _write(self, step: int, state: dict[str, torch.Tensor]) -> None:
        warnings.filterwarnings("ignore", _NO_GROUP)
        save(state, checkpoint_id=self._scratch, process_group=self._group)
        if self._context.is_main_process:
            self._checkpoints.mkdir(exist_ok=True)
            move_in(self._scratch, self._checkpoints / str(step))
            for old in saved_steps(self._checkpoints.parent)[: -self._keep]:
                discard(self._checkpoints / str(old))

    def finish(self) -> None:
        """Waits until the latest checkpoint is there."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            with _writing(self._checkpoints):
                pending.result()
            self._context.wait()  # for the main process, which renames it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._thread.shutdown()  # after its write, whether that succeeds or not
            if self._group is not None:
                dist.destroy_process_group(self._group)


def load_checkpoint(
    checkpoint: Path,
    model: Any,
    optimizer: torch.optim.Optimizer,
    context: DistributedContext,
) -> None:
    """Loads a checkpoint of this or another layout into the model and an AdamW that has not stepped."""
    with _reading(checkpoint):
        state = _state(model, optimizer)
        stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
        if stored.keys() != state.keys():
            raise ValueError(
                f"it has the weights of another model, such as {min(stored.keys() ^ state.keys())}"
            )
        warnings.filterwarnings("ignore", _NO_GROUP)
        load(state, checkpoint_id=checkpoint)
        for name, weight in trained_weights(model).items():
            moments = {moment: state[f"{moment}.{name}"] for moment in _MOMENTS}
            # Fused AdamW counts steps on the device of the weight.
            optimizer.state[weight] = {"step": state["step"].to(weight.device, copy=True), **moments}
        random_file = checkpoint / f"random_{context.rank}.pt"
        if random_file.is_file():  # the layout that wrote it may have had fewer processes
            states = torch.load(random_file, weights_only=True)
            torch.set_rng_state(states["cpu"])
            if torch.cuda.is_available() and "cuda" in states:
                torch.cuda.set_rng_state(states["cuda"])


def _copies(model: Any) -> bool:
    """Whether a checkpoint is a copy, so that training can go on."""
    return bool(model.device.type != "cpu")


def _state(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The trained weights and the state of AdamW, which all weights have stepped equally often, by name.

    Not `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`: it writes a step count and eleven options of
    the optimizer for every weight, restores the options over those of the settings, and creates the state to load into
    by a step over gradients of zero, which need the memory of all gradients.
    """
    steps = [own["step"] for own in optimizer.state.values()]
    state = {"step": steps[0].cpu() if steps else torch.zeros(())}
    for name, weight in trained_weights(model).items():
        state[f"weight.{name}"] = weight.detach()
        own = optimizer.state.get(weight, {})  # none before its first gradient
        for moment in _MOMENTS:
            state[f"{moment}.{name}"] = own[moment] if own else torch.zeros_like(weight).detach()
    return state


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


def _writing(checkpoints: Path) -> AbstractContextManager[None]:
    advice = "free some space and run the same command again"
    return _explained(f"cannot write a checkpoint to {checkpoints}", advice)


def _reading(checkpoint: Path) -> AbstractContextManager[None]:
    """Names the checkpoint in every error, and what to do about it."""
    advice = "remove that folder to resume from the checkpoint before it, or choose another --out"
    return _explained(f"cannot resume from {checkpoint}", advice)


@contextmanager
def _explained(failure: str, advice: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        if is_lost_process(error):
            raise
        if isinstance(error, CheckpointException):  # of several processes
            error, _ = next(iter(error.failures.values()))  # type: ignore[assignment]
        raise RunError(f"{failure}: {first_line(error)}; {advice}") from error
