"""`longrm world`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.terminal import echo


def _depth(_: click.Context, __: click.Parameter, value: str) -> float | str:
    if value == "uniform":
        return value
    try:
        depth = float(value)
    except ValueError:
        depth = -1.0
    if not 0.0 <= depth <= 1.0:
        raise click.BadParameter(f"needs a number from 0 (start) to 1 (end), or 'uniform'; got '{value}'")
    return depth


@click.command("world", short_help="Generate comparisons whose right answers are known.")
@click.argument("world", metavar="NAME")
@click.option("--length", type=click.IntRange(min=1), required=True, help="Prompt length in tokens.")
@click.option("--n", type=click.IntRange(min=1), required=True, help="How many comparisons.")
@click.option("--responses", type=click.IntRange(min=2), default=2, show_default=True, help="Responses each.")
@click.option(
    "--depth", callback=_depth, default="uniform", show_default=True, help="Where the evidence is, 0 to 1."
)
@click.option(
    "--per-group",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Questions about each context.",
)
@click.option(
    "--tokenizer", default="words", show_default=True, help="words, or a tokenizer's file, folder or Hub id."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--unrelated", is_flag=True, help="Control: ask about a context the answers are not from.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="JSONL or Parquet file to write.")
def command(n: int, tokenizer: str, out: Path, **settings: Any) -> None:
    """Writes N generated comparisons of the world NAME, such as records or chain, to a file.

    \b
    longrm world records --length 4096 --n 100 --out records.jsonl
    longrm world chain --length 8192 --n 100 --responses 4 --depth 0.5 --out chain.jsonl
    """
    from longrm.data import write
    from longrm.worlds import WorldPlan, generate
    from longrm.worlds.words_tokenizer import load_tokenizer

    plan = WorldPlan(**settings)
    write(out, generate(plan, n, load_tokenizer(tokenizer)))
    echo(f"Wrote {n} comparisons of the world '{plan.world}' at {plan.length} tokens to {out}")
