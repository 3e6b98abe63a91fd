"""`longrm train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.options import resolve, run_options
from longrm.cli.progress_bar import progress
from longrm.cli.terminal import echo, print_json
from longrm.config import parse_assignments
from longrm.errors import ConfigError
from longrm.reading import read_toml
from longrm.runs.progress import no_progress
from longrm.runs.workers import is_main_process
from longrm.training.objectives import OBJECTIVES
from longrm.training.training_settings import TrainingSettings

if TYPE_CHECKING:  # benchmarks are not loaded for help
    from longrm.benchmarks import OwnTokenizer


class _Objectives(click.Group):
    """A subcommand for every objective."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name.replace("_", "-") for name in OBJECTIVES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = cmd_name.replace("-", "_")
        return _command(name) if name in OBJECTIVES and "_" not in cmd_name else None


@click.command("train", cls=_Objectives, short_help="Train a reward model.")
def command() -> None:
    """Trains a reward model; every objective is a subcommand.

    A prompt is encoded once for all its responses. Processes that torchrun starts train together. A killed run
    continues bit for bit on the same machine in the same layout, else up to rounding; the trained model is saved to
    DIR/model, and transformers, vLLM and SGLang load it from there.
    """


def _command(objective: str) -> click.Command:
    spec = OBJECTIVES[objective]

    def work(
        out: Path,
        config_file: Path | None,
        assignments: tuple[str, ...],
        as_json: bool,
        report_to: tuple[str, ...],
    ) -> None:
        # The recipe of another subcommand is refused, and that subcommand named.
        changes = parse_assignments(assignments)
        named = ((read_toml(config_file, ConfigError) if config_file else {}) | changes).get(
            "objective", objective
        )
        if isinstance(named, str) and named != objective and named in OBJECTIVES:
            where = "--set" if "objective" in changes else config_file
            right = f"longrm train {named.replace('_', '-')}"
            raise ConfigError(f'{where} is a recipe for objective = "{named}"; the command is: {right}')
        flags = {"report_to": list(report_to) or None}
        _train(resolve(spec.settings, config_file, assignments, flags), out, as_json)

    work.__doc__ = spec.help
    trackers = click.option(
        "--report-to",
        multiple=True,
        metavar="NAME",
        help="A tracker, such as tensorboard or wandb; repeatable.",
    )
    options = run_options("Run folder; the same command continues what is there.")
    return click.command(objective.replace("_", "-"), short_help=spec.title)(options(trackers(work)))


def _train(settings: TrainingSettings, out: Path, as_json: bool) -> None:
    from longrm.training.train import train

    with progress() as report:
        evaluator = None
        if settings.evaluation is not None:
            from longrm.cli.training_evaluator import evaluator_of

            evaluator = evaluator_of(
                settings.evaluation,
                report if is_main_process() else no_progress,
                own=lambda: _tokenizer(settings),
            )
        summary = train(settings, out, progress=report, evaluator=evaluator)
    if not is_main_process():
        return
    if evaluator is not None:
        _add_figure(summary, out)
    if as_json:
        print_json(summary)
    else:
        _print_outcome(summary, out, lora=settings.model.lora is not None)


def _tokenizer(settings: TrainingSettings) -> "OwnTokenizer | None":
    """The tokenizer of the model that training starts from."""
    from longrm.benchmarks import OwnTokenizer
    from longrm.clients.remote_settings import Remote
    from longrm.evaluation.evaluation_run import own_tokenizer

    new = settings.model.new
    if new is not None:
        return OwnTokenizer(new.tokenizer, new.tokenizer)
    return own_tokenizer(settings.model.path, Remote())


def _add_figure(summary: dict[str, Any], out: Path) -> None:
    """Writes the model card anew with the report's figure, where the packages that draw are installed."""
    from longrm.evaluation.metrics import PAIR_ACCURACY
    from longrm.training.card_results import EVALUATIONS
    from longrm.training.model_card import write_card
    from longrm.training.pushed_model import facts_of_run

    try:
        import vl_convert

        from longrm.report import figures
        from longrm.report.load import load_report
    except ModuleNotFoundError:
        return
    folder = out / EVALUATIONS / str(summary["model_step"])
    figure = figures.accuracy(load_report([folder]).stages, PAIR_ACCURACY.name, figures.WIDE)
    if figure is not None:
        png = vl_convert.svg_to_png(figure.svg, scale=2)
        write_card(out / "model", facts_of_run(out), figure=png)


def _print_outcome(summary: dict[str, Any], out: Path, *, lora: bool) -> None:
    """The last lines of a training: its loss and accuracy, where the model is, and what to do next."""
    from longrm.runs.logs import Log
    from longrm.runs.records import TimingRecord
    from longrm.training.step_logs import TIMING

    accuracy = summary["accuracy"]
    ordered = "" if accuracy is None else f", pair accuracy {accuracy:.1%}"
    timing = list(Log(out / TIMING, TimingRecord))
    seconds = sum(record.seconds for record in timing)
    rate = f", {sum(record.tokens for record in timing) / seconds:,.0f} a second" if seconds else ""
    echo(
        f"Trained {summary['steps']:,} steps: loss {summary['loss']:.4f}{ordered} over the last {summary['window']}; "
        f"{summary['tokens']:,} tokens{rate}"
    )
    evaluations = summary["evaluations"]
    if evaluations is not None and evaluations["best"] is not None:
        value = evaluations["values"][str(evaluations["best"])]
        echo(f"Best {evaluations['metric']} {value:.4f} after step {evaluations['best']:,}")
    elif evaluations is not None:
        echo(f"No {evaluations['metric']} is known: in no evaluation did the model answer")
    step = summary["model_step"]
    kept = "" if step == summary["steps"] else f", as it was after step {step:,}"
    echo(f"The {'adapter' if lora else 'model'} is saved to {out / 'model'}{kept}")
    if lora:
        echo(f"Merge it into its base with: longrm merge {out} --out MODEL")
    echo(f"Evaluate it with: longrm evaluate --model {out / 'model'} --bench probe --out EVALUATION")
