"""`longrm train`, and the evaluations that it runs during the training."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.help import Command, Group, shows_all
from longrm.cli.options import CONFIG, JSON, PATH, SET, columns_option, options, resolve, setting
from longrm.cli.terminal import echo, print_json, print_next, progress
from longrm.config import described, parse_assignments
from longrm.errors import ConfigError, nearest
from longrm.reading import read_toml
from longrm.runs.progress import Progress, no_progress
from longrm.runs.workers import is_main_process

if TYPE_CHECKING:  # torch, the benchmarks and the settings of a training are slow to import
    from longrm.benchmarks import OwnTokenizer
    from longrm.evaluation.evaluate import Evaluation
    from longrm.modeling.loading import LanguageModel, Scorer
    from longrm.reward_models import RewardModel
    from longrm.training.evaluations import Evaluator
    from longrm.training.settings import EvaluationSettings, TrainingSettings

_FLAGS = (
    setting("--model", "model.path", "Folder or Hub id of the model to start from.", metavar="MODEL"),
    setting("--data", "data.path", "Training data in any format that longrm reads.", metavar="PATH"),
    columns_option("data.columns"),
    setting("--lora", "model.lora.rank", "Train adapters of this rank, not all weights.", int, "RANK"),
    setting("--epochs", "optimizer.epochs", "Passes over the data (default 1).", int, "N"),
    setting("--steps", "optimizer.steps", "Optimizer steps instead of epochs.", int, "N"),
    setting("--learning-rate", "optimizer.learning_rate", "Peak rate (default 2e-6; 1e-4 with --lora).", float, "RATE"),
    setting("--per-step", "data.per_step", "Rows per optimizer step (default 32).", int, "N"),
    setting("--max-tokens", "data.max_tokens", "Longest row (default: the model's window).", int, "N"),
    setting("--too-long", "data.too_long", "Stop at a longer row or skip it (default stop).", ["stop", "skip"]),
    setting("--gradient-checkpointing", "memory.gradient_checkpointing", "Less memory, more time.", bool),
)  # fmt: skip
"""The ten settings that are used most."""
_COMMON = {
    "Settings": "--model --data --lora --epochs --steps --learning-rate --per-step --max-tokens --too-long "
    "--gradient-checkpointing",
    "Run": "--out --config --set --json",
}
_REPORT_HELP = "Experiment tracker, such as wandb; repeatable."
SETTINGS_HEADING = "Settings for --set and --config"
_logger = logging.getLogger(__name__)


class _Objectives(Group):
    """The subcommands: one for each entry of the registry of objectives, which plug-ins add to."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from longrm.training.objectives import OBJECTIVES

        return [objective.replace("_", "-") for objective in OBJECTIVES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from longrm.training.objectives import OBJECTIVES

        objective = cmd_name.replace("-", "_")
        return _command(objective) if objective in OBJECTIVES else None


@click.group("train", cls=_Objectives)
def command() -> None:
    """Train a reward model.

    Every objective is a subcommand. A prompt is encoded once for all its responses. The model is saved to OUT/model,
    which transformers, vLLM and SGLang load. Processes started by torchrun train together. A killed run continues: bit
    for bit on the same machine with the same number of processes, otherwise up to rounding.
    """


class _TrainCommand(Command):
    """A command whose `--help-all` lists all settings, and which knows the arguments of other libraries."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from longrm.training.settings import TrainingSettings

            name = error.option_name.strip("-").replace("-", "_")
            if (other := TrainingSettings.other_names.get(name)) is None:
                raise
            hint = other if " " in other else f"use --set {other}=VALUE"
            raise click.UsageError(f"No such option: {error.option_name}; {hint}", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        if shows_all(ctx):
            from longrm.training.settings import TrainingSettings

            with formatter.section(SETTINGS_HEADING):
                formatter.write_dl([*described(TrainingSettings)])


def _command(objective: str) -> click.Command:
    from longrm.training.objectives import OBJECTIVES
    from longrm.training.settings import TrainingSettings

    kind, name = OBJECTIVES[objective], objective.replace("_", "-")
    out_help = f"Run folder; rerun to continue (default runs/{name})."

    @click.command(name, cls=_TrainCommand, help=kind.help, common=_COMMON)
    @options(*_FLAGS)
    @click.option("--report-to", multiple=True, metavar="NAME", help=_REPORT_HELP)
    @click.option("--out", type=PATH, default=Path("runs", name), help=out_help)
    @CONFIG
    @SET
    @JSON
    def train_objective(
        out: Path,
        config_file: Path | None,
        assignments: tuple[str, ...],
        as_json: bool,
        **flags: Any,
    ) -> None:
        recipe = read_toml(config_file, ConfigError) if config_file else {}
        set_here = parse_assignments(assignments)
        named = str((recipe | set_here).get("objective", objective))
        if named != objective:
            known = named in OBJECTIVES
            right = f"use: longrm train {named.replace('_', '-')}" if known else nearest(named, OBJECTIVES)
            place = "--set" if "objective" in set_here else config_file
            raise ConfigError(f'{place} has objective = "{named}"; {right}')
        settings = resolve(TrainingSettings, config_file, assignments, {**flags, "objective": objective})
        from longrm.training.train import train

        with progress() as report:
            evaluator = None
            if settings.evaluation is not None:
                shown = report if is_main_process() else no_progress
                evaluator = evaluator_of(settings.evaluation, shown, own=lambda: _own_tokenizer(settings))
            summary = train(settings, out, progress=report, evaluator=evaluator)
        if not is_main_process():
            return
        if as_json:
            print_json(summary)
        else:
            print_trained(summary, out, lora=settings.model.lora is not None)
        # The default lengths go up to the model's window, which takes long on a CPU.
        print_next("probe", out / "model", "--lengths", "256,1k,4k", "--out", "RUN", err=as_json)

    return train_objective


def _own_tokenizer(settings: "TrainingSettings") -> "OwnTokenizer | None":
    """The tokenizer of the model that training starts from."""
    from longrm.benchmarks import OwnTokenizer
    from longrm.clients.remote_settings import Remote
    from longrm.evaluation.evaluate import own_tokenizer

    if settings.model.new is not None:
        return OwnTokenizer(settings.model.new.tokenizer, settings.model.new.tokenizer)
    return own_tokenizer(settings.model.path, Remote())


def evaluator_of(
    settings: "EvaluationSettings",
    progress: Progress,
    *,
    own: Callable[[], "OwnTokenizer | None"] = lambda: None,
) -> "Evaluator":
    """The evaluator of a recipe: a function that judges a benchmark with the model in memory.

    Args:
        settings: Benchmark, metric and interval.
        progress: Called after every batch.
        own: Returns the tokenizer of the model that training starts from; a probe measures lengths in its tokens.
    """
    from longrm import benchmarks
    from longrm.evaluation.evaluate import Evaluation, run_evaluation
    from longrm.evaluation.metrics import metric_of, reported
    from longrm.runs.logs import JUDGMENTS
    from longrm.types import Outcome

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
    if not metric_of(settings.metric).for_pairs and all(len(row.responses) == 2 for row in bench.comparisons):
        known = ", ".join(metric.name for metric in reported(pairs_only=True))
        raise ConfigError(
            f"evaluation.metric: '{settings.metric}' needs three responses or more, and {bench.name} has pairs; it has "
            f"{known}"
        )

    def evaluate(trained: "Scorer | LanguageModel", folder: Path) -> Mapping[str, Any]:
        name = f"{folder.resolve().parent.parent.name} at step {folder.name}"
        named = evaluation.model_copy(update={"model": name})
        with _judge(trained, name, evaluation) as model:
            summary = run_evaluation(named, folder, bench=bench, model=model, progress=progress)
        if errors := summary.counts.outcomes[Outcome.ERROR]:
            share = f"{errors} of {summary.counts.comparisons} comparisons"
            _logger.warning("step %s: %s ended in errors; see %s", folder.name, share, folder / JUDGMENTS)
        return summary.to_dict()

    return evaluate


@contextmanager
def _judge(trained: "Scorer | LanguageModel", name: str, settings: "Evaluation") -> Iterator["RewardModel"]:
    """The reward model that shares its weights with the model in training."""
    from longrm.modeling.loading import Scorer, generation_mode
    from longrm.modeling.local_generator import LocalTextGenerator
    from longrm.reward_models.generative import GenerativeRewardModel
    from longrm.reward_models.packed import DiscriminativeRewardModel

    if isinstance(trained, Scorer):
        yield DiscriminativeRewardModel(trained, name, settings.model_args)
        return
    with generation_mode(trained) as language_model:
        writer = LocalTextGenerator(language_model, name)
        yield GenerativeRewardModel(writer, settings.judge, settings.model_args, tokenizer=trained.tokenizer)


def print_trained(summary: Mapping[str, Any], out: Path, *, lora: bool) -> None:
    """Prints loss and accuracy, and where the model is."""
    from longrm.runs.logs import TIMING, Log
    from longrm.runs.records import TimingRecord

    accuracy = "" if summary["accuracy"] is None else f", pair accuracy {summary['accuracy']:.1%}"
    means = f"loss {summary['loss']:.4f}{accuracy} over the last {summary['window']}"
    if (
        sampled := summary.get("rollouts")
    ) is not None:  # the loss of a policy gradient is near 0 whatever it learns
        right = "" if summary["accuracy"] is None else f", {summary['accuracy']:.1%} of judgments right"
        means = (
            f"reward {sampled['reward']:.3f}{right}, {sampled['unparsed']:.1%} without a verdict, "
            f"{sampled['constant_groups']:.1%} of groups with equal rewards, over the last {summary['window']}"
        )
    timing = list(Log(out / TIMING, TimingRecord))
    seconds = sum(record.seconds for record in timing)
    rate = f", {sum(record.tokens for record in timing) / seconds:,.0f} per second" if seconds else ""
    echo(f"Trained {summary['steps']:,} steps: {means}; {summary['tokens']:,} tokens{rate}")
    if (found := summary["evaluations"]) is not None:
        best, metric = found["best"], found["metric"]
        if best is None:
            echo(f"{metric} is undefined: the model answered no comparison")
        else:
            echo(f"Best {metric} {found['values'][str(best)]:.4f} after step {best:,}")
    step = summary["model_step"]
    at = "" if step == summary["steps"] else f", as of step {step:,}"
    what = "adapter (longrm merge makes a full model of it)" if lora else "model"
    echo(f"Saved the {what} to {out / 'model'}{at}")
