"""`longrm train`."""

from pathlib import Path

import click

from longrm.cli.options import print_json, resolve, run_options
from longrm.cli.progress import progress


@click.group("train", short_help="Train a reward model.")
def command() -> None:
    """Trains a reward model; every objective is a subcommand."""


@command.command("bradley-terry", short_help="Train a discriminative reward model on comparisons.")
@run_options("Run folder; the same command continues what is there.")
def bradley_terry(out: Path, config_file: Path | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Trains a scalar head on gold-ordered responses, -log sigmoid(r_better - r_worse).

    The prompt is encoded once for all its responses. Checkpoints make a killed run continue
    bit for bit; the trained model lies in DIR/model.

    \b
    longrm train bradley-terry --config mine.toml --out runs/mine
    longrm train bradley-terry --config mine.toml --out runs/other --set optimizer.learning_rate=1e-5
    """
    from longrm.training.bradley_terry import BradleyTerryTraining, run

    settings = resolve(BradleyTerryTraining, config_file, assignments)
    with progress() as report:
        summary = run(settings, out, progress=report)
    if as_json:
        print_json(summary)
    else:
        click.echo(
            f"Trained {summary['steps']} steps: loss {summary['loss']:.4f}, "
            f"pair accuracy {summary['accuracy']:.1%} over the last {summary['window']} steps"
        )
        click.echo(f"The model lies in {out / 'model'}")
