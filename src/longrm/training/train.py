"""Training from top to bottom: settings in, a run folder with the model out.

`train` sets up the processes, the model, the data and the objective; `train_steps` is the loop: data, loss, backward,
clip, optimizer step, log, checkpoint, evaluation.

The loop is our own, not transformers' `Trainer`: a step is a set of micro-batches with weights of their own, read over
shared prefixes, which `Trainer` supports only by overriding its private methods. The optimizers, schedules and trackers
are those that `Trainer` uses.
"""

import logging
import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
from torch import nn
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
    get_reporting_integration_callbacks,
)
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback
from transformers.trainer_pt_utils import get_parameter_names

from longrm.data.training_rows import Example
from longrm.errors import ConfigError, RunError, TrainingError, nearest
from longrm.evaluation.summary_schema import read_summary
from longrm.modeling.device_memory import is_out_of_memory, pair_cost
from longrm.modeling.loading import LanguageModel
from longrm.modeling.saving import save
from longrm.modeling.sequence_parallel import share_sequences
from longrm.modeling.sharding import compute, gather_weights, is_sharded
from longrm.modeling.shared_prefix import TransformersModel
from longrm.runs.folder import FILES, SCHEMA_VERSION, SUMMARY, check_files, read_json, write_json
from longrm.runs.freed_memory import return_freed_memory
from longrm.runs.logs import STEPS, Log
from longrm.runs.progress import Progress, no_progress
from longrm.runs.records import ContextRecord, StepRecord, TimingRecord
from longrm.runs.scratch import new_folder
from longrm.runs.workers import is_main_process
from longrm.training.batches import Batches, ExampleSource, Step, list_ids, out_of_memory
from longrm.training.checkpoints import (
    CheckpointWriter,
    latest,
    load_checkpoint,
    saved_steps,
    training_logs,
)
from longrm.training.distributed import DistributedContext, join_processes, process_folder
from longrm.training.evaluations import BEST, Evaluations, Evaluator, evaluator_of
from longrm.training.initial_model import load_initial_model, prepare_model
from longrm.training.model_card import CardContext, evaluations_of, write_card
from longrm.training.objectives import GRPO, OBJECTIVES, Objective
from longrm.training.plan import Device
from longrm.training.plan.available import available_memory
from longrm.training.plan.plan import fit_memory
from longrm.training.reference import reference_logprobs
from longrm.training.rollouts import RolloutSource
from longrm.training.sampling import Curriculum
from longrm.training.settings import OptimizerSettings, TrainingSettings
from longrm.training.sources import FileSource, open_source

_logger = logging.getLogger(__name__)

MODEL = "model"
DATA = "data.json"
_WINDOW = 20  # steps over which the summary averages loss and accuracy
BETAS = (0.9, 0.95)  # LongRM's, and those of most language models
CHECKPOINT_SECONDS = 30 * 60
"""A checkpoint is written after this time without one: steps of long contexts take minutes each."""

Track = Callable[[int, dict[str, float]], None]
"""Logs metrics after a step."""

Callback = Callable[[int, dict[str, float]], bool | None]
"""Called with the metrics of every step, and with those of an evaluation after it; True ends the training there."""

_PLATEAU = 0.98  # above this share of the loss at chance, nothing has been learned


def train(
    settings: TrainingSettings,
    out: Path,
    *,
    progress: Progress = no_progress,
    evaluator: Evaluator | None = None,
    callbacks: Sequence[Callback] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Trains into the run folder `out`, resuming from its latest checkpoint; the model is saved to `out/model`.

    A run may continue with more steps if its learning rate has not ended with the old ones: with a constant schedule,
    or with another one than before.

    `evaluator` evaluates the model in training at the interval in `settings.evaluation`, by default as it says.
    Returns the contents of `summary.json`; a finished run is returned as it is.
    """
    _check_trackers(settings.report_to)
    if settings.evaluation is not None and evaluator is None:
        shown = progress if is_main_process() else no_progress
        evaluator = evaluator_of(settings.evaluation, shown, settings.model)
    make_objective = OBJECTIVES[settings.objective]
    with join_processes(settings.parallel) as context, process_folder(context, out, settings) as folder:
        if (out / SUMMARY).exists() and not folder.extended:
            # A user who edits a file of the model removes the record of its files; without a model at all, check_files
            # raises.
            if (out / MODEL / FILES).is_file() or not (out / MODEL).is_dir():
                check_files(out / MODEL)
            return read_summary(out)
        context.wait()  # all have looked for the summary, which the main process is about to write

        parallel = settings.parallel
        if context.count > 1 or parallel.shard:
            shared = parallel.sequence_parallel_size > 1
            rows = (
                f"{parallel.sequence_parallel_size} share every sequence"
                if shared
                else "each reads different rows"
            )
            sharded = ", weights sharded" if parallel.shard else ""
            sharded += ", offloaded" if parallel.offload else ""
            _logger.info("processes: %d, %s%s", context.count, rows, sharded)
        if not context.is_main_process:
            progress = no_progress

        return_freed_memory()
        device = context.broadcast(_device())

        # The model, then the data, which is tokenized with the model's tokenizer.
        model = load_initial_model(settings, make_objective.trains)
        folder.record(model=model.provenance)
        limit = int(model.model.config.max_position_embeddings)
        source = open_source(
            settings.data,
            model.tokenizer,
            settings.seed,
            kind=make_objective.reads,
            limit=limit,
            reserved=settings.rollouts.max_completion_length if settings.rollouts is not None else 0,
            pairs=settings.loss.loss.reads_pairs,
            progress=progress,
        )
        settings = fit_memory(settings, source, device, context.count)
        if source.digest:
            _check_same_data(folder.path, source.digest)
        prepare_model(model, settings)
        if context.sequence is not None:
            share_sequences(model.model, context.sequence)
        steps = settings.optimizer.max_steps
        if steps is None:
            assert isinstance(source, FileSource), "settings require steps for generated data"
            iterations = settings.rollouts.num_iterations if settings.rollouts is not None else 1
            steps = source.steps(settings.optimizer.num_train_epochs or 1) * iterations
        if folder.extended:
            done = max(context.broadcast(saved_steps(out)), default=0)
            _check_extension(settings, done, steps)
            folder.extend(step=done)

        # The objective; the reference is the model before training.
        budget = settings.memory.max_tokens_per_microbatch
        graded = bool(source.counts.get("margin") or source.counts.get("probability"))
        objective = make_objective(settings.loss, graded=graded)
        if settings.loss.loss.needs_reference:
            assert isinstance(source, FileSource), "settings require it"
            objective.reference = reference_logprobs(
                model.model,
                map(objective.select, source.examples()),
                folder.path,
                budget=budget,
                progress=progress,
                context=context,
            )

        curriculum = None
        if settings.curriculum is not None:
            curriculum = Curriculum(settings.curriculum, steps=steps, seed=settings.seed)
        examples: ExampleSource = source
        if isinstance(objective, GRPO):
            assert isinstance(model, LanguageModel), "the objective trains one"
            examples = RolloutSource(
                source,
                objective,
                model,
                settings,
                folder.path,
                curriculum=curriculum,
                context=context,
                progress=progress,
            )
        batches = Batches(
            examples,
            objective,
            budget=budget,
            limit=limit,
            curriculum=curriculum,
            dp_rank=context.dp_rank,
            dp_size=context.dp_size,
            pair_cost=pair_cost(model.model),
            aligned=parallel.shard,
        )
        evaluations = None
        if settings.evaluation is not None and evaluator is not None:
            evaluations = Evaluations(
                settings.evaluation, evaluator, model, folder.path, last=steps, context=context
            )
        try:
            train_steps(
                model.model,
                objective,
                batches,
                settings,
                folder.path,
                main_folder=out,
                context=context,
                steps=steps,
                evaluations=evaluations,
                callbacks=callbacks if context.is_main_process else (),
                progress=progress,
                clock=clock,
            )
        except KeyboardInterrupt:
            saved = saved_steps(out)
            folder.continues = f"continues after step {saved[-1]}" if saved else "starts again at step 1"
            raise
        model.model.eval()

        records = list(Log(folder.path / STEPS, StepRecord))
        last = records[-_WINDOW:]
        accuracies = [record.accuracy for record in last if record.accuracy is not None]
        kept = evaluations.kept if evaluations is not None else None
        summary: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "kind": "training",
            "objective": settings.objective,
            "steps": len(records),
            "tokens": sum(record.tokens for record in records),
            "window": len(last),
            "loss": sum(record.loss for record in last) / len(last),
            "accuracy": sum(accuracies) / len(accuracies) if accuracies else None,
            "data": dict(source.counts),
            "evaluations": evaluations.as_dict() if evaluations is not None else None,
            "model_step": kept or len(records),
        }
        if settings.rollouts is not None:
            names = ("reward", "unparsed", "constant_groups")
            summary["rollouts"] = {name: fmean(record.losses[name] for record in last) for name in names}
        if kept is None:
            weights = gather_weights(model.model, wanted=context.is_main_process)
            if context.is_main_process:
                save(model, out / MODEL, weights)
        elif context.is_main_process:
            with new_folder(out / MODEL) as scratch:  # the model appears in one rename
                shutil.copytree(out / BEST, scratch, dirs_exist_ok=True)
        if context.is_main_process:
            card = CardContext(settings, summary, evaluations_of(out, summary["model_step"]), model.origin)
            write_card(out / MODEL, card)
            folder.write_summary(summary)
        context.wait()
        return summary


def train_steps(
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
    callbacks: Sequence[Callback],
    progress: Progress,
    clock: Callable[[], float],
) -> None:
    """Trains a model in place, from the latest checkpoint in the run folder or from its initial state.

    `main_folder` is the run folder, which receives the checkpoints; `folder` receives logs and evaluations, and is the
    run folder too, or the temporary copy of another process.
    """
    step: Step | None = None
    done = 0
    try:
        # Only models with dropout draw random numbers in training.
        transformers.set_seed(settings.seed)
        checkpoint = context.broadcast(latest(main_folder) if context.is_main_process else None)
        if checkpoint:
            done = int(checkpoint.name)
        optimizer = make_optimizer(model, settings.optimizer)
        rate_of = learning_rates(settings.optimizer, steps)
        if checkpoint:
            load_checkpoint(checkpoint, model, optimizer, context)
        if evaluations is not None:
            evaluations.resume_from(done)

        with (
            _tracking(settings, model, folder, steps) if settings.report_to else nullcontext() as track,
            training_logs(folder, checkpoint) as (step_log, timing_log, context_log),
            CheckpointWriter(
                main_folder, folder, context, keep=settings.checkpoint.save_total_limit
            ) as writer,
        ):
            losses = [record.loss for record in step_log]
            check_plateau(losses, settings.plateau_steps, objective.chance)
            saved_at = clock()
            if (
                evaluations is not None
                and evaluations.due(done)  # a kill interrupted it
                and context.any(_evaluate(evaluations, done, track, callbacks))
            ):
                steps = done
            while done < steps:
                with hold_sigterm() as terminated:
                    # Forward and backward of every micro-batch. The gradient of a step is the weighted sum over its
                    # micro-batches, so it does not depend on how the step is cut. A step is divided over groups of
                    # processes, but gradients are averaged, not summed, over them: each loss is multiplied by their
                    # number.
                    began = clock()
                    model.train()  # an evaluation has set eval()
                    step = batches.prepare(done)
                    context.wait()  # before the first exchange over NCCL
                    metrics: dict[str, float] = {}
                    for micro in step.micro_batches:
                        loss, own = compute(model, objective.loss, model, micro)
                        own["loss"] = loss.item()
                        if not math.isfinite(own["loss"]):
                            raise _not_finite("loss", done + 1, own["loss"], micro.examples)
                        weighted = loss * (micro.weight * context.dp_size)
                        weighted.backward()  # type: ignore[no-untyped-call]  # torch has no types here
                        for name, value in own.items():
                            metrics[name] = metrics.get(name, 0.0) + micro.weight * value
                    metrics = context.sum_metrics(metrics) | objective.step_metrics

                    # Clip, then update the weights with the learning rate of this step.
                    if not is_sharded(model):  # else the backward pass has averaged them
                        context.average_gradients(model)
                    largest = settings.optimizer.max_grad_norm
                    norm: Any = nn.utils.clip_grad_norm_(model.parameters(), largest)
                    grad_norm = (norm.full_tensor() if is_sharded(model) else norm).item()
                    learning_rate = rate_of(done)
                    for group in optimizer.param_groups:
                        group["lr"] = learning_rate
                    optimizer.step()
                    model.zero_grad()
                    done += 1

                    # Log. steps.jsonl comes last: a step counts as logged when it is there.
                    if not math.isfinite(grad_norm):
                        raise _not_finite("gradient norm", done, grad_norm, step.examples)
                    seconds = clock() - began
                    record = StepRecord(
                        step=done,
                        loss=metrics.pop("loss"),
                        accuracy=metrics.pop("accuracy", None),
                        grad_norm=grad_norm,
                        learning_rate=learning_rate,
                        length=step.length,
                        tokens=step.tokens,
                        losses=metrics,
                    )
                    timing_log.append(TimingRecord(done, record.tokens, round(seconds, 4)))
                    context_log.append(ContextRecord(done, step.digests))
                    step_log.append(record)
                    speed = record.tokens / max(seconds, 1e-9)
                    names = ("loss", "accuracy", "learning_rate", "grad_norm", "tokens")
                    logged = {name: getattr(record, name) for name in names} | record.losses
                    logged["tokens_per_second"] = speed
                    logged = {name: value for name, value in logged.items() if value is not None}
                    if track:
                        track(done, logged)
                    if context.any(_stops(callbacks, done, logged)):
                        steps = done
                        if evaluations is not None:
                            evaluations.last = done
                    # The loss of a policy gradient is near 0 whatever it learns.
                    shown = f"loss {record.loss:.3f}"
                    if "reward" in metrics:
                        shown = f"reward {metrics['reward']:.3f}"
                    accuracy = "" if record.accuracy is None else f"accuracy {record.accuracy:.2f}, "
                    rates = f"learning rate {learning_rate:.1e}, {speed:,.0f} tokens/s"
                    progress("training", done, steps, f"{shown}, {accuracy}{rates}")
                    losses.append(record.loss)
                    check_plateau(losses, settings.plateau_steps, objective.chance)

                    # Checkpoint: by steps, by the clock, at the end, when a signal ends the run, and before an
                    # evaluation, so that a run that is killed in an evaluation resumes with the evaluated weights.
                    if context.any(bool(terminated)):
                        terminated.add(signal.SIGTERM)
                    due = done % settings.checkpoint.save_steps == 0 or done == steps or bool(terminated)
                    evaluate = evaluations is not None and evaluations.due(done)
                    overdue = context.any(clock() - saved_at >= CHECKPOINT_SECONDS)
                    if due or evaluate or overdue:
                        writer.save(done, model, optimizer)
                        saved_at = clock()
                    if evaluate or terminated:
                        writer.finish()
                if evaluations is not None and evaluate:
                    if context.any(_evaluate(evaluations, done, track, callbacks)):
                        steps = done
                    saved_at = clock()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        where = f"in step {done + 1}" if step else "before the first step"
        raise out_of_memory(where, step.examples if step else []) from None


@contextmanager
def hold_sigterm() -> Iterator[set[int]]:
    """Holds SIGTERM, which clusters send before they take a machine, until the end of a `with` block.

    The signal is recorded in the yielded set and raised again at the end. The block may add it itself, if another
    process received it.
    """
    terminated: set[int] = set()  # not an Event, whose lock the block may hold when the signal arrives
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers in no other one
        yield terminated
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: terminated.add(number))
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, before)
    if terminated:
        signal.raise_signal(signal.SIGTERM)


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """AdamW over the trained weights; norms and biases have no weight decay, as in transformers' Trainer."""
    no_decay = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    decaying = set(get_parameter_names(model, [nn.LayerNorm], no_decay))  # type: ignore[no-untyped-call]
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    groups = [
        {
            "params": [weight for name, weight in trained.items() if name in decaying],
            "weight_decay": settings.weight_decay,
        },
        {"params": [weight for name, weight in trained.items() if name not in decaying], "weight_decay": 0.0},
    ]
    # Adapters have no norms.
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=BETAS, eps=1e-8, fused=True)


def learning_rates(settings: OptimizerSettings, steps: int) -> Callable[[int], float]:
    """The learning rate of every step, counted from 0: a linear warm-up, then the decay that the settings name."""
    peak, warmup = settings.learning_rate, settings.warmup(steps)
    scheduler: Any = transformers.get_scheduler(
        settings.lr_scheduler_type,
        torch.optim.SGD([torch.zeros(1)]),  # only its function of the step is used
        num_warmup_steps=warmup,
        num_training_steps=steps,
        scheduler_specific_kwargs=dict(settings.lr_scheduler_kwargs),
    )
    (decay,) = scheduler.lr_lambdas
    # The warm-up of transformers starts at a rate of 0, at which a step learns nothing.
    return lambda step: peak * ((step + 1) / warmup if step < warmup else decay(step))


def check_plateau(losses: Sequence[float], steps: int, chance: float | None) -> None:
    """Raises `TrainingError` if the loss stays, over the last `steps` steps, at that of a model that knows nothing.

    `chance` is None if there is no such loss, and with 0 steps training never stops.
    """
    if chance is None or not steps or len(losses) < steps:
        return
    window, half = losses[-steps:], steps // 2
    mean, sooner, later = fmean(window), fmean(window[:-half] or window), fmean(window[-half:])
    # A scorer with a wide range of scores starts far above the loss at chance, and learns while its loss falls.
    if mean > _PLATEAU * chance and later > _PLATEAU * sooner:
        raise TrainingError(
            f"loss plateau at chance: {mean:.3f} over {steps} steps (a model that knows nothing has {chance:.3f}); "
            "try another learning rate, shorter contexts first, or check that the gold order is right; "
            "plateau_steps = 0 turns this check off"
        )


@contextmanager
def _tracking(settings: TrainingSettings, model: Any, folder: Path, steps: int) -> Iterator[Track]:
    """The trackers of `report_to`, through transformers' integrations (TensorBoard, Weights & Biases, MLflow, ...)."""
    names = list(settings.report_to)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        learning_rate=settings.optimizer.learning_rate,
        weight_decay=settings.optimizer.weight_decay,
        seed=settings.seed,
        report_to=names,
        use_cpu=model.device.type == "cpu",  # otherwise an Apple GPU would be claimed
    )
    callbacks = [DefaultFlowCallback, *get_reporting_integration_callbacks(names)]  # type: ignore[no-untyped-call]
    handler = CallbackHandler(callbacks, model, None, None, None)  # type: ignore[no-untyped-call]
    state, control = transformers.TrainerState(max_steps=steps), transformers.TrainerControl()

    def track(step: int, metrics: dict[str, float]) -> None:
        state.global_step = step
        handler.on_log(arguments, state, control, metrics)

    handler.on_train_begin(arguments, state, control)
    yield track
    handler.on_train_end(arguments, state, control)


def _evaluate(
    evaluations: Evaluations, step: int, track: Track | None, callbacks: Sequence[Callback]
) -> bool:
    """Evaluates the model; whether a callback ends the training."""
    record = evaluations.evaluate(step)
    values = {} if record.value is None else {f"eval_{record.metric}": record.value}
    if track and values:
        track(step, values)
    return _stops(callbacks, step, values)


def _stops(callbacks: Sequence[Callback], step: int, metrics: dict[str, float]) -> bool:
    """Calls every callback; whether one of them ends the training."""
    return True in [callback(step, metrics) for callback in callbacks]


def _not_finite(what: str, step: int, value: float, examples: Sequence[Example]) -> TrainingError:
    return TrainingError(
        f"the {what} of step {step} is {value}, from {list_ids(examples)}; try a lower optimizer.learning_rate or a "
        "longer optimizer.warmup_steps, or check the data for extreme rows"
    )


def _device() -> Device:
    """The device that trains, with the memory that is available on it."""
    if torch.cuda.is_available():
        return Device(torch.cuda.mem_get_info()[0], None, None)
    return Device(available_memory(), None, None, type="cpu")


def _check_trackers(names: Sequence[str]) -> None:
    """Raises `ConfigError` for a tracker that cannot be used on this machine."""
    available = get_available_reporting_integrations()  # type: ignore[no-untyped-call]  # transformers' own
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise ConfigError(
                f"report_to: unknown tracker '{name}'; {nearest(name, INTEGRATION_TO_CALLBACK)}"
            )
        if name not in available:
            raise ConfigError(f"report_to: the package of '{name}' is not installed: pip install {name}")


def _check_extension(settings: TrainingSettings, done: int, steps: int) -> None:
    """Raises `RunError` if the learning rate or the context length would go back to an earlier one."""
    rises = {"optimizer.warmup_steps": settings.optimizer.warmup(steps)}
    if settings.curriculum is not None and len(settings.curriculum.lengths) > 1:
        rises["curriculum.ramp"] = math.ceil(settings.curriculum.ramp * steps)
    for key, end in rises.items():
        if done and end > done:
            raise RunError(
                f"{key} covers {end:,} of {steps:,} steps, more than the {done:,} that the run has done: set it to "
                f"{done}/{steps} or less"
            )


def _check_same_data(folder: Path, digest: str) -> None:
    """Raises `RunError` if a run would resume on other data than it started with."""
    if not (folder / DATA).exists():
        write_json(folder / DATA, {"digest": digest})
    elif read_json(folder / DATA)["digest"] != digest:
        raise RunError(
            f"{folder} was started with other data: a file, the tokenizer or the version of tokenizers has changed; "
            "choose another --out, or restore the data"
        )
