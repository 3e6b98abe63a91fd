"""The training loop: transformers' Trainer, with steps of comparisons over shared prefixes."""

import math
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import torch
import transformers
from pydantic import Field
from torch import Tensor

from longrm.config import Config
from longrm.errors import TrainingError
from longrm.modeling.loading import Scorer
from longrm.modeling.shared_prefix import Packed
from longrm.runs.logs import Log
from longrm.runs.progress import Progress
from longrm.runs.records import ContextRecord, StepRecord, TimingRecord

CHECKPOINTS = "checkpoints"
LOGS = STEPS, TIMING, CONTEXTS = "steps.jsonl", "timing.jsonl", "contexts.jsonl"


class OptimizerSettings(Config):
    """AdamW and its schedule.

    Attributes:
        steps: Optimizer steps; for data with an end, `epochs` may be given instead.
        epochs: Passes over the data.
        learning_rate: Peak learning rate.
        schedule: How it falls after warm-up.
        warmup: Share of the steps over which it rises.
        betas: AdamW's decay rates.
        weight_decay: Decoupled weight decay.
        max_norm: The gradient is clipped to this norm.
    """

    steps: int | None = Field(None, ge=1)
    epochs: int | None = Field(None, ge=1)
    learning_rate: float = Field(2e-6, gt=0.0)
    schedule: str = Field("cosine", pattern="^(cosine|linear|constant_with_warmup)$")
    warmup: float = Field(0.03, ge=0.0, lt=1.0)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(0.0, ge=0.0)
    max_norm: float = Field(1.0, gt=0.0)


class CheckpointSettings(Config):
    """When the state of training is saved.

    Attributes:
        every: Steps between two checkpoints.
        keep: How many of the latest are kept.
    """

    every: int = Field(100, ge=1)
    keep: int = Field(1, ge=1)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of a step that goes through the model at once.

    Attributes:
        packed: The token trees.
        ranks: Gold ranks of its comparisons, 1 = best.
        weight: Its share of the step; the weights of a step sum to 1.
    """

    packed: Packed
    ranks: Sequence[Sequence[int]]
    weight: float


@dataclass(frozen=True, slots=True)
class Step:
    """What one optimizer step reads.

    Attributes:
        micro_batches: Its parts.
        length: Tokens of its longest prompt.
        digests: Of the contexts it reads, so that it can be told what was trained on.
    """

    micro_batches: Sequence[MicroBatch]
    length: int
    digests: tuple[str, ...]


class Objective(Protocol):
    """What a trainer needs to know about what it trains."""

    def prepare(self, step: int) -> Step:
        """Makes the step with a number, counted from 0."""

    def loss(self, model: Any, micro: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        """Loss and figures, `accuracy` among them, of one micro-batch."""


class TrainingLogs:
    """The logs of a training run, open together; each holds one record a step.

    They continue from the copies in a checkpoint, whatever became of the logs since.

    Args:
        folder: The run folder.
        checkpoint: The checkpoint that training continues from; None begins anew.
    """

    def __init__(self, folder: Path, checkpoint: Path | None) -> None:
        for name in LOGS:
            if checkpoint:
                shutil.copyfile(checkpoint / name, folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        self.steps = Log(folder / STEPS, StepRecord)
        self.timing = Log(folder / TIMING, TimingRecord)
        self.contexts = Log(folder / CONTEXTS, ContextRecord)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        for log in (self.steps, self.timing, self.contexts):
            self._open.enter_context(log)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.__exit__(*exception)


class StepTrainer(transformers.Trainer):
    """A Trainer whose data set is the numbers of the steps: what a step reads is made when it begins.

    Checkpoints appear in one rename, so that a killed run never resumes from half of one.
    """

    def __init__(
        self,
        scorer: Scorer,
        objective: Objective,
        arguments: transformers.TrainingArguments,
        *,
        folder: Path,
        logs: TrainingLogs,
        checkpoints: CheckpointSettings,
        stall_steps: int,
        progress: Progress,
    ) -> None:
        steps = [{"step": step} for step in range(arguments.max_steps)]
        super().__init__(
            model=scorer.model, args=arguments, train_dataset=steps, data_collator=lambda rows: rows[0]
        )
        self._objective = objective
        self._folder = folder
        self._logs = logs
        self._checkpoints = checkpoints
        self._progress = progress
        self._stall = _StallWatch(stall_steps)
        self._figures: dict[str, float] = {}
        self._digests: tuple[str, ...] = ()
        self._began = 0.0

    def replay(self, records: Sequence[StepRecord]) -> None:
        """Tells the objective what the log holds of the steps before the checkpoint."""
        for record in records:
            self._stall.watch(record)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of all micro-batches of a step; the gradient is their weighted sum.

        Raises:
            TrainingError: The loss is not a number.
        """
        self._began = time.perf_counter()
        model.train()
        step = self._objective.prepare(int(inputs["step"]))
        figures: dict[str, float] = {}
        for micro in step.micro_batches:
            loss, own = self._objective.loss(model, micro)
            if not math.isfinite(loss.item()):
                raise _diverged("loss", self.state.global_step + 1, loss.item())
            self.accelerator.backward(loss * micro.weight)
            for name, value in (own | {"loss": loss.item()}).items():
                figures[name] = figures.get(name, 0.0) + micro.weight * value
        tokens = sum(micro.packed.layout.tokens for micro in step.micro_batches)
        self._digests = step.digests
        self._figures = figures | {"length": step.length, "tokens": tokens}
        return torch.tensor(figures["loss"], device=self.args.device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Writes the finished step; Trainer's own last summary is left out."""
        if "grad_norm" not in logs:
            return
        if not math.isfinite(logs["grad_norm"]):
            raise _diverged("gradient", self.state.global_step, logs["grad_norm"])
        figures = dict(self._figures)
        record = StepRecord(
            step=self.state.global_step,
            loss=figures.pop("loss"),
            accuracy=figures.pop("accuracy"),
            grad_norm=float(logs["grad_norm"]),
            learning_rate=float(logs["learning_rate"]),
            length=int(figures.pop("length")),
            tokens=int(figures.pop("tokens")),
            losses=figures,
        )
        seconds = time.perf_counter() - self._began
        self._logs.timing.append(TimingRecord(record.step, record.tokens, round(seconds, 4)))
        self._logs.contexts.append(ContextRecord(record.step, self._digests))
        self._logs.steps.append(record)
        self._progress("training", record.step, self.state.max_steps)
        self._stall.watch(record)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not estimated: Trainer's formula knows no shared prefix."""
        return 0

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        assert isinstance(train_dataset, list), "the data set is the numbers of the steps"
        return torch.utils.data.SequentialSampler(train_dataset)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._folder / ".checkpoint")

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        scratch = Path(self._get_output_dir(trial))
        shutil.rmtree(scratch, ignore_errors=True)
        super()._save_checkpoint(model, trial)
        (written,) = scratch.iterdir()
        for name in LOGS:
            shutil.copyfile(self._folder / name, written / name)
        place = self._folder / CHECKPOINTS
        place.mkdir(exist_ok=True)
        written.rename(place / str(self.state.global_step))
        scratch.rmdir()
        for old in saved_steps(self._folder)[: -self._checkpoints.keep]:
            shutil.rmtree(place / str(old))


def _diverged(what: str, step: int, value: float) -> TrainingError:
    return TrainingError(
        f"the {what} of step {step} is {value}; try a lower optimizer.learning_rate, a longer warmup, "
        "or check the data for extreme rows"
    )


def logged_steps(folder: Path) -> int:
    """Steps that all logs of a run folder hold in full."""
    return min((folder / name).read_bytes().count(b"\n") if (folder / name).exists() else 0 for name in LOGS)


def saved_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a run folder, rising."""
    place = folder / CHECKPOINTS
    return sorted(int(entry.name) for entry in place.iterdir()) if place.is_dir() else []


class _StallWatch:
    """Stops a run that learns nothing: a mean Bradley-Terry loss at that of a coin over many steps."""

    def __init__(self, steps: int) -> None:
        self._window = steps
        self._losses: list[float] = []

    def watch(self, record: StepRecord) -> None:
        self._losses = [*self._losses, record.loss][-self._window :] if self._window else []
        chance = math.log(2.0)
        if self._window and len(self._losses) == self._window:
            mean = sum(self._losses) / self._window
            if mean > 0.98 * chance:
                raise TrainingError(
                    f"the loss stalled at {mean:.3f} over {self._window} steps (a coin has {chance:.3f}); "
                    "try another learning rate, shorter contexts first (curriculum.lengths), "
                    "or check that the gold order is right; stall_steps = 0 trains on regardless"
                )
