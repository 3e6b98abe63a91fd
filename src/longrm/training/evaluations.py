"""Evaluation during training: a callable evaluates the model in memory, and the best model is kept."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch

from longrm import benchmarks
from longrm.benchmarks import OwnTokenizer
from longrm.clients.remote_settings import Remote
from longrm.errors import ConfigError, LongRMError, TrainingError
from longrm.evaluation.evaluate import Evaluation, own_tokenizer, run_evaluation
from longrm.evaluation.metrics import metric_of, reported
from longrm.evaluation.summary_schema import EvaluationSummary
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.loading import LanguageModel, Scorer
from longrm.modeling.local_generator import LocalTextGenerator
from longrm.modeling.saving import save
from longrm.modeling.sharding import compute, gather_weights
from longrm.reward_models import RewardModel
from longrm.reward_models.generative import GenerativeRewardModel
from longrm.reward_models.packed import DiscriminativeRewardModel
from longrm.runs.folder import write_file
from longrm.runs.logs import JUDGMENTS, Log, to_line
from longrm.runs.progress import Progress
from longrm.runs.records import EvaluationRecord
from longrm.runs.scratch import discard
from longrm.training.distributed import ALONE, DistributedContext
from longrm.training.settings import EvaluationSettings, ModelSettings
from longrm.types import Outcome

_logger = logging.getLogger(__name__)

RECORDS, BEST, EVALUATIONS = "evaluations.jsonl", "best", "evaluations"

Evaluator = Callable[[Scorer | LanguageModel, Path], Mapping[str, Any]]
"""Evaluates the model in memory into a run folder, and returns the summary."""


@dataclass(slots=True)
class Evaluations:
    """The evaluations of a model in training; the last one follows the last step of the training.

    An evaluation follows the checkpoint of its step. So a run that is killed in an evaluation continues it with the
    same weights, and repeats no other one.
    """

    settings: EvaluationSettings
    evaluator: Evaluator
    model: Scorer | LanguageModel
    folder: Path  # the run folder
    _: KW_ONLY
    last: int  # the last step of the training
    context: DistributedContext = ALONE  # this process among those that evaluate the model together
    records: list[EvaluationRecord] = field(default_factory=list)

    @property
    def _log(self) -> Log[EvaluationRecord]:
        return Log(self.folder / RECORDS, EvaluationRecord)

    def resume_from(self, step: int) -> None:
        """Removes evaluations of later steps than the checkpoint from which training resumes."""
        self.records = [record for record in self._log if record.step <= step]
        write_file(self._log.path, b"".join(map(to_line, self.records)))
        for entry in list((self.folder / EVALUATIONS).glob("*")):
            if entry.name.isdigit() and int(entry.name) > step:
                discard(entry)

    def due(self, step: int) -> bool:
        """Whether the model is to be evaluated after this step, and has not been."""
        planned = step > 0 and (step % self.settings.eval_steps == 0 or step == self.last)
        return planned and all(record.step != step for record in self.records)

    def evaluate(self, step: int) -> EvaluationRecord:
        """Evaluates the model, and saves it if it is the best so far. Training's random state is not changed."""
        model = self.model.model
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        try:
            with torch.random.fork_rng(devices=devices), torch.no_grad():
                folder = self.folder / EVALUATIONS / str(step)
                summary = compute(model, self.evaluator, self.model, folder)
        except LongRMError as error:
            raise type(error)(f"evaluation after step {step}: {error}") from None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"out of memory in the evaluation after step {step}; lower evaluation.settings.model_args.max_length, "
                "or remove [evaluation] and use longrm evaluate after training"
            ) from None
        overall, metric = summary["metrics"]["overall"], self.settings.metric_for_best_model
        # Rounding may differ between processes, and all must agree on which model is the best.
        record = EvaluationRecord(step, metric, self.context.broadcast(overall[metric]["value"]))
        self.records.append(record)
        if self.kept == step:
            is_main = self.context.is_main_process
            weights = gather_weights(model, wanted=is_main)
            if is_main:
                save(self.model, self.folder / BEST, weights)
            self.context.wait()
        with self._log as log:  # last, so that an evaluation that is killed half-way is repeated
            log.append(record)
        return record

    @property
    def best(self) -> int | None:
        """The step with the best value, the first of equals; None if no value is defined."""
        known = [(record.value, -record.step) for record in self.records if record.value is not None]
        return -max(known)[1] if known else None

    @property
    def kept(self) -> int | None:
        """The step of the model that is saved to `best`; None without `load_best_model_at_end`."""
        return self.best if self.settings.load_best_model_at_end else None

    def as_dict(self) -> dict[str, Any]:
        """The evaluations in the summary of a training."""
        values = {str(record.step): record.value for record in self.records}
        return {"metric": self.settings.metric_for_best_model, "values": values, "best": self.best}


def evaluator_of(
    settings: EvaluationSettings, progress: Progress, start: ModelSettings | None = None
) -> Evaluator:
    """The evaluator of a recipe: a function that judges a benchmark with the model in memory.

    `start` is the model that training starts from: a probe measures lengths in its tokens.
    """

    def own() -> OwnTokenizer | None:
        if start is not None and start.new is not None:
            return OwnTokenizer(start.new.tokenizer, start.new.tokenizer)
        return own_tokenizer(start.path if start is not None else None, Remote())

    for key in ("model", "recorded"):
        if key in settings.settings:
            raise ConfigError(f"evaluation.settings.{key}: drop it; the model in training is evaluated")
    try:
        evaluation = Evaluation.resolve(None, settings.settings)
    except ConfigError as error:
        raise ConfigError(f"evaluation.settings: {error}") from None
    bench = benchmarks.load(
        evaluation.bench,
        source=evaluation.source,
        probe=evaluation.probe,
        own=own,
    )
    if bench.trajectories is not None:
        raise ConfigError(
            f"{bench.name} has trajectories, which only longrm evaluate judges; choose another benchmark"
        )
    if bench.criteria is not None:
        raise ConfigError(f"{bench.name} has recorded labels only, not comparisons; choose another benchmark")
    wanted = settings.metric_for_best_model
    if not metric_of(wanted).for_pairs and all(len(row.responses) == 2 for row in bench.comparisons):
        known = ", ".join(metric.name for metric in reported(pairs_only=True))
        raise ConfigError(
            f"evaluation.metric_for_best_model: '{wanted}' needs three responses or more, and {bench.name} has pairs; "
            f"it has {known}"
        )

    def evaluate(trained: Scorer | LanguageModel, folder: Path) -> Mapping[str, Any]:
        name = f"{folder.resolve().parent.parent.name} at step {folder.name}"
        named = evaluation.model_copy(update={"model": name})
        model = _judge(trained, name, evaluation)
        summary = run_evaluation(named, folder, bench=bench, model=model, progress=progress)
        assert isinstance(summary, EvaluationSummary), "the benchmark has comparisons"
        if errors := summary.counts.outcomes[Outcome.ERROR]:
            share = f"{errors} of {summary.counts.comparisons} comparisons"
            _logger.warning("step %s: %s ended in errors; see %s", folder.name, share, folder / JUDGMENTS)
        return summary.to_dict()

    return evaluate


def _judge(trained: Scorer | LanguageModel, name: str, settings: Evaluation) -> RewardModel:
    """The reward model that shares its weights with the model in training."""
    if isinstance(trained, Scorer):
        return DiscriminativeRewardModel(trained, name, settings.model_args)
    writer = LocalTextGenerator(trained, name)
    return GenerativeRewardModel(writer, settings.judge, settings.model_args, tokenizer=trained.tokenizer)
