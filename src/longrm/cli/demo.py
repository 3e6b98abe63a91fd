"""`longrm demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.evaluate import percentage
from longrm.cli.help import Command
from longrm.cli.options import JSON, OUT_FOLDER
from longrm.cli.terminal import echo, print_facts, print_json, print_lines, print_next, print_table, progress

if TYPE_CHECKING:  # pydantic takes its time to import
    from longrm.demo import DemoSettings

_SEED_HELP = "Seed of data and models."


@click.command("demo", cls=Command)
@OUT_FOLDER
@click.option(
    "--seed", metavar="N", type=click.IntRange(min=0), default=0, show_default=True, help=_SEED_HELP
)
@click.option("--generative", is_flag=True, help="Also train a generative reward model: SFT, then LOGO.")
@JSON
def command(out: Path, seed: int, generative: bool, as_json: bool) -> None:
    """Find a context boundary and extend it, on a laptop.

    \b
    longrm demo --out runs/demo

    It trains a tiny reward model on short contexts, then on longer ones, and on short ones again as a control. Every
    stage is evaluated on the same unseen contexts of 128 to 4096 tokens. It takes about four minutes on two CPU cores,
    longer with --generative; nothing is downloaded.
    """
    with progress() as report:
        report("demo", 0, 100, "loading")
        from longrm.demo import DemoSettings, run_demo

        settings = DemoSettings(seed=seed, generative=generative)
        found = run_demo(settings, out, progress=report)
    if as_json:
        print_json(found)
    else:
        print_demo(settings, found, out)
    before, after = (out / "stages" / stage / "pairs" for stage in ("short", "long"))
    print_next("compare", before, after, err=as_json)


def print_demo(settings: "DemoSettings", found: dict[str, Any], out: Path) -> None:
    """Prints the accuracies of a demo by stage and length, and what training on long contexts gained."""
    from longrm.evaluation.metrics import PAIR_ACCURACY
    from longrm.reporting.formatting import difference_text, points
    from longrm.runs.records import Estimate

    gaps = found["contrasts"]["long_vs_control"]
    lengths = list(gaps["pairs"])
    for exam, title in (
        ("pairs", "Pair accuracy by context length in tokens, % (chance 50)"),
        ("best_of_4", "Best of 4, % (chance 25)"),
    ):
        print_lines(title)
        rows = [
            (stage, *(percentage(Estimate(**parts[length]), interval=False) for length in lengths))
            for stage, parts in found["accuracy"][exam].items()
        ]
        print_table(("stage", *lengths), rows)
    print_facts([(stage.name, stage.meaning) for stage in settings.stages if stage.exams])
    print_lines("Accuracy of long minus control, in points (paired)")
    rows = [
        (exam.replace("_", " "), *(points(parts[length]["value"]) for length in lengths))
        for exam, parts in gaps.items()
    ]
    print_table(("", *lengths), rows)
    gap = difference_text(Estimate(**gaps["pairs"][lengths[-1]]), PAIR_ACCURACY)
    print_lines(f"long minus control at {lengths[-1]} tokens: {gap}")
    for stage, parts in found["accuracy"]["unrelated"].items():
        echo(f"{stage} on unrelated contexts, a control: {percentage(Estimate(**parts['all']))}% (chance 50)")
    print_lines(
        "Other processors give somewhat different numbers: they round differently, and training amplifies it."
    )
    echo(f"Took {found['seconds']:.0f} s. The report is saved to {out / 'report.html'}")
