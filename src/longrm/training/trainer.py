"""The training loop: transformers' Trainer, whose data are the numbers of the steps."""

import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor

from longrm.errors import RunError
from longrm.modeling.folders import first_line
from longrm.modeling.loading import LanguageModel, Scorer
from longrm.runs.logs import Log
from longrm.runs.progress import Progress
from longrm.runs.records import ContextRecord, StepRecord, TimingRecord
from longrm.training.batches import Batches, Example, Objective, Step
from longrm.training.checkpoints import CHECKPOINTS, latest, prune, read_weights, write_weights
from longrm.training.evaluations import Evaluations
from longrm.training.failures import StallWatch, diverged, is_out_of_memory, out_of_memory
from longrm.training.settings import CheckpointSettings, Training

LOGS = STEPS, TIMING, CONTEXTS = "steps.jsonl", "timing.jsonl", "contexts.jsonl"


def train(
    trainee: Scorer | LanguageModel,
    objective: Objective,
    batches: Batches,
    settings: Training,
    folder: Path,
    *,
    steps: int,
    evaluations: Evaluations | None,
    progress: Progress,
    clock: Callable[[], float],
) -> None:
    """Trains a model in place, from the latest checkpoint in the run folder or from its start.

    Args:
        trainee: The model as it is at the start, whatever checkpoints there are.
        objective: What is minimized.
        batches: The steps.
        settings: How.
        folder: The run folder, which gets logs, checkpoints and evaluations.
        steps: How many.
        evaluations: The evaluations on the way, if there are any.
        progress: Called after every step.
        clock: Tells seconds.

    Raises:
        RunError: A checkpoint or log cannot be read or written.
        TrainingError: A NaN, a stalled loss, or memory that ran out.
    """
    checkpoint = latest(folder)
    if evaluations is not None:
        evaluations.continue_from(int(checkpoint.name) if checkpoint else 0)
    with TrainingLogs(folder, checkpoint) as logs:
        trainer = StepTrainer(
            trainee.model,
            objective,
            batches,
            _arguments(settings, trainee.model, steps, folder),
            folder=folder,
            logs=logs,
            stall_steps=settings.stall_steps,
            keep=settings.checkpoint.keep,
            progress=progress,
            clock=clock,
        )
        trainer.add_callback(_Cadence(settings.checkpoint, evaluations, trainer, clock))
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except (MemoryError, RuntimeError) as error:
            if trainer.current is None or not is_out_of_memory(error):
                raise
            raise out_of_memory(trainer.state.global_step + 1, trainer.current) from None
    trainee.model.eval()


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


def logged_steps(folder: Path) -> int:
    """Steps that all logs of a run folder hold in full."""
    return min((folder / name).read_bytes().count(b"\n") if (folder / name).exists() else 0 for name in LOGS)


class StepTrainer(transformers.Trainer):
    """A Trainer whose data set is the numbers of the steps: what a step reads is made when it begins.

    A checkpoint holds what is trained of the model, and appears in one rename, so that a killed run never resumes
    from half of one.

    Attributes:
        current: What the step at work reads.
    """

    def __init__(
        self,
        model: Any,
        objective: Objective,
        batches: Batches,
        arguments: transformers.TrainingArguments,
        *,
        folder: Path,
        logs: TrainingLogs,
        stall_steps: int,
        keep: int,
        progress: Progress,
        clock: Callable[[], float],
    ) -> None:
        steps = [{"step": step} for step in range(arguments.max_steps)]
        super().__init__(model=model, args=arguments, train_dataset=steps, data_collator=lambda rows: rows[0])
        self.remove_callback(transformers.PrinterCallback)
        self._objective = objective
        self._batches = batches
        self._folder = folder
        self._logs = logs
        self._keep = keep
        self._progress = progress
        self._clock = clock
        self._stall = StallWatch(stall_steps, objective.chance)
        for record in logs.steps:
            self._stall.watch(record)
        self.current: Step | None = None
        self._figures: dict[str, float] = {}
        self._began = 0.0

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of all micro-batches of a step; the gradient is their weighted sum.

        Raises:
            TrainingError: The loss is not a number.
        """
        self._began = self._clock()
        model.train()
        self.current = step = self._batches.prepare(int(inputs["step"]))
        figures: dict[str, float] = {}
        for micro in step.micro_batches:
            loss, own = self._objective.loss(model, micro)
            value = loss.item()
            if not math.isfinite(value):
                raise diverged("loss", self.state.global_step + 1, value, micro.examples)
            self.accelerator.backward(loss * micro.weight)
            for name, figure in (own | {"loss": value}).items():
                figures[name] = figures.get(name, 0.0) + micro.weight * figure
        self._figures = figures
        return torch.tensor(figures["loss"], device=self.args.device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Writes the finished step, and tells trackers; Trainer's own last summary is left out.

        Raises:
            TrainingError: The gradient was not a number, or the loss stands still.
        """
        if "grad_norm" not in logs:
            return
        step = self.current
        assert step is not None, "a step was made"
        if not math.isfinite(logs["grad_norm"]):
            raise diverged("gradient", self.state.global_step, logs["grad_norm"], _examples(step))
        figures = dict(self._figures)
        record = StepRecord(
            step=self.state.global_step,
            loss=figures.pop("loss"),
            accuracy=figures.pop("accuracy", None),
            grad_norm=float(logs["grad_norm"]),
            learning_rate=float(logs["learning_rate"]),
            length=step.length,
            tokens=sum(micro.packed.layout.tokens for micro in step.micro_batches),
            losses=figures,
        )
        seconds = self._clock() - self._began
        self._logs.timing.append(TimingRecord(record.step, record.tokens, round(seconds, 4)))
        self._logs.contexts.append(ContextRecord(record.step, step.digests))
        self._logs.steps.append(record)
        self.track(_figures(record, seconds))
        self._progress("training", record.step, self.state.max_steps)
        self._stall.watch(record)

    def track(self, figures: dict[str, float]) -> None:
        """Tells the trackers."""
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, figures)

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
        place = self._folder / CHECKPOINTS
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            super()._save_checkpoint(model, trial)
            (written,) = scratch.iterdir()
            for name in LOGS:
                shutil.copyfile(self._folder / name, written / name)
            place.mkdir(exist_ok=True)
            written.rename(place / str(self.state.global_step))
        except (OSError, RuntimeError, SafetensorError) as error:
            raise RunError(
                f"cannot write a checkpoint to {place}: {first_line(error)}; make room and run the same command again"
            ) from None
        scratch.rmdir()
        prune(self._folder, self._keep)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        assert output_dir is not None, "checkpoints name their folder"
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        write_weights(self.model, Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        read_weights(self.model, Path(resume_from_checkpoint))


class _Cadence(transformers.TrainerCallback):
    """When a checkpoint is saved; an evaluation follows the checkpoint of its step."""

    def __init__(
        self,
        settings: CheckpointSettings,
        evaluations: Evaluations | None,
        trainer: StepTrainer,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._evaluations = evaluations
        self._trainer = trainer
        self._clock = clock
        self._saved = clock()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved = self._clock()
        self._evaluate(state.global_step)  # the evaluation that a kill interrupted

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, minutes = state.global_step, self._settings.minutes
        waited = minutes is not None and self._clock() - self._saved >= 60.0 * minutes
        planned = step % self._settings.every == 0 or step == state.max_steps
        evaluated = self._evaluations is not None and self._evaluations.due(step)
        control.should_save = planned or waited or evaluated

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluate(state.global_step)
        self._saved = self._clock()

    def _evaluate(self, step: int) -> None:
        if self._evaluations is not None and self._evaluations.due(step):
            record = self._evaluations.evaluate(step)
            if record.value is not None:
                self._trainer.track({f"eval_{record.metric}": record.value})


def _arguments(settings: Training, model: Any, steps: int, folder: Path) -> transformers.TrainingArguments:
    optimizer = settings.optimizer
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=1,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type="cosine_with_min_lr" if optimizer.floor else optimizer.schedule,
        lr_scheduler_kwargs={"min_lr_rate": optimizer.floor} if optimizer.floor else None,
        warmup_steps=optimizer.warmup,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_norm,
        save_strategy="no",  # `_Cadence` says when
        use_cache=bool(model.config.use_cache),  # as the model's config has it, which Trainer would overwrite
        seed=settings.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=list(settings.report_to),
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    # On a machine with several GPUs Trainer would give each one a part of a batch; a step is one batch.
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1
    return arguments


def _figures(record: StepRecord, seconds: float) -> dict[str, float]:
    figures = {
        "loss": record.loss,
        "learning_rate": record.learning_rate,
        "grad_norm": record.grad_norm,
        "tokens": float(record.tokens),
        "tokens_per_second": record.tokens / max(seconds, 1e-9),
    }
    if record.accuracy is not None:
        figures["accuracy"] = record.accuracy
    return figures | record.losses


def _examples(step: Step) -> Sequence[Example]:
    return [example for micro in step.micro_batches for example in micro.examples]
