"""`longrm probe`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.evaluate import print_result
from longrm.cli.help import Command
from longrm.cli.options import JSON, JUDGING_OPTIONS, OUT_FOLDER, SET, resolve, setting
from longrm.cli.terminal import echo, shared_work
from longrm.runs.workers import is_main_process

_LENGTHS_HELP = "Context lengths in tokens; 8k is 8192 (default: powers of two up to the model's window)."
_DEPTHS_HELP = "Depths of the evidence, from 0 = start to 1 = end (default: anywhere)."
_N_HELP = "Comparisons of each length, depth and task (default 128)."
_TASKS_HELP = "Worlds of longrm world --list, such as two-hops."
_TOKENIZER_HELP = "Tokenizer that measures lengths (default: the model's)."
_COMMON = {
    "Contexts": "--lengths --depths --tasks --n --limit",
    "Model": "--tokenizer --cut --device",
    "Run": "--out --set --json",
}


@click.command("probe", cls=Command, common=_COMMON)
@click.argument("model")
@click.option("--lengths", metavar="A,B", help=_LENGTHS_HELP)
@click.option("--depths", metavar="X,Y", help=_DEPTHS_HELP)
@click.option("--n", metavar="N", type=click.IntRange(min=1), help=_N_HELP)
@click.option("--tasks", metavar="A,B", help=_TASKS_HELP)
@setting("--tokenizer", "probe.tokenizer", _TOKENIZER_HELP, metavar="PATH")
@JUDGING_OPTIONS
@OUT_FOLDER
@SET
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
    """Measure the context length at which a model's judgment fails.

    \b
    longrm probe MODEL --out runs/probe
    longrm probe MODEL --lengths 8k,32k,128k --depths 0,0.5,1 --out runs/probe
    longrm probe openai:URL#NAME --lengths 8k,32k --out runs/probe

    The contexts are generated, so every answer is known. MODEL is any model that longrm evaluate --model accepts.
    \f

    The default tasks are exchange, joined-facts and dated-update, which no rule without understanding answers; for a
    model with the demo's tokenizer, records.
    Several comparisons may share a context. --tokenizer is words, approximate, a file, a folder or a Hub id; if the
    model's tokenizer is unknown, lengths are approximate.

    The run is an evaluation: longrm evaluate --config runs/probe/config.toml --out NEW repeats it. Processes started
    by torchrun share the comparisons.
    """
    from longrm.benchmarks.probe import probe_parts
    from longrm.evaluation.evaluate import Evaluation, load_benchmark, run_evaluation
    from longrm.evaluation.probe import COMPARISONS, probe_cells, token_progress
    from longrm.evaluation.summary_schema import MeasuredWith
    from longrm.reporting.formatting import listed, measured_with
    from longrm.reward_models.kinds import writes_verdicts
    from longrm.runs.resumable import Shard

    flags |= {"model": model, "bench": "probe"}
    if is_main_process():
        echo(f"Probing {model}", err=True)  # before the tokenizer is loaded, perhaps from the Hub
    settings = resolve(Evaluation, None, assignments, flags)
    cells = probe_cells(settings, lengths, depths, tasks, COMPARISONS if n is None else n)
    flags["probe__cells"] = [cell.model_dump() for cell in cells]
    settings = resolve(Evaluation, None, assignments, flags)
    bench = load_benchmark(settings)
    parts = [] if bench.trajectories else probe_parts(settings.probe, settings.source.limit)
    shard = None if settings.shard is None else Shard.parse(settings.shard)
    with shared_work() as (group, report):
        if group.is_main_process:
            if bench.trajectories:
                echo(f"{bench.trajectories.total:,} trajectories", err=True)
            total = f"{sum(len(part.places) for part in parts):,} comparisons"
            sizes = listed([f"{length:,}" for length in sorted({part.plan.length for part in parts})])
            contexts = f"{sum(len(part.contexts) for part in parts):,} contexts of {sizes} tokens"
            tokens = sum(part.tokens for part in parts)
            share = f", about 1/{shard.count} of them in this shard" if shard else ""
            if parts:
                echo(f"{total}, {contexts}, {tokens:,} in all{share}", err=True)
            echo(measured_with(MeasuredWith(**bench.measured or {})), err=True)
            if writes_verdicts(model):
                echo(
                    "This model writes its verdicts. Less work for a first result: "
                    f"likelihood:{model}, --limit 96, fewer --lengths.",
                    err=True,
                )
            echo("Loading the model. Rate and time left count context tokens.", err=True)
            report = token_progress(parts, shard, report) if parts else report
        summary = run_evaluation(settings, out, bench=bench, workers=group, progress=report)
    if group.is_main_process:
        print_result(summary, out, as_json=as_json)
