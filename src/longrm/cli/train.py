"""`longrm train`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from longrm.cli.help import Command, Group, shows_all
from longrm.cli.options import CONFIG, JSON, PATH, SET, columns_option, options, resolve, setting
from longrm.cli.terminal import echo, print_json, print_next, progress
from longrm.config import described, parse_assignments
from longrm.errors import ConfigError, nearest
from longrm.reading import read_toml
from longrm.runs.workers import is_main_process

_FLAGS = (
    setting("--model", "model.path", "Folder or Hub id of the model to start from.", metavar="MODEL"),
    setting("--data", "data.path", "Training data in any format that longrm reads.", metavar="PATH"),
    columns_option("data.columns"),
    setting("--lora", "model.lora.r", "Train adapters of this rank, not all weights.", int, "RANK"),
    setting("--num-train-epochs", "optimizer.num_train_epochs", "Passes over the data (default 1).", int, "N"),
    setting("--max-steps", "optimizer.max_steps", "Optimizer steps instead of epochs.", int, "N"),
    setting("--learning-rate", "optimizer.learning_rate", "Peak rate (default 2e-6; 1e-4 with --lora).", float, "RATE"),
    setting("--per-step", "data.per_step", "Rows per optimizer step (default 32).", int, "N"),
    setting("--max-length", "data.max_length", "Longest row (default: the model's window).", int, "N"),
    setting("--too-long", "data.too_long", "Stop at a longer row or skip it (default stop).", ["stop", "skip"]),
    setting("--gradient-checkpointing", "memory.gradient_checkpointing", "Less memory, more time.", bool),
)  # fmt: skip
"""The ten settings that are used most."""
_COMMON = {
    "Settings": "--model --data --lora --num-train-epochs --max-steps --learning-rate --per-step --max-length "
    "--too-long --gradient-checkpointing",
    "Run": "--out --config --set --json",
}
_REPORT_HELP = "Experiment tracker, such as wandb; repeatable."
SETTINGS_HEADING = "Settings for --set and --config"


class _Objectives(Group):
    """The subcommands: one for each entry of the registry of objectives, which plug-ins add to."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from longrm.training.objectives import OBJECTIVES

        return [objective.replace("_", "-") for objective in OBJECTIVES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from longrm.training.losses import LOSSES
        from longrm.training.objectives import OBJECTIVES

        objective = cmd_name.replace("-", "_")
        if objective in LOSSES and objective not in OBJECTIVES:
            of = LOSSES[objective].objective.replace("_", "-")
            raise click.UsageError(
                f"{cmd_name} is a loss: longrm train {of} --set loss_type={objective}", ctx
            )
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
            summary = train(settings, out, progress=report)
        if not is_main_process():
            return
        if as_json:
            print_json(summary)
        else:
            print_trained(summary, out, lora=settings.model.lora is not None)
        # The default lengths go up to the model's window, which takes long on a CPU.
        task = ["--tasks", "trajectory"] if objective == "prm" else []
        print_next("probe", out / "model", "--lengths", "256,1k,4k", *task, "--out", "RUN", err=as_json)

    return train_objective


def print_trained(summary: Mapping[str, Any], out: Path, *, lora: bool) -> None:
    """Prints loss and accuracy, and where the model is."""
    from longrm.runs.logs import TIMING, Log
    from longrm.runs.records import TimingRecord

    of = "accuracy" if summary["objective"] == "prm" else "pair accuracy"
    accuracy = "" if summary["accuracy"] is None else f", {of} {summary['accuracy']:.1%}"
    means = f"loss {summary['loss']:.4f}{accuracy} over the last {summary['window']}"
    if (
        sampled := summary.get("rollouts")
    ) is not None:  # the loss of a policy gradient is near 0 whatever it learns
        right = "" if summary["accuracy"] is None else f", {summary['accuracy']:.1%} of judgments right"
        means = (
            f"reward {sampled['reward']:.3f}{right}, {sampled['unparsed']:.1%} without a verdict, "
            f"{sampled['constant_groups']:.1%} of groups without an advantage, over the last {summary['window']}"
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
