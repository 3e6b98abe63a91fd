"""A training as a user asks for it: a recipe in, a run folder with the model out."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, RunError, first_line, nearest
from longrm.evaluation.summary_schema import read_summary
from longrm.modeling.allocator import return_freed_memory
from longrm.modeling.loading import LanguageModel, Scorer, save
from longrm.modeling.sequence_parallel import share_sequences
from longrm.runs.folder import SCHEMA_VERSION, SUMMARY, read_json, write_json
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, no_progress
from longrm.runs.records import StepRecord
from longrm.runs.workers import world_size
from longrm.training.batches import Batches, Objective
from longrm.training.bradley_terry import BradleyTerry, BradleyTerryTraining
from longrm.training.card import write_card
from longrm.training.curriculum import Curriculum
from longrm.training.data import FileSource, GeneratedSource, open_source
from longrm.training.evaluations import BEST, Evaluations, Evaluator, evaluation_of
from longrm.training.logs import STEPS, logged_steps
from longrm.training.optimizers import check_optimizer
from longrm.training.preference import Preference, PreferenceTraining
from longrm.training.processes import Processes, own_folder, processes
from longrm.training.reference import reference_logprobs
from longrm.training.settings import MOST_STEPS
from longrm.training.sft import SFT, SFTTraining
from longrm.training.start import start_of
from longrm.training.trainer import train
from longrm.training.zero import whole

__all__ = ["MODEL", "RECIPES", "Evaluator", "Recipe", "run"]

_logger = logging.getLogger(__name__)

Recipe = SFTTraining | PreferenceTraining | BradleyTerryTraining

RECIPES: dict[str, type[Recipe]] = {
    "sft": SFTTraining,
    "preference": PreferenceTraining,
    "bradley_terry": BradleyTerryTraining,
}
"""The settings of every objective by its name, as a recipe's `objective` gives it."""

MODEL = "model"
DATA = "data.json"
_WINDOW = 20


def run(
    recipe: Recipe,
    out: Path,
    *,
    progress: Progress = no_progress,
    evaluator: Evaluator | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Trains into the folder `out`, continuing from its latest checkpoint.

    Args:
        recipe: What to train, on what.
        out: The run folder; the model lies in `out/model` at the end.
        progress: Called after every step.
        evaluator: Judges the model as often as the recipe's `evaluation` says.
        clock: Tells seconds.

    Returns:
        The summary; `summary.json` holds the same.

    Raises:
        ConfigError: The processes cannot be laid out as the recipe says, a tracker is not there, or evaluations have no
            evaluator.
        ModelError: The start cannot be loaded, or is of the wrong kind.
        DataError: The data cannot be read.
        TrainingError: A NaN, a stalled loss, or memory that ran out.
    """
    _check_trackers(recipe.report_to)
    check_optimizer(recipe.optimizer)
    recipe.check_devices(world_size())
    if recipe.evaluation is not None and evaluator is None:
        raise ConfigError("the recipe asks for evaluations while training goes on: give run() an evaluator")
    with processes(recipe.parallel) as place, own_folder(place, out, recipe) as folder:
        if (out / SUMMARY).exists():
            summary = read_summary(out)
            if logged_steps(out) == summary["steps"]:
                return summary
        place.wait()  # until all have looked: the first is about to write
        if place.count > 1 or recipe.parallel.zero:
            _logger.info(recipe.parallel.told(place.count))
        return_freed_memory()
        trainee = start_of(recipe, recipe.trains)
        folder.record(model=trainee.provenance)
        if place.sequence is not None:
            share_sequences(trainee.model, place.sequence)
        own = folder.path
        counts, evaluations = _train(
            recipe, trainee, own, out, place, progress if place.leads else no_progress, evaluator, clock
        )
        summary = _summary(recipe.objective, list(Log(own / STEPS, StepRecord)), counts, evaluations)
        best = evaluations is not None and evaluations.kept is not None
        if not best:
            with whole(trainee.model):
                if place.leads:
                    save(trainee, out / MODEL)
        if place.leads:
            if best:
                _copy(out / BEST, out / MODEL)
            write_card(
                out / MODEL,
                recipe,
                summary,
                evaluation=evaluation_of(out, summary["model_step"]),
                commit=trainee.commits.get("commit"),
            )
            folder.write_summary(summary)
        place.wait()
        return summary


def _train(
    recipe: Recipe,
    trainee: Scorer | LanguageModel,
    folder: Path,
    home: Path,
    place: Processes,
    progress: Progress,
    evaluator: Evaluator | None,
    clock: Callable[[], float],
) -> tuple[Mapping[str, int], Evaluations | None]:
    """Trains; returns what the data counted, and the evaluations."""
    limit = int(trainee.model.config.max_position_embeddings)
    source = source_of(recipe, trainee.tokenizer, limit=limit, progress=progress)
    _check_same(folder, source.digest)
    steps = recipe.optimizer.steps or (recipe.optimizer.epochs or 1) * (source.epoch_steps() or 0)
    if steps > MOST_STEPS:
        raise ConfigError(
            f"optimizer.epochs makes {steps:,} steps of this data, and a training has {MOST_STEPS:,} at most"
        )
    curriculum = (
        Curriculum(recipe.curriculum, steps=steps, seed=recipe.seed)
        if recipe.curriculum is not None
        else None
    )
    objective = _objective(recipe, trainee, source, folder, place, progress)
    budget = recipe.memory.tokens_per_forward
    batches = Batches(source, objective, budget=budget, limit=limit, curriculum=curriculum, share=place.share)
    evaluations = None
    if recipe.evaluation is not None:
        assert evaluator is not None, "checked before"
        evaluations = Evaluations(recipe.evaluation, evaluator, trainee, folder, last=steps, place=place)
    train(
        trainee,
        objective,
        batches,
        recipe,
        folder,
        home=home,
        place=place,
        steps=steps,
        evaluations=evaluations,
        progress=progress,
        clock=clock,
    )
    return source.counts, evaluations


def source_of(
    recipe: Recipe, tokenizer: Tokenizer, *, limit: int, progress: Progress
) -> GeneratedSource | FileSource:
    """Opens the data of a recipe as its objective reads it; see `open_source`."""
    return open_source(
        recipe.data,
        tokenizer,
        recipe.seed,
        kind=recipe.reads,
        limit=limit,
        ties=isinstance(recipe, BradleyTerryTraining) and recipe.loss.ties,
        progress=progress,
    )


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


def _objective(
    recipe: Recipe,
    trainee: Scorer | LanguageModel,
    source: Any,
    folder: Path,
    place: Processes,
    progress: Progress,
) -> Objective:
    match recipe:
        case BradleyTerryTraining():
            graded = any(source.counts.get(name) for name in ("margin", "probability"))
            return BradleyTerry(recipe.loss, graded=graded)
        case SFTTraining():
            return SFT()
        case PreferenceTraining():
            pass
        case unknown:
            assert_never(unknown)
    if recipe.loss.kind != "dpo":
        return Preference(recipe.loss)
    select = Preference(recipe.loss).select
    reference = reference_logprobs(
        trainee.model,
        map(select, source.examples()),
        folder,
        budget=recipe.memory.tokens_per_forward,
        progress=progress,
        place=place,
    )
    return Preference(recipe.loss, reference)


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
    """Copies a model folder; a half-made copy is never seen."""
    scratch = target.with_name(f".{target.name}.tmp")
    for stale in (scratch, target):
        shutil.rmtree(stale, ignore_errors=True)
    try:
        shutil.copytree(model, scratch)
        scratch.rename(target)
    except OSError as error:  # of many files, as shutil tells it
        raise RunError(f"cannot copy {model} to {target}: {first_line(error)}") from None


def _check_trackers(names: Sequence[str]) -> None:
    available = get_available_reporting_integrations()  # type: ignore[no-untyped-call]  # transformers' own
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise ConfigError(
                f"report_to: there is no tracker '{name}'; {nearest(name, INTEGRATION_TO_CALLBACK)}"
            )
        if name not in available:
            raise ConfigError(
                f"report_to: the package of '{name}' is missing; install it (pip install {name})"
            )
