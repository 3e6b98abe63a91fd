"""Training as a user starts it: settings in, a run folder with the model out."""

import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)

from longrm.errors import ConfigError, RunError, nearest
from longrm.evaluation.summary_schema import read_summary
from longrm.modeling.device_memory import pair_cost, return_freed_memory
from longrm.modeling.loading import LanguageModel
from longrm.modeling.saving import save
from longrm.modeling.sequence_parallel import share_sequences
from longrm.modeling.sharding import gather_weights
from longrm.runs.folder import FILES, SCHEMA_VERSION, SUMMARY, check_files, read_json, write_json
from longrm.runs.logs import STEPS, Log
from longrm.runs.progress import Progress, no_progress
from longrm.runs.records import StepRecord
from longrm.runs.scratch import new_folder
from longrm.training.batches import Batches, ExampleSource
from longrm.training.checkpoints import saved_steps
from longrm.training.distributed import join_processes, process_folder
from longrm.training.evaluations import BEST, Evaluations, Evaluator
from longrm.training.initial_model import load_initial_model, prepare_model
from longrm.training.model_card import CardContext, evaluations_of, write_card
from longrm.training.objectives import GRPO, OBJECTIVES
from longrm.training.plan import Device
from longrm.training.plan.available import available_memory
from longrm.training.plan.plan import fit_memory
from longrm.training.reference import reference_logprobs
from longrm.training.rollouts import RolloutSource
from longrm.training.sampling import Curriculum
from longrm.training.settings import TrainingSettings
from longrm.training.sources import FileSource, open_source
from longrm.training.trainer import train_steps

_logger = logging.getLogger(__name__)

MODEL = "model"
DATA = "data.json"
_WINDOW = 20  # steps over which the summary averages loss and accuracy


def train(
    settings: TrainingSettings,
    out: Path,
    *,
    progress: Progress = no_progress,
    evaluator: Evaluator | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Trains into the run folder `out`, resuming from its latest checkpoint; the model is saved to `out/model`.

    A run may continue with more steps if its learning rate has not ended with the old ones: with a constant schedule,
    or with another one than before.

    `evaluator` evaluates the model in training at the interval in `settings.evaluation`. Returns the contents of
    `summary.json`; a finished run is returned as it is.
    """
    _check_trackers(settings.report_to)
    if settings.evaluation is not None and evaluator is None:
        raise ConfigError("the settings have [evaluation]: give train() an evaluator")
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
            reserved=settings.rollouts.max_tokens if settings.rollouts is not None else 0,
            progress=progress,
        )
        settings = fit_memory(settings, source, device, context.count)
        if source.digest:
            _check_same_data(folder.path, source.digest)
        prepare_model(model, settings)
        if context.sequence is not None:
            share_sequences(model.model, context.sequence)
        steps = settings.optimizer.steps
        if steps is None:
            assert isinstance(source, FileSource), "settings require steps for generated data"
            iterations = settings.rollouts.num_iterations if settings.rollouts is not None else 1
            steps = source.steps(settings.optimizer.epochs or 1) * iterations
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
            assert settings.rollouts is not None, "settings require it"
            objective.rollouts = settings.rollouts
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
    rises = {"optimizer.warmup_ratio": settings.optimizer.warmup_ratio}
    if settings.curriculum is not None and len(settings.curriculum.lengths) > 1:
        rises["curriculum.ramp"] = settings.curriculum.ramp
    for key, share in rises.items():
        if done and math.ceil(share * steps) > done:
            raise RunError(
                f"{key} = {share} covers {math.ceil(share * steps):,} of {steps:,} steps, more than the {done:,} that "
                f"the run has done: set it to {done}/{steps} or less"
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
