"""What a recipe says of evaluation, made into the callable that training asks."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longrm import benchmarks
from longrm.benchmarks import OwnTokenizer
from longrm.errors import ConfigError
from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.evaluation.metrics import metric_of, reported
from longrm.reward_models import JudgeSettings, RewardModel
from longrm.runs.judgments import JUDGMENTS
from longrm.runs.progress import Progress

if TYPE_CHECKING:  # torch is not loaded before the settings are known to be right
    from longrm.modeling.loading import LanguageModel, Scorer
    from longrm.training.evaluations import Evaluator
    from longrm.training.training_settings import EvaluationSettings

_logger = logging.getLogger(__name__)


def evaluator_of(
    settings: "EvaluationSettings",
    progress: Progress,
    *,
    own: Callable[[], OwnTokenizer | None] = lambda: None,
) -> "Evaluator":
    """The evaluator of a recipe: a benchmark judged by the model in memory.

    Args:
        settings: What is evaluated, and when.
        progress: Called after every batch.
        own: Finds the tokenizer of the model that training starts from, in whose tokens a probe measures lengths.

    Raises:
        ConfigError: Settings that no evaluation has, or that name a model; an unknown benchmark; a metric that it
            does not have.
        DataError: There is nothing to read for the benchmark.
    """
    named = [key for key in ("model", "recorded") if key in settings.settings]
    if named:
        raise ConfigError(
            f"evaluation.settings.{named[0]}: the model that is trained is evaluated; leave it out"
        )
    try:
        evaluation = Evaluation.resolve(None, settings.settings)
    except ConfigError as error:
        raise ConfigError(f"evaluation.settings: {error}") from None
    bench = benchmarks.load(
        evaluation.bench,
        source=evaluation.source,
        probe=evaluation.probe,
        leval=evaluation.leval,
        own=own,
    )

    if not metric_of(settings.metric).for_pairs and all(len(row.responses) == 2 for row in bench.comparisons):
        raise ConfigError(
            f"evaluation.metric: '{settings.metric}' is of three responses or more, and {bench.name} has pairs; it has "
            f"{', '.join(metric.name for metric in reported(pairs_only=True))}"
        )

    def evaluate(trained: "Scorer | LanguageModel", folder: Path) -> Mapping[str, Any]:
        name = f"{folder.resolve().parent.parent.name} at step {folder.name}"
        named = evaluation.model_copy(update={"model": name})
        with _judge(trained, name, evaluation.judge) as model:
            summary = run_evaluation(named, folder, bench=bench, model=model, progress=progress)
        errors = summary["counts"]["outcomes"]["error"]
        if errors:
            _logger.warning(
                "%d of %d comparisons of the evaluation after step %s ended in errors, named in %s; its figures are of "
                "the others",
                errors,
                summary["counts"]["comparisons"],
                folder.name,
                folder / JUDGMENTS,
            )
        return summary

    return evaluate


@contextmanager
def _judge(trained: "Scorer | LanguageModel", name: str, settings: JudgeSettings) -> Iterator[RewardModel]:
    """The reward model that shares its weights with the model in training, which is left as it was."""
    from longrm.modeling.loading import Scorer, generation_mode
    from longrm.modeling.local_writer import LocalWriter
    from longrm.reward_models.discriminative import DiscriminativeRewardModel
    from longrm.reward_models.generative import GenerativeRewardModel

    if isinstance(trained, Scorer):
        yield DiscriminativeRewardModel(trained, name, settings)
        return
    with generation_mode(trained) as language_model:
        writer = LocalWriter(language_model, name)
        yield GenerativeRewardModel(writer, settings, tokenizer=trained.tokenizer)
