"""`longrm demo`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from longrm.cli.evaluate import percentage
from longrm.cli.options import JSON, OUT_FOLDER
from longrm.cli.terminal import echo, print_json, print_lines, print_table, progress

if TYPE_CHECKING:
    from longrm.evaluation.summaries import EvaluationSummary


@click.command("demo", short_help="Reveal a context boundary and extend it, on a laptop.")
@OUT_FOLDER
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of data and models."
)
@click.option("--generative", is_flag=True, help="Also train a generative reward model: SFT, then LOGO.")
@JSON
def command(out: Path, seed: int, generative: bool, as_json: bool) -> None:
    """Trains a tiny reward model on short contexts, then continues on short or on increasingly long ones.

    Every stage is evaluated on the same unseen contexts of 128 to 4096 tokens; the report shows the boundary before
    and after. It takes a few minutes on two CPU cores, or ten with --generative; nothing is downloaded.
    """
    with progress() as report:
        report("demo", 0, 100, "loading")
        from longrm.demo import DemoSettings, run_demo
        from longrm.evaluation.summaries import DemoSummary, parse_summary

        settings = DemoSettings(seed=seed, generative=generative)
        found = run_demo(settings, out, progress=report)
    if as_json:
        print_json(found)
        return
    summary = parse_summary(found)
    assert isinstance(summary, DemoSummary), "a demo has a demo's summary"
    stages = summary.stages
    _print_stages(stages, "Pair accuracy by context length in tokens, % (chance 50)")
    best_of_4 = {name: stage.best_of_4 for name, stage in stages.items() if stage.best_of_4}
    _print_stages(best_of_4, "Best of 4, top-1 accuracy by context length, % (chance 25)")
    pointwise = {name: stage.pointwise for name, stage in stages.items() if stage.pointwise}
    _print_stages(pointwise, "Pair accuracy of scores for single responses, % (chance 50)")
    contrast = summary.contrasts["long_vs_control"].by_length
    length = max(contrast, key=int)
    echo(f"long - control at {length} tokens: {percentage(contrast[length])} points")
    for name, control in summary.controls.items():
        echo(f"Control, {name.replace('_', ' ')}: {percentage(control)}% (chance 50)")
    echo(f"Took {summary.seconds['total']:.0f} s. The report is saved to {out / 'report.html'}")


def _print_stages(stages: "Mapping[str, EvaluationSummary]", title: str) -> None:
    """Prints one row per stage and one column per length."""
    if not stages:
        return
    first = next(iter(stages.values()))
    name, lengths = first.main_metric, list(first.metrics.by_length)
    rows = [
        (stage, *(percentage(summary.metrics.by_length[n][name], interval=False) for n in lengths))
        for stage, summary in stages.items()
    ]
    print_lines(title)
    print_table(("stage", *lengths), rows)
