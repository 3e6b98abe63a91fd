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
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.process_group import is_lost_process
from longrm.modeling.shared_prefix import TransformersModel
from longrm.runs.progress import Progress
from longrm.runs.records import ContextRecord, StepRecord, TimingRecord
from longrm.runs.scratch import move_in
from longrm.training.batches import Batches, Example, Step
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
from longrm.training.distributed import DistributedContext
from longrm.training.evaluations import Evaluations
from longrm.training.monitor import check_plateau, nan_error, out_of_memory_error
from longrm.training.objectives.spec import Objective
from longrm.training.step_logs import LOGS, progress_note, training_logs
from longrm.training.training_settings import TrainingSettings
from longrm.training.zero import SteppedElsewhere, Zero, whole

_OPTIMIZERS = {
    "adamw": transformers.TrainingArguments.default_optim,
    "adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
}
"""What transformers calls the kinds of a recipe's optimizer."""


class StepTrainer(transformers.Trainer, transformers.TrainerCallback):
    """Trains a model in place, from the latest checkpoint in the run folder or from its start.

    Its data set is the numbers of the steps: a step's data is made when it begins. It is its own callback, which says
    when a checkpoint is saved; an evaluation follows the checkpoint of its step. A checkpoint holds what is trained of
    the model, and appears in one rename, so that a killed run never resumes from half of one; its manifest shows later
    damage.

    Args:
        model: The model as it is at the start, whatever checkpoints there are.
        folder: The run folder, which gets logs and evaluations; of this process alone, where there are several.
        main_folder: The run folder of the main process, which gets the checkpoints.
        clock: Tells seconds.
    """

    def __init__(
        self,
        model: TransformersModel,
        objective: Objective,
        batches: Batches,
        settings: TrainingSettings,
        folder: Path,
        *,
        main_folder: Path,
        context: DistributedContext,
        steps: int,
        evaluations: Evaluations | None,
        progress: Progress,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(
            model=model,
            args=_arguments(settings, model, steps, folder),
            train_dataset=[{"step": step} for step in range(steps)],
            data_collator=lambda rows: rows[0],
            callbacks=[self],
        )
        self.remove_callback(transformers.PrinterCallback)
        self._settings = settings
        self._objective = objective
        self._batches = batches
        self._folder = folder
        self._main_folder = main_folder
        self._context = context
        self._evaluations = evaluations
        self._progress = progress
        self._clock = clock
        self._zero: Zero | None = None
        self._step: Step | None = None  # at work, or the last one
        self._figures: dict[str, float] = {}
        self._began = self._saved = 0.0

    def run(self) -> None:
        """Trains to the end.

        Raises:
            RunError: A checkpoint or log cannot be read or written.
            TrainingError: A NaN loss, a loss plateau at chance, or memory that ran out.
        """
        context, evaluations = self._context, self._evaluations
        checkpoint = context.broadcast(latest(self._main_folder) if context.is_main_process else None)
        if evaluations is not None:
            evaluations.continue_from(int(checkpoint.name) if checkpoint else 0)
        with training_logs(self._folder, checkpoint) as self._logs:
            self._losses = [record.loss for record in self._logs[0]]
            self._check_plateau()
            try:
                self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                where = f"in step {self.state.global_step + 1}" if self._step else "before the first step"
                raise out_of_memory_error(where, _examples(self._step) if self._step else []) from None

    def _check_plateau(self) -> None:
        check_plateau(self._losses, self._settings.plateau_steps, self._objective.chance)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Makes up for the evaluation that a kill interrupted."""
        self._saved = self._clock()
        self._evaluate_if_due(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Says whether a checkpoint follows: by steps, by minutes, or for an evaluation."""
        step, settings = state.global_step, self._settings.checkpoint
        overdue = settings.minutes is not None and self._context.broadcast(
            self._clock() - self._saved >= 60.0 * settings.minutes
        )
        planned = step % settings.every == 0 or step == state.max_steps
        evaluated = self._evaluations is not None and self._evaluations.due(step)
        control.should_save = planned or overdue or evaluated

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluates the model whose checkpoint is there."""
        self._evaluate_if_due(state.global_step)
        self._saved = self._clock()

    def _evaluate_if_due(self, step: int) -> None:
        if self._evaluations is not None and self._evaluations.due(step):
            record = self._evaluations.evaluate(step)
            if record.value is not None:
                self._track({f"eval_{record.metric}": record.value})

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of all micro-batches of a step; the gradient is their weighted sum.

        Raises:
            TrainingError: NaN loss.
        """
        self._began = self._clock()
        model.train()
        self._step = step = self._batches.prepare(int(inputs["step"]))
        figures: dict[str, float] = {}
        for number, micro in enumerate(step.micro_batches, start=1):
            loss, own = self._zero.loss(micro) if self._zero else self._objective.loss(self.model, micro)
            value = loss.item()
            if not math.isfinite(value):
                raise nan_error("loss", self.state.global_step + 1, value, micro.examples)
            weighted = loss * (micro.weight * self._context.share.parts)
            if self._zero:
                self._zero.backward(weighted, last=number == len(step.micro_batches))
            else:
                weighted.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            for name, figure in (own | {"loss": value}).items():
                figures[name] = figures.get(name, 0.0) + micro.weight * figure
        if self._zero is None:
            self._context.average_gradients(model)
        self._figures = self._context.sum_figures(figures)
        return torch.tensor(self._figures["loss"], device=self.args.device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs the finished step, for trackers too; Trainer's own last summary is left out.

        Raises:
            TrainingError: A gradient norm that is NaN or infinite, or a loss plateau at chance.
        """
        if "grad_norm" not in logs:
            return
        step = self._step
        assert step is not None, "a step was made"
        if not math.isfinite(logs["grad_norm"]):
            raise nan_error("gradient", self.state.global_step, logs["grad_norm"], _examples(step))
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
        steps, timing, contexts = self._logs
        timing.append(TimingRecord(record.step, record.tokens, round(seconds, 4)))
        contexts.append(ContextRecord(record.step, step.digests))
        steps.append(record)
        tracked = {
            "loss": record.loss,
            "learning_rate": record.learning_rate,
            "grad_norm": record.grad_norm,
            "tokens": float(record.tokens),
            "tokens_per_second": record.tokens / max(seconds, 1e-9),
        }
        if record.accuracy is not None:
            tracked["accuracy"] = record.accuracy
        self._track(tracked | record.losses)
        self._progress("training", record.step, self.state.max_steps, progress_note(record, seconds))
        self._losses.append(record.loss)
        self._check_plateau()

    def _track(self, figures: dict[str, float]) -> None:
        """Gives figures to the trackers."""
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
        if self._settings.parallel.zero:
            assert self.optimizer is not None, "Trainer makes it before"
            self._zero = Zero(
                self.model,
                self.optimizer,
                self._objective,
                self._settings.parallel,
                max_norm=self.args.max_grad_norm,
            )
            self.optimizer = SteppedElsewhere(self.optimizer)
            return self._zero.engine
        return model if self._context.count == 1 else torch.nn.ModuleList([model])

    def _clip_grad_norm(self, model: Any) -> Any:
        return self._zero.step() if self._zero else super()._clip_grad_norm(model)  # type: ignore[no-untyped-call]  # Trainer's own

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        assert self.optimizer is not None, "Trainer made it"
        assert self.lr_scheduler is not None, "Trainer made it"
        state = self._zero.state() if self._zero else self.optimizer.state_dict()
        if self._context.is_main_process:
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
        return str(self._main_folder / ".checkpoint")

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        scratch = Path(self._get_output_dir(trial))
        checkpoints = self._main_folder / CHECKPOINTS
        if self._context.is_main_process:
            shutil.rmtree(scratch, ignore_errors=True)
        self._context.wait()
        try:
            with whole(self.model):
                super()._save_checkpoint(model, trial)
            self._context.wait()
            if self._context.is_main_process:
                (written,) = scratch.iterdir()
                for name in LOGS:
                    shutil.copyfile(self._folder / name, written / name)
                seal(written, self.state.global_step)
                checkpoints.mkdir(exist_ok=True)
                move_in(written, checkpoints / str(self.state.global_step))
        except (OSError, RuntimeError, SafetensorError) as error:
            if is_lost_process(error):
                raise
            raise RunError(
                f"cannot write a checkpoint to {checkpoints}: {first_line(error)}; make room and run the same command "
                "again"
            ) from None
        if self._context.is_main_process:
            scratch.rmdir()
            prune(self._main_folder, self._settings.checkpoint.keep)
        self._context.wait()  # nobody goes on, or ends, before the checkpoint is there

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        assert output_dir is not None, "checkpoints name their folder"
        if not self._context.is_main_process:
            return  # Trainer asks every process
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        write_weights(self.model, Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        read_weights(self.model, Path(resume_from_checkpoint))


def _arguments(
    settings: TrainingSettings, model: Any, steps: int, folder: Path
) -> transformers.TrainingArguments:
    optimizer = settings.optimizer
    least = optimizer.min_learning_rate_ratio
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=1,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type="cosine_with_min_lr" if least else optimizer.schedule,
        lr_scheduler_kwargs={"min_lr_rate": least} if least else None,
        warmup_steps=optimizer.warmup_ratio,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        weight_decay=optimizer.weight_decay,
        optim=_OPTIMIZERS[optimizer.kind],
        max_grad_norm=optimizer.max_grad_norm,
        save_strategy="no",  # `on_step_end` says when
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


def _examples(step: Step) -> Sequence[Example]:
    return [example for micro in step.micro_batches for example in micro.examples]
