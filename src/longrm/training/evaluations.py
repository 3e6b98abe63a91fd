"""Evaluation during training: a callable evaluates the model in memory, and the best model is kept."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch

from longrm.errors import LongRMError, TrainingError
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.loading import LanguageModel, Scorer
from longrm.modeling.saving import save
from longrm.modeling.sharding import compute, gather_weights
from longrm.runs.folder import write_file
from longrm.runs.logs import Log, to_line
from longrm.runs.records import EvaluationRecord
from longrm.runs.scratch import discard
from longrm.training.distributed import ALONE, DistributedContext
from longrm.training.settings import EvaluationSettings

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
        planned = step > 0 and (step % self.settings.every == 0 or step == self.last)
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
        overall, metric = summary["metrics"]["overall"], self.settings.metric
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
        """The step of the model that is saved to `best`; None without `keep_best`."""
        return self.best if self.settings.keep_best else None

    def as_dict(self) -> dict[str, Any]:
        """The evaluations in the summary of a training."""
        values = {str(record.step): record.value for record in self.records}
        return {"metric": self.settings.metric, "values": values, "best": self.best}
