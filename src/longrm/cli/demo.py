"""`longrm demo`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.evaluate import percentage
from longrm.cli.help import Command
from longrm.cli.options import JSON, OUT_FOLDER
from longrm.cli.terminal import echo, print_facts, print_json, print_lines, print_next, print_table, progress

if TYPE_CHECKING:  # pydantic takes its time to import
    from longrm.evaluation.summary_schema import EvaluationSummary

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
        _print(found, out)
    before, after = (out / "stages" / stage / "pairs" for stage in ("short", "long"))
    print_next("compare", before, after, err=as_json)


def _print(found: dict[str, Any], out: Path) -> None:
    from longrm.evaluation.metrics import metric_of
    from longrm.evaluation.summary_schema import DemoSummary, parse_summary
    from longrm.report.formatting import difference_text, points
    from longrm.report.load import STAGES

    summary = parse_summary(found)
    assert isinstance(summary, DemoSummary), "a demo has a demo's summary"
    print_lines("Pair accuracy by context length in tokens, % (chance 50)")
    lengths = list(next(iter(summary.stages.values())).metrics.by_length)
    print_table(
        ("stage", *lengths), [(name, *_right(stage, lengths)) for name, stage in summary.stages.items()]
    )
    if best_of_4 := [(name, stage.best_of_4) for name, stage in summary.stages.items() if stage.best_of_4]:
        print_lines("Best of 4, % (chance 25)")
        print_table(("stage", *lengths), [(name, *_right(one, lengths)) for name, one in best_of_4])
    print_facts([(name, STAGES[name][1]) for name in summary.stages])
    contrast = summary.contrasts["long_vs_control"]
    differences = [
        (name, *(points(by_length[length].value) for length in lengths))
        for name, by_length in (("pairs", contrast.by_length), ("best of 4", contrast.best_of_4 or {}))
        if by_length
    ]
    print_lines("Accuracy of long minus control, in points (paired)")
    print_table(("", *lengths), differences)
    longest = max(contrast.by_length, key=int)
    gap = difference_text(contrast.by_length[longest], metric_of(summary.stages["long"].main_metric))
    print_lines(f"long minus control at {longest} tokens: {gap}", summary.notes.get("trade_off", ""))
    for name, control in summary.controls.items():
        echo(f"Control, {name.replace('_', ' ')}: {percentage(control)}% (chance 50)")
    print_lines(
        "Other processors give somewhat different numbers: they round differently, and training amplifies it."
    )
    echo(f"Took {summary.seconds['total']:.0f} s. The report is saved to {out / 'report.html'}")


def _right(summary: "EvaluationSummary", lengths: Sequence[str]) -> list[str]:
    """The accuracy of an evaluation at each length, in percent."""
    return [
        percentage(summary.metrics.by_length[length][summary.main_metric], interval=False)
        for length in lengths
    ]
