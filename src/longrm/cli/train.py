"""`longrm train`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.options import resolve, run_options
from longrm.cli.progress_bar import progress
from longrm.cli.terminal import echo, print_json
from longrm.config import parse_assignments, read_toml
from longrm.errors import ConfigError
from longrm.runs.progress import no_progress
from longrm.runs.workers import is_main_process

if TYPE_CHECKING:
    from longrm.training.run import Recipe

_SUBCOMMANDS = {"sft": "sft", "preference": "preference", "bradley_terry": "bradley-terry"}
"""The subcommand of every objective."""


@click.group("train", short_help="Train a reward model.")
def command() -> None:
    """Trains a reward model; every objective is a subcommand.

    A prompt is encoded once for all its responses. Processes that torchrun starts train together. A killed run
    continues bit for bit on the same machine in the same layout, else up to rounding; the trained model lies in
    DIR/model, where transformers, vLLM and SGLang load it as it is.
    """


def _objective(name: str, short_help: str) -> Callable[[Callable[..., None]], click.Command]:
    """Makes a subcommand; the decorated function is its help."""

    def make(told: Callable[..., None]) -> click.Command:
        def work(
            out: Path,
            config_file: Path | None,
            assignments: tuple[str, ...],
            as_json: bool,
            report_to: tuple[str, ...],
        ) -> None:
            _train(name, out, config_file, assignments, as_json, report_to)

        work.__doc__ = told.__doc__
        trackers = click.option(
            "--report-to",
            multiple=True,
            metavar="NAME",
            help="A tracker, such as tensorboard or wandb; repeatable.",
        )
        options = run_options("Run folder; the same command continues what is there.")
        return command.command(_SUBCOMMANDS[name], short_help=short_help)(options(trackers(work)))

    return make


@_objective("sft", "Imitate judgments: stage 1 of a generative reward model.")
def sft() -> None:
    """Trains a language model to write the completions of demonstrations: the loss is on them alone.

    \b
    longrm train sft --config sft.toml --out runs/sft
    longrm train sft --config sft.toml --out runs/other --set optimizer.learning_rate=1e-5
    """


@_objective("preference", "Prefer judgments over others: stage 2, LOGO, SimPO or DPO.")
def preference() -> None:
    """Trains a language model to prefer chosen responses over rejected ones, by their log-probabilities.

    \b
    longrm train preference --config logo.toml --out runs/logo
    longrm train preference --config logo.toml --out runs/dpo --set loss.kind=dpo --set optimizer.learning_rate=1e-6
    """


@_objective("bradley_terry", "Train a discriminative reward model on comparisons.")
def bradley_terry() -> None:
    """Trains a scalar head on gold-ordered responses, -log sigmoid(r_better - r_worse).

    \b
    longrm train bradley-terry --config mine.toml --out runs/mine
    longrm train bradley-terry --config mine.toml --out runs/other --set optimizer.learning_rate=1e-5
    """


def _train(
    objective: str,
    out: Path,
    config_file: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
    report_to: tuple[str, ...],
) -> None:
    _check_objective(objective, config_file, assignments)
    from longrm.training.run import RECIPES, run

    recipe = resolve(RECIPES[objective], config_file, assignments, {"report_to": list(report_to) or None})
    with progress() as report:
        evaluator = None
        if recipe.evaluation is not None:
            from longrm.cli.training_evaluator import evaluator_of

            evaluator = evaluator_of(recipe.evaluation, report if is_main_process() else no_progress)
        summary = run(recipe, out, progress=report, evaluator=evaluator)
    if not is_main_process():
        return
    if evaluator is not None:
        _illustrate(recipe, summary, out)
    if as_json:
        print_json(summary)
    else:
        _tell(summary, out, lora=recipe.model.lora is not None)


def _check_objective(objective: str, config_file: Path | None, assignments: tuple[str, ...]) -> None:
    """Refuses the recipe of another subcommand, with that subcommand."""
    given = (read_toml(config_file) if config_file else {}) | parse_assignments(assignments)
    asked = given.get("objective", objective)
    if isinstance(asked, str) and asked != objective and asked in _SUBCOMMANDS:
        where = config_file if "objective" not in parse_assignments(assignments) else "--set"
        raise ConfigError(
            f'{where} is a recipe for objective = "{asked}"; the command is: longrm train {_SUBCOMMANDS[asked]}'
        )


def _illustrate(recipe: "Recipe", summary: dict[str, Any], out: Path) -> None:
    """Writes the model card anew with the report's figure, where the packages that draw are installed."""
    from longrm.evaluation.metrics import PAIR_ACCURACY
    from longrm.evaluation.summary_schema import read_summary
    from longrm.training.card import write_card
    from longrm.training.evaluations import EVALUATIONS

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
        write_card(out / "model", recipe, summary, evaluation=read_summary(folder), figure=png)


def _tell(summary: dict[str, Any], out: Path, *, lora: bool) -> None:
    """The last lines of a training: what came of it, where it lies, and what to do next."""
    accuracy = summary["accuracy"]
    ordered = "" if accuracy is None else f", pair accuracy {accuracy:.1%}"
    echo(
        f"Trained {summary['steps']:,} steps: loss {summary['loss']:.4f}{ordered} over the last {summary['window']}; "
        f"{summary['tokens']:,} tokens{_rate(out)}"
    )
    evaluations = summary["evaluations"]
    if evaluations is not None and evaluations["best"] is not None:
        value = evaluations["values"][str(evaluations["best"])]
        echo(f"Best {evaluations['metric']} {value:.4f} after step {evaluations['best']:,}")
    kept = (
        ""
        if summary["model_step"] == summary["steps"]
        else f", as it was after step {summary['model_step']:,}"
    )
    echo(f"The {'adapter' if lora else 'model'} lies in {out / 'model'}{kept}")
    if lora:
        echo(f"Put it into its model with: longrm merge {out} --out MODEL")
    echo(f"Evaluate it with: longrm evaluate --model {out / 'model'} --bench probe --out EVALUATION")


def _rate(out: Path) -> str:
    from longrm.runs.logs import Log
    from longrm.runs.records import TimingRecord
    from longrm.training.logs import TIMING

    timing = list(Log(out / TIMING, TimingRecord))
    seconds = sum(record.seconds for record in timing)
    return f", {sum(record.tokens for record in timing) / seconds:,.0f} a second" if seconds else ""
