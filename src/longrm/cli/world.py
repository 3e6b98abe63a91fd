"""`longrm world`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.help import Command
from longrm.cli.options import OUTPUT_FILE
from longrm.cli.terminal import echo, print_facts, print_lines, print_next

_COUNT = click.IntRange(min=1)
_LIST_HELP = "List worlds and kinds of text, and exit."
_TOKENIZER_HELP = "words, approximate, or a tokenizer's file, folder or Hub id."
_DEPTH_HELP = "Depth of the evidence, from 0 = start to 1 = end, or uniform."
_TEXT_HELP = "A kind of text, such as minutes (default: all); repeatable."
_HAYSTACK_HELP = "Documents in place of a kind of text: a file or a folder."
_COLUMN_HELP = "Column of the text in .jsonl and .csv files."
_UNRELATED_HELP = "Control: ask about a context without the answers."
_COMMON = {
    "World": "--list --length --n --responses --depth --seed",
    "Text": "--tokenizer --text --haystack",
    "Output": "--out",
}


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
    print_facts([("trajectory", "which step of an agent is wrong (AgentProcessBench)")])
    echo()
    print_lines("Kinds of text, for all worlds except those of the words tokenizer (records, chain):")
    echo()
    print_facts((name, text.about) for name, text in TEXTS.items())
    context.exit()


@click.command("world", cls=Command, common=_COMMON)
@click.argument("world", metavar="NAME")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help=_LIST_HELP)
@click.option("--length", metavar="N", type=_COUNT, required=True, help="Prompt length in tokens.")
@click.option("--n", metavar="N", type=_COUNT, required=True, help="Number of comparisons.")
@click.option(
    "--responses",
    metavar="N",
    type=click.IntRange(2),
    default=2,
    show_default=True,
    help="Number of responses.",
)
@click.option("--depth", metavar="X", callback=_depth, default="uniform", show_default=True, help=_DEPTH_HELP)
@click.option(
    "--per-group",
    metavar="N",
    type=_COUNT,
    default=1,
    show_default=True,
    help="Questions about each context.",
)
@click.option("--tokenizer", metavar="PATH", help=_TOKENIZER_HELP)
@click.option("--text", "texts", metavar="NAME", multiple=True, help=_TEXT_HELP)
@click.option("--haystack", type=click.Path(), help=_HAYSTACK_HELP)
@click.option("--haystack-column", metavar="NAME", default="text", show_default=True, help=_COLUMN_HELP)
@click.option("--seed", metavar="N", type=int, default=0, show_default=True, help="Seed of the contexts.")
@click.option("--unrelated", is_flag=True, help=_UNRELATED_HELP)
@click.option("--out", type=OUTPUT_FILE, required=True, help="JSONL or Parquet file to write.")
def command(n: int, tokenizer: str | None, out: Path, **settings: Any) -> None:
    """Generate comparisons with known answers.

    \b
    longrm world --list
    longrm world records --length 4096 --n 100 --out records.jsonl
    longrm world two-hops --length 32768 --n 100 --tokenizer MODEL --out h.jsonl

    The worlds records and chain are written in simple words, the others in prose. trajectory makes trajectories of an
    agent with labels for every step.
    \f

    Lengths are measured with --tokenizer: by default words for records and chain, approximate for the others. A
    haystack is a file, or a folder of .txt, .md and .jsonl files, or of .csv files.
    """
    from longrm.benchmarks.probe import TRAJECTORY
    from longrm.data import write, write_rows
    from longrm.data.trajectories import to_row
    from longrm.worlds import WORLDS, WorldPlan, generate
    from longrm.worlds.trajectories import TrajectoryPlan, trajectories
    from longrm.worlds.words_tokenizer import load_tokenizer

    if settings["world"] == TRAJECTORY:
        length, per_group, seed = (settings[name] for name in ("length", "per_group", "seed"))
        made = trajectories(
            TrajectoryPlan(length, per_group=per_group, seed=seed),
            n,
            load_tokenizer(tokenizer or "approximate"),
        )
        write_rows(out, map(to_row, made))
        echo(f"Wrote {n} trajectories of about {length} tokens to {out}")
        print_next("evaluate", "--model", "MODEL", "--bench", out, "--out", "RUN")
        return
    plan = WorldPlan(**settings)
    tokenizer = tokenizer or ("words" if WORLDS[plan.world].words else "approximate")
    write(out, generate(plan, n, load_tokenizer(tokenizer)))
    echo(f"Wrote {n} comparisons of the world '{plan.world}' at {plan.length} tokens to {out}")
    print_next("evaluate", "--model", "MODEL", "--bench", f"file:{out}", "--out", "RUN")
