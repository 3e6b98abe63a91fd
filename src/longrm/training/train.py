"""Training as a user starts it: settings in, a run folder with the model out."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)
from transformers.utils.import_utils import is_bitsandbytes_available

from longrm.errors import ConfigError, RunError, first_line, nearest
from longrm.evaluation.summaries import read_summary
from longrm.modeling.device_memory import return_freed_memory
from longrm.modeling.loading import LanguageModel, Scorer
from longrm.modeling.saving import save
from longrm.modeling.sequence_parallel import share_sequences
from longrm.runs.folder import SCHEMA_VERSION, SUMMARY, read_json, write_json
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, no_progress
from longrm.runs.promised_files import FILES, check_files
from longrm.runs.records import StepRecord
from longrm.runs.scratch import new_folder
from longrm.runs.workers import world_size
from longrm.training.batches import Batches
from longrm.training.card_results import evaluations_of
from longrm.training.distributed import DistributedContext, join_processes, process_folder
from longrm.training.evaluations import BEST, Evaluations, Evaluator
from longrm.training.initial_model import initial_model
from longrm.training.model_card import CardFacts, write_card
from longrm.training.objectives import OBJECTIVES
from longrm.training.reference import reference_logprobs
from longrm.training.sampler import Curriculum
from longrm.training.sources import source_of
from longrm.training.step_logs import STEPS, logged_steps
from longrm.training.trainer import StepTrainer
from longrm.training.training_settings import MOST_STEPS, TrainingSettings
from longrm.training.zero import whole

_logger = logging.getLogger(__name__)

MODEL = "model"
DATA = "data.json"
_WINDOW = 20


def train(
    settings: TrainingSettings,
    out: Path,
    *,
    progress: Progress = no_progress,
    evaluator: Evaluator | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Trains into the run folder `out`, continuing from its latest checkpoint; the model is saved to `out/model`.

    An evaluator evaluates the model as often as `settings.evaluation` says. `summary.json` holds what is returned.

    Raises:
        ConfigError: The processes cannot be laid out as the settings say, a tracker is not there, or evaluations have
            no evaluator.
        ModelError: The start cannot be loaded, or is of the wrong kind.
        DataError: The data cannot be read.
        RunError: The run has ended, and a file of its model is missing or truncated.
        TrainingError: A NaN loss, a loss plateau at chance, or memory that ran out.
    """
    _check_available(settings)
    settings.check_devices(world_size())
    if settings.evaluation is not None and evaluator is None:
        raise ConfigError("the recipe asks for evaluations while training goes on: give train() an evaluator")
    with join_processes(settings.parallel) as context, process_folder(context, out, settings) as folder:
        if (out / SUMMARY).exists():
            summary = read_summary(out)
            if logged_steps(out) == summary["steps"]:
                # A user who edited a file removes the record; without a model folder this is an error.
                if (out / MODEL / FILES).is_file() or not (out / MODEL).is_dir():
                    check_files(out / MODEL)
                return summary
        context.wait()  # until all have looked: the main process is about to write
        if context.count > 1 or settings.parallel.zero:
            _logger.info(settings.parallel.describe(context.count))
        return_freed_memory()
        model = initial_model(settings, OBJECTIVES[settings.objective].trains)
        folder.record(model=model.provenance)
        if context.sequence is not None:
            share_sequences(model.model, context.sequence)
        if not context.is_main_process:
            progress = no_progress
        counts, evaluations = _train(settings, model, folder.path, out, context, progress, evaluator, clock)
        records = list(Log(folder.path / STEPS, StepRecord))
        summary = _summary(settings.objective, records, counts, evaluations)
        if evaluations is None or evaluations.kept is None:
            with whole(model.model):
                if context.is_main_process:
                    save(model, out / MODEL)
        elif context.is_main_process:
            _copy(out / BEST, out / MODEL)
        if context.is_main_process:
            evaluations_made = evaluations_of(out, summary["model_step"])
            write_card(out / MODEL, CardFacts(settings, summary, evaluations_made, model.origin))
            folder.write_summary(summary)
        context.wait()
        return summary


def _train(
    settings: TrainingSettings,
    model: Scorer | LanguageModel,
    folder: Path,
    out: Path,
    context: DistributedContext,
    progress: Progress,
    evaluator: Evaluator | None,
    clock: Callable[[], float],
) -> tuple[Mapping[str, int], Evaluations | None]:
    """Trains; returns what the data counted, and the evaluations."""
    limit = int(model.model.config.max_position_embeddings)
    budget = settings.memory.tokens_per_forward
    source = source_of(settings, model.tokenizer, limit=limit, progress=progress)
    _check_same(folder, source.digest)
    steps = settings.optimizer.steps or (settings.optimizer.epochs or 1) * (source.epoch_steps() or 0)
    if steps > MOST_STEPS:
        raise ConfigError(
            f"optimizer.epochs makes {steps:,} steps of this data, and a training has {MOST_STEPS:,} at most"
        )
    build = OBJECTIVES[settings.objective].build
    objective = build(settings, source.counts, None)
    if settings.needs_reference:
        selected = map(objective.select, source.examples())
        reference = reference_logprobs(
            model.model, selected, folder, budget=budget, progress=progress, context=context
        )
        objective = build(settings, source.counts, reference)
    lengths = settings.curriculum
    batches = Batches(
        source,
        objective,
        budget=budget,
        limit=limit,
        curriculum=None if lengths is None else Curriculum(lengths, steps=steps, seed=settings.seed),
        share=context.share,
    )
    evaluations = None
    if settings.evaluation is not None:
        assert evaluator is not None, "checked before"
        evaluations = Evaluations(settings.evaluation, evaluator, model, folder, last=steps, context=context)
    StepTrainer(
        model.model,
        objective,
        batches,
        settings,
        folder,
        main_folder=out,
        context=context,
        steps=steps,
        evaluations=evaluations,
        progress=progress,
        clock=clock,
    ).run()
    model.model.eval()
    return source.counts, evaluations


def _check_same(out: Path, digest: str) -> None:
    """Refuses to continue a run on other data than it began with.

    Raises:
        RunError: The files, or what makes tokens of them, have changed.
    """
    if not digest:
        return
    if not (out / DATA).exists():
        write_json(out / DATA, {"digest": digest})
    elif read_json(out / DATA)["digest"] != digest:
        raise RunError(
            f"{out} was begun with other data: a file, the tokenizer or the version of tokenizers has changed; "
            "take another --out, or put back what was there"
        )


def _summary(
    objective: str,
    records: Sequence[StepRecord],
    counts: Mapping[str, int],
    evaluations: Evaluations | None,
) -> dict[str, Any]:
    last = records[-_WINDOW:]
    accuracies = [record.accuracy for record in last if record.accuracy is not None]
    kept = evaluations.kept if evaluations is not None else None
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "training",
        "objective": objective,
        "steps": len(records),
        "tokens": sum(record.tokens for record in records),
        "window": len(last),
        "loss": sum(record.loss for record in last) / len(last),
        "accuracy": sum(accuracies) / len(accuracies) if accuracies else None,
        "data": dict(counts),
        "evaluations": evaluations.as_dict() if evaluations is not None else None,
        "model_step": kept or len(records),
    }


def _copy(model: Path, target: Path) -> None:
    """Copies a model folder; an incomplete copy is never seen."""
    try:
        with new_folder(target) as scratch:
            shutil.copytree(model, scratch, dirs_exist_ok=True)
    except OSError as error:  # shutil collects the errors of many files
        raise RunError(f"cannot copy {model} to {target}: {first_line(error)}") from None


def _check_available(settings: TrainingSettings) -> None:
    """Refuses trackers and optimizers whose package is not here, and memory to page where there is no GPU."""
    available = get_available_reporting_integrations()  # type: ignore[no-untyped-call]  # transformers' own
    for name in settings.report_to:
        if name not in INTEGRATION_TO_CALLBACK:
            raise ConfigError(
                f"report_to: there is no tracker '{name}'; {nearest(name, INTEGRATION_TO_CALLBACK)}"
            )
        if name not in available:
            raise ConfigError(
                f"report_to: the package of '{name}' is missing; install it (pip install {name})"
            )
    kind = settings.optimizer.kind
    if kind != "adamw" and not is_bitsandbytes_available():
        raise ConfigError(
            f'optimizer.kind = "{kind}" needs the package bitsandbytes, 0.46.1 or later: pip install -U bitsandbytes'
        )
    if kind == "paged_adamw_8bit" and not torch.cuda.is_available():
        raise ConfigError(
            f'optimizer.kind = "{kind}" pages the memory of a GPU, and there is none: take "adamw_8bit"'
        )
