"""The training loop: transformers' Trainer, whose data are the numbers of the steps."""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor

from longrm.errors import RunError, first_line
from longrm.modeling.loading import LanguageModel, Scorer
from longrm.modeling.memory import is_out_of_memory
from longrm.modeling.processes import is_loss_of_a_process
from longrm.runs.progress import Progress
from longrm.runs.records import ContextRecord, StepRecord, TimingRecord
from longrm.training.batches import Batches, Example, Objective, Step
from longrm.training.checkpoints import (
    CHECKPOINTS,
    latest,
    prune,
    read_optimizer,
    read_weights,
    seal,
    write_optimizer,
    write_weights,
)
from longrm.training.evaluations import Evaluations
from longrm.training.failures import StallWatch, diverged, out_of_memory
from longrm.training.logs import LOGS, TrainingLogs
from longrm.training.optimizers import NAMES
from longrm.training.processes import Processes
from longrm.training.settings import CheckpointSettings, Parallel, Training
from longrm.training.zero import SteppedElsewhere, Zero, whole


def train(
    trainee: Scorer | LanguageModel,
    objective: Objective,
    batches: Batches,
    settings: Training,
    folder: Path,
    *,
    home: Path,
    place: Processes,
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
        folder: The run folder, which gets logs and evaluations; of this process alone, where there are several.
        home: The run folder of the first process, which gets the checkpoints.
        place: This process among all of them.
        steps: How many.
        evaluations: The evaluations on the way, if there are any.
        progress: Called after every step.
        clock: Tells seconds.

    Raises:
        RunError: A checkpoint or log cannot be read or written.
        TrainingError: A NaN, a stalled loss, or memory that ran out.
    """
    checkpoint = place.agree(latest(home) if place.leads else None)
    if evaluations is not None:
        evaluations.continue_from(int(checkpoint.name) if checkpoint else 0)
    with TrainingLogs(folder, checkpoint) as logs:
        trainer = StepTrainer(
            trainee.model,
            objective,
            batches,
            _arguments(settings, trainee.model, steps, folder),
            folder=folder,
            home=home,
            place=place,
            parallel=settings.parallel,
            logs=logs,
            stall_steps=settings.stall_steps,
            keep=settings.checkpoint.keep,
            progress=progress,
            clock=clock,
        )
        trainer.add_callback(_Cadence(settings.checkpoint, evaluations, trainer, place, clock))
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            step = trainer.current
            where = f"in step {trainer.state.global_step + 1}" if step else "before the first step"
            raise out_of_memory(where, _examples(step) if step else []) from None
    trainee.model.eval()


class StepTrainer(transformers.Trainer):
    """A Trainer whose data set is the numbers of the steps: what a step reads is made when it begins.

    A checkpoint holds what is trained of the model, and appears in one rename, so that a killed run never resumes
    from half of one; what befalls it later its manifest tells.

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
        home: Path,
        place: Processes,
        parallel: Parallel,
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
        self._home = home
        self._place = place
        self._parallel = parallel
        self._zero: Zero | None = None
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
        for number, micro in enumerate(step.micro_batches, start=1):
            loss, own = self._zero.loss(micro) if self._zero else self._objective.loss(self.model, micro)
            value = loss.item()
            if not math.isfinite(value):
                raise diverged("loss", self.state.global_step + 1, value, micro.examples)
            weighted = loss * (micro.weight * self._place.share.parts)
            if self._zero:
                self._zero.backward(weighted, last=number == len(step.micro_batches))
            else:
                weighted.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            for name, figure in (own | {"loss": value}).items():
                figures[name] = figures.get(name, 0.0) + micro.weight * figure
        if self._zero is None:
            self._place.average_gradients(model)
        self._figures = self._place.sum_figures(figures)
        return torch.tensor(self._figures["loss"], device=self.args.device)

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
            tokens=step.tokens,
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

    def get_train_dataloader(self) -> Any:
        """The numbers of all steps, for every process; what it reads of a step its batches know."""
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=1, collate_fn=self.data_collator)  # type: ignore[arg-type]  # a list will do

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Trainer's, without empty groups: DeepSpeed drops them, and checkpoints are to fit every layout."""
        optimizer: Any = super().create_optimizer(*args, **kwargs)
        optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
        return optimizer

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        # Trainer would put a model that is not wrapped into DistributedDataParallel, which averages the gradients of
        # equal parts of a step.
        if self._parallel.zero:
            assert self.optimizer is not None, "Trainer makes it before"
            self._zero = Zero(
                self.model, self.optimizer, self._objective, self._parallel, max_norm=self.args.max_grad_norm
            )
            self.optimizer = SteppedElsewhere(self.optimizer)
            return self._zero.engine
        return model if self._place.count == 1 else torch.nn.ModuleList([model])

    def _clip_grad_norm(self, model: Any) -> Any:
        return self._zero.step() if self._zero else super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]  # Trainer's own

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        assert self.optimizer is not None, "Trainer made it"
        assert self.lr_scheduler is not None, "Trainer made it"
        state = self._zero.state() if self._zero else self.optimizer.state_dict()
        if self._place.leads:
            write_optimizer(state, self.lr_scheduler.state_dict(), Path(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        assert self.optimizer is not None, "Trainer made it"
        assert self.lr_scheduler is not None, "Trainer made it"
        stored, schedule = read_optimizer(Path(checkpoint))
        try:
            (self._zero.load if self._zero else self.optimizer.load_state_dict)(stored)
        except (KeyError, ValueError) as error:
            raise RunError(
                f"{checkpoint} holds the state of another optimizer ({first_line(error)}); take another --out"
            ) from None
        self.lr_scheduler.load_state_dict(schedule)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._home / ".checkpoint")

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        scratch = Path(self._get_output_dir(trial))
        place = self._home / CHECKPOINTS
        if self._place.leads:
            shutil.rmtree(scratch, ignore_errors=True)
        self._place.wait()
        try:
            with whole(self.model):
                super()._save_checkpoint(model, trial)
            self._place.wait()
            if self._place.leads:
                (written,) = scratch.iterdir()
                for name in LOGS:
                    shutil.copyfile(self._folder / name, written / name)
                seal(written, self.state.global_step)
                place.mkdir(exist_ok=True)
                written.rename(place / str(self.state.global_step))
        except (OSError, RuntimeError, SafetensorError) as error:
            if is_loss_of_a_process(error):
                raise
            raise RunError(
                f"cannot write a checkpoint to {place}: {first_line(error)}; make room and run the same command again"
            ) from None
        if self._place.leads:
            scratch.rmdir()
            prune(self._home, self._keep)
        self._place.wait()  # nobody goes on, or ends, before the checkpoint is there

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        assert output_dir is not None, "checkpoints name their folder"
        if not self._place.leads:
            return  # Trainer asks every process
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
        place: Processes,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._place = place
        self._evaluations = evaluations
        self._trainer = trainer
        self._clock = clock
        self._saved = clock()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved = self._clock()
        self._evaluate(state.global_step)  # the evaluation that a kill interrupted

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, minutes = state.global_step, self._settings.minutes
        waited = minutes is not None and self._place.agree(self._clock() - self._saved >= 60.0 * minutes)
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
        optim=NAMES[optimizer.kind],
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
        # Else Trainer would move the model to any accelerator that it finds, such as an Apple GPU.
        use_cpu=model.device.type == "cpu",
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
