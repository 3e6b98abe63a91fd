"""`longrm evaluate`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.options import print_json, resolve, run_options
from longrm.cli.progress import progress
from longrm.cli.tables import print_evaluation


@click.command("evaluate", short_help="Judge a benchmark and measure how far the judgment reaches.")
@click.option("--model", help="Folder or Hub id of a reward model, or baseline:NAME.")
@click.option("--bench", help="probe (generated worlds), or file:PATH (your preference data).")
@run_options("Run folder; the same command continues what is there.")
@click.option("--seed", type=int, help="Draws presented orders and the bootstrap (default 0).")
@click.option("--limit", type=int, help="Take the first comparisons only.")
@click.option("--on-bad-row", type=click.Choice(["stop", "skip"]), help="For an unreadable row.")
def command(
    model: str | None,
    bench: str | None,
    out: Path,
    config_file: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
    seed: int | None,
    limit: int | None,
    on_bad_row: str | None,
) -> None:
    """Judges every comparison of a benchmark and reports accuracy by length, with intervals.

    \b
    longrm evaluate --model runs/demo/training/long/model --bench probe --out runs/probe
    longrm evaluate --model MODEL --bench file:pairs.jsonl --out runs/mine
    longrm evaluate --model baseline:longest --bench file:pairs.jsonl --out runs/longest
    """
    from longrm.evaluation.run import Evaluation, run

    flags: dict[str, Any] = {
        "model": model,
        "bench": bench,
        "judging.seed": seed,
        "source.limit": limit,
        "source.on_bad_row": on_bad_row,
    }
    settings = resolve(Evaluation, config_file, assignments, flags)
    with progress() as report:
        summary = run(settings, out, progress=report)
    if as_json:
        print_json(summary)
    else:
        print_evaluation(summary)
        click.echo(f"Written to {out}; see it with: longrm report {out} --out report.html")
