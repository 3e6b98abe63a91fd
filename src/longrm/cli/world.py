"""`longrm world`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.options import OUTPUT_FILE
from longrm.cli.terminal import echo, print_facts, print_lines

_COUNT = click.IntRange(min=1)
_LIST_HELP = "List worlds and kinds of text, and exit."
_TOKENIZER_HELP = (
    "words, approximate, or a tokenizer's file, folder or Hub id (default: words for records and chain, approximate "
    "for the others)."
)
_DEPTH_HELP = "Depth of the evidence, from 0 = start to 1 = end, or uniform."
_TEXT_HELP = "A kind of text, such as minutes; repeatable. Each context uses one of them (default: all)."
_HAYSTACK_HELP = (
    "Documents in place of a kind of text: a file, or a folder of .txt, .md and .jsonl, or of .csv files."
)
_COLUMN_HELP = "Column of the text in .jsonl and .csv files of the haystack."
_UNRELATED_HELP = "Control: ask about a context that does not contain the answers."


def _depth(_: click.Context, __: click.Parameter, value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value  # WorldPlan accepts "uniform" only


def _list(context: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from longrm.worlds import TEXTS, WORLDS

    print_lines("Worlds: their questions (and similar benchmarks)")
    echo()
    print_facts(
        (name, f"{world.asks} ({world.similar_to})" if world.similar_to else world.asks)
        for name, world in WORLDS.items()
    )
    echo()
    print_lines("Kinds of text, for all worlds except those of the words tokenizer (records, chain):")
    echo()
    print_facts((name, text.about) for name, text in TEXTS.items())
    context.exit()


@click.command("world", short_help="Generate comparisons with known answers.")
@click.argument("world", metavar="NAME")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help=_LIST_HELP)
@click.option("--length", type=_COUNT, required=True, help="Prompt length in tokens.")
@click.option("--n", type=_COUNT, required=True, help="Number of comparisons.")
@click.option(
    "--responses", type=click.IntRange(2), default=2, show_default=True, help="Number of responses."
)
@click.option(
    "--depth",
    callback=_depth,
    default="uniform",
    show_default=True,
    help=_DEPTH_HELP,
)
@click.option("--per-group", type=_COUNT, default=1, show_default=True, help="Questions about each context.")
@click.option("--tokenizer", help=_TOKENIZER_HELP)
@click.option("--text", "texts", multiple=True, help=_TEXT_HELP)
@click.option("--haystack", type=click.Path(), help=_HAYSTACK_HELP)
@click.option("--haystack-column", default="text", show_default=True, help=_COLUMN_HELP)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the contexts.")
@click.option("--unrelated", is_flag=True, help=_UNRELATED_HELP)
@click.option("--out", type=OUTPUT_FILE, required=True, help="JSONL or Parquet file to write.")
def command(n: int, tokenizer: str | None, out: Path, **settings: Any) -> None:
    """Writes N generated comparisons of a world, such as records or single-fact, to a file.

    \b
    longrm world records --length 4096 --n 100 --out records.jsonl
    longrm world chain --length 8192 --n 100 --responses 4 --out chain.jsonl
    longrm world single-fact --length 8192 --n 100 --tokenizer MODEL --out f.jsonl
    longrm world two-hops --length 32768 --n 100 --tokenizer MODEL \\
        --haystack FOLDER --out hops.jsonl
    """
    from longrm.data import write
    from longrm.worlds import WORLDS, WorldPlan, generate
    from longrm.worlds.words_tokenizer import load_tokenizer

    plan = WorldPlan(**settings)
    tokenizer = tokenizer or ("words" if WORLDS[plan.world].words else "approximate")
    write(out, generate(plan, n, load_tokenizer(tokenizer)))
    echo(f"Wrote {n} comparisons of the world '{plan.world}' at {plan.length} tokens to {out}")
