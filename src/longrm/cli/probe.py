"""`longrm probe`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.evaluate import print_result
from longrm.cli.options import JSON, JUDGING_OPTIONS, OUT_FOLDER, resolve, set_option
from longrm.cli.terminal import echo, shared_work
from longrm.runs.workers import is_main_process


@click.command("probe", short_help="Measure how far a model's judgment reaches, in its own tokens.")
@click.argument("model")
@click.option(
    "--lengths",
    metavar="A,B",
    help="Context lengths in tokens, such as 8k,32k,128k, where 8k is 8192 (default: powers of two up to the model's "
    "window).",
)
@click.option(
    "--depths",
    metavar="X,Y",
    help="Positions of the evidence from start to end, such as 0,0.5,1 (default uniform: anywhere).",
)
@click.option(
    "--n",
    type=click.IntRange(min=1),
    help="Comparisons of each length, depth and task (default 128): up to 8 questions about each context while 32 "
    "contexts remain; from 4,096 tokens on, up to 4 questions while 8 contexts remain.",
)
@click.option(
    "--tasks",
    metavar="A,B",
    help="Worlds of longrm world --list (default single-fact,two-hops,latest-update; records for a model with the "
    "demo's tokenizer).",
)
@click.option(
    "--tokenizer",
    "probe__tokenizer",
    metavar="PATH",
    help="Tokenizer that measures lengths: words, approximate, a file, folder or Hub id (default: the model's own; "
    "approximate if it is unknown).",
)
@JUDGING_OPTIONS
@OUT_FOLDER
@set_option()
@JSON
def command(
    model: str,
    lengths: str | None,
    depths: str | None,
    n: int | None,
    tasks: str | None,
    out: Path,
    assignments: tuple[str, ...],
    as_json: bool,
    **flags: Any,
) -> None:
    """Has a model judge generated contexts of many lengths with known answers, and reports how far it reaches.

    \b
    longrm probe MODEL --out runs/probe
    longrm probe MODEL --lengths 8k,32k,128k --depths 0,0.5,1 --n 128 --out runs/probe
    longrm probe openai:URL#NAME --tokenizer FOLDER --lengths 8k,32k --out runs/probe

    MODEL is a name as for longrm evaluate --model. The plan is printed first, then progress with the time left. The
    run is an evaluation: longrm evaluate --config runs/probe/config.toml --out NEW repeats it. Processes started by
    torchrun share the comparisons.
    """
    from longrm.benchmarks.probe import probe_parts
    from longrm.evaluation.evaluation_run import Evaluation, load_benchmark, run_evaluation
    from longrm.evaluation.probe_plan import COMPARISONS, probe_cells, token_progress
    from longrm.evaluation.runner import Shard
    from longrm.evaluation.summaries import MeasuredWith
    from longrm.report.formatting import listed, measured_with

    flags |= {"model": model, "bench": "probe"}
    if is_main_process():
        echo(f"Probing {model}", err=True)  # before the tokenizer is loaded, perhaps from the Hub
    settings = resolve(Evaluation, None, assignments, flags)
    cells = probe_cells(settings, lengths, depths, tasks, COMPARISONS if n is None else n)
    flags["probe__cells"] = [cell.model_dump() for cell in cells]
    settings = resolve(Evaluation, None, assignments, flags)
    bench = load_benchmark(settings)
    parts = probe_parts(settings.probe, settings.source.limit)
    shard = None if settings.shard is None else Shard.parse(settings.shard)
    with shared_work() as (group, report):
        if group.is_main_process:
            total, contexts = (
                sum(len(part.places) for part in parts),
                sum(len(part.contexts) for part in parts),
            )
            sizes = listed([f"{length:,}" for length in sorted({part.plan.length for part in parts})])
            tokens = sum(part.tokens for part in parts)
            share = f", about 1/{shard.count} of them in this shard" if shard else ""
            echo(
                f"{total:,} comparisons, {contexts:,} contexts of {sizes} tokens, {tokens:,} in all{share}",
                err=True,
            )
            held = bench.measured or {}
            measured = MeasuredWith(**held)
            echo(measured_with(measured), err=True)
            echo("Loading the model. Rate and time left count context tokens.", err=True)
            report = token_progress(parts, shard, report)
        summary = run_evaluation(settings, out, bench=bench, place=group, progress=report)
    if group.is_main_process:
        print_result(summary, out, as_json=as_json)
