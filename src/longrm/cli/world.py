"""`longrm world`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.options import OUTPUT_FILE
from longrm.cli.terminal import echo, print_facts, print_lines

if TYPE_CHECKING:
    from longrm.types import Comparison


def _depth(_: click.Context, __: click.Parameter, value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value  # WorldPlan takes "uniform" only


def _list(context: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from longrm.worlds import TEXTS, WORLDS

    print_lines(["Worlds: their questions (and similar benchmarks)", ""])
    print_facts(
        (name, f"{world.asks} ({world.similar_to})" if world.similar_to else world.asks)
        for name, world in WORLDS.items()
    )
    print_lines(
        ["", "Kinds of text, for all worlds except those of the words tokenizer (records, chain):", ""]
    )
    print_facts((name, text.about) for name, text in TEXTS.items())
    context.exit()


@click.command("world", short_help="Generate comparisons with known answers.")
@click.argument("world", metavar="NAME")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list,
    help="List worlds and kinds of text, and exit.",
)
@click.option("--length", type=click.IntRange(min=1), required=True, help="Prompt length in tokens.")
@click.option("--n", type=click.IntRange(min=1), required=True, help="How many comparisons.")
@click.option("--responses", type=click.IntRange(min=2), default=2, show_default=True, help="Responses each.")
@click.option(
    "--depth", callback=_depth, default="uniform", show_default=True, help="Position of the evidence, 0 to 1."
)
@click.option(
    "--per-group",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Questions about each context.",
)
@click.option(
    "--tokenizer",
    help="words, approximate, or a tokenizer's file, folder or Hub id (default: words for records and "
    "chain, approximate for the others).",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    help="A kind of text, such as minutes; repeatable. Each context has one kind, drawn from these (default: all).",
)
@click.option(
    "--haystack",
    type=click.Path(),
    help="Documents around the facts, instead of a kind of text: a folder of .txt, .md and .jsonl, or of .csv, or a "
    "file.",
)
@click.option(
    "--haystack-column",
    default="text",
    show_default=True,
    help="Column of the text in a .jsonl or .csv file of the haystack.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--unrelated", is_flag=True, help="Control: ask about a context that does not contain the answers."
)
@click.option("--out", type=OUTPUT_FILE, required=True, help="JSONL or Parquet file to write.")
def command(n: int, tokenizer: str | None, out: Path, **settings: Any) -> None:
    """Writes N generated comparisons of the world NAME, such as records or single-fact, to a file.

    \b
    longrm world records --length 4096 --n 100 --out records.jsonl
    longrm world chain --length 8192 --n 100 --responses 4 --out chain.jsonl
    longrm world single-fact --length 8192 --n 100 --tokenizer MODEL --out f.jsonl
    longrm world two-hops --length 32768 --n 100 --tokenizer MODEL \\
        --haystack FOLDER --out hops.jsonl
    """
    from longrm.data import write
    from longrm.runs.logs import text_digest
    from longrm.worlds import WORLDS, WorldPlan, generate
    from longrm.worlds.words_tokenizer import load_tokenizer

    plan, digests = WorldPlan(**settings), set[str]()
    tokenizer = tokenizer or ("words" if WORLDS[plan.world].words else "approximate")

    def noted(rows: "Iterable[Comparison]") -> "Iterator[Comparison]":
        for row in rows:
            digests.add(text_digest(row.prompt, sorted(row.responses, key=str), row.tools))
            yield row

    write(out, noted(generate(plan, n, load_tokenizer(tokenizer))))
    echo(f"Wrote {n} comparisons of the world '{plan.world}' at {plan.length} tokens to {out}")
    if len(digests) < n:
        echo(
            f"{n - len(digests)} of them repeat a question and its responses: the contexts have too few facts; lower "
            "--per-group or raise --length",
            err=True,
        )
