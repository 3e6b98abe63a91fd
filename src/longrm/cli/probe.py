"""`longrm probe`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.evaluate import tell
from longrm.cli.options import judging_options, resolve, run_options
from longrm.cli.progress_bar import duration, shared_work
from longrm.cli.terminal import echo

if TYPE_CHECKING:  # the worlds are not loaded for help
    from longrm.benchmarks.probe import ProbePart


@click.command("probe", short_help="Measure how far a model's judgment reaches, in its own tokens.")
@click.argument("model")
@click.option(
    "--lengths",
    metavar="A,B",
    help="Lengths of the contexts in tokens, such as 8k,32k,128k, where 8k is 8192 (default: powers of two up to what "
    "the model reads).",
)
@click.option(
    "--depths",
    metavar="X,Y",
    help="Where the evidence stands, such as 0,0.5,1, from start to end (default uniform: anywhere).",
)
@click.option(
    "--n",
    type=click.IntRange(min=1),
    help="Comparisons of each length, depth and task (default 128), about 32 contexts or more, with 8 questions each "
    "at most.",
)
@click.option(
    "--tasks",
    metavar="A,B",
    help="Worlds, of longrm world --list (default single-fact,two-hops,latest-update; records for a model with the "
    "demo's tokenizer).",
)
@click.option(
    "--tokenizer",
    "probe__tokenizer",
    metavar="PATH",
    help="Tokenizer that lengths count in: words, approximate, a file, folder or Hub id (default: the model's own; "
    "approximate where it has none that is known).",
)
@run_options("Run folder; the same command continues what is there.", config=False)
@judging_options
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
    """Has a model judge generated contexts of many lengths, whose answers are known, and tells how far it reaches.

    \b
    longrm probe MODEL --out runs/probe
    longrm probe MODEL --lengths 8k,32k,128k --depths 0,0.5,1 --n 128 --out runs/probe
    longrm probe openai:URL#NAME --tokenizer FOLDER --lengths 8k,32k --out runs/probe

    MODEL is a name as for longrm evaluate --model. What is asked, and how long it takes, is told first. It is an
    evaluation: longrm evaluate --config runs/probe/config.toml --out NEW repeats it. Processes that torchrun starts
    share the comparisons.
    """
    from longrm.benchmarks.probe import probe_parts
    from longrm.evaluation.evaluation_run import Evaluation, load_benchmark, run_evaluation
    from longrm.evaluation.probe_plan import COMPARISONS, TimeEstimate, probe_cell
    from longrm.evaluation.shard import Shard

    flags |= {"model": model, "bench": "probe"}
    cell = probe_cell(
        resolve(Evaluation, None, assignments, flags), lengths, depths, tasks, COMPARISONS if n is None else n
    )
    settings = resolve(Evaluation, None, assignments, {**flags, "probe__cells": [cell.model_dump()]})
    bench = load_benchmark(settings)
    parts = probe_parts(settings.probe, settings.source.limit)
    shard = None if settings.shard is None else Shard.parse(settings.shard)
    with shared_work() as (group, report):
        if group.is_main_process:
            _announce(parts, bench.measured or {}, shard.count if shard else 1)
            report = TimeEstimate(parts, shard, report, _tell_time)
        summary = run_evaluation(settings, out, bench=bench, place=group, progress=report)
    if group.is_main_process:
        tell(summary, out, as_json=as_json)


def _announce(parts: Sequence["ProbePart"], measured: Mapping[str, Any], shards: int) -> None:
    """Says what will be judged, before any of it is."""
    from longrm.evaluation import wording
    from longrm.evaluation.summaries import MeasuredWith

    asked, contexts = sum(len(part.places) for part in parts), sum(len(part.contexts) for part in parts)
    tokens = sum(part.tokens for part in parts)
    lengths = [f"{length:,}" for length in sorted({part.plan.length for part in parts})]
    about = f", of which this shard judges about one in {shards}" if shards > 1 else ""
    told = MeasuredWith(measured["tokenizer"], tuple(measured["worlds"]), tuple(measured["depths"]))
    for line in (
        f"{asked:,} comparisons about {contexts:,} contexts of {wording.listed(lengths)} tokens, {tokens:,} in all"
        f"{about}.",
        wording.measured(told),
        "How long that takes is told when the second batch is judged.",
    ):
        echo(line, err=True)


def _tell_time(seconds: float, speed: float, length: int) -> None:
    """Says how long the rest takes, and what that is computed from."""
    echo(
        f"About {duration(seconds)} left, at {speed:,.0f} context tokens a second as at {length:,} tokens; attention "
        "makes longer contexts slower.",
        err=True,
    )
