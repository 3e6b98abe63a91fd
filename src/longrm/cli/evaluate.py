"""`longrm evaluate`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from longrm.cli.options import resolve, run_options
from longrm.cli.progress_bar import shared_work
from longrm.cli.summary_text import print_evaluation
from longrm.cli.terminal import echo, print_json
from longrm.errors import RunError
from longrm.runs.judgments import JUDGMENTS, read_judgments
from longrm.types import Outcome


@click.command("evaluate", short_help="Judge a benchmark and measure how far the judgment reaches.")
@click.option(
    "--model",
    help="Folder or Hub id (OWNER/NAME@REVISION), openai:URL#NAME, baseline:NAME, compress:MODEL, simulated:RATE.",
)
@click.option("--recorded", metavar="PATH", help="Score judgments written earlier, in place of a model.")
@click.option("--bench", help="probe, or NAME:PATH; the names stand above.")
@run_options("Run folder; the same command continues what is there.")
@click.option("--seed", type=int, help="Draws presented orders and the bootstrap (default 0).")
@click.option("--limit", type=int, help="Take the first comparisons only.")
@click.option("--on-bad-row", type=click.Choice(["stop", "skip"]), help="For an unreadable row.")
@click.option("--strict", is_flag=True, default=None, help="Refuse data whose gold contradicts itself.")
@click.option("--orders", type=click.Choice(["auto", "one", "both"]), help="Presented orders (default auto).")
@click.option("--votes", type=int, help="Askings per order of a judge that samples (default 1).")
@click.option(
    "--format",
    "judge_format",
    type=click.Choice(["pairwise", "listwise", "pointwise"]),
    help="What a model that writes is asked for.",
)
@click.option("--template", metavar="FILE", help="A judging prompt of your own (jinja2).")
@click.option("--verdict", metavar="REGEX", help="Finds the verdict in what your template asks for.")
@click.option("--retries", type=int, help="Askings again after an answer without a verdict (default 1).")
@click.option("--temperature", type=float, help="Of a model that writes (default 0).")
@click.option(
    "--cut",
    type=click.Choice(["middle", "left", "right", "refuse"]),
    help="Part cut out of a context that does not fit (default refuse).",
)
def command(
    out: Path,
    config_file: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Judges every comparison of a benchmark and reports accuracy by length and task, with intervals.

    \b
    longrm evaluate --model MODEL --bench probe --out runs/probe
    longrm evaluate --model MODEL --bench file:pairs.jsonl --out runs/mine
    longrm evaluate --model openai:URL#NAME --bench long-rewardbench:FOLDER --out runs/long
    longrm evaluate --recorded FILE --bench judgebench:FILE --out runs/judge

    Benchmarks: probe (generated worlds), long-rewardbench:PATH, rewardbench:PATH, rewardbench-2:PATH,
    judgebench:PATH, leval:PATH, and file:PATH for your own preference data. docs/cli.md tells every setting
    that --set can change. Processes that torchrun starts share the comparisons.
    """
    from longrm.evaluation.run import Evaluation, run

    settings = resolve(
        Evaluation, config_file, assignments, {_KEYS.get(name, name): value for name, value in given.items()}
    )
    with shared_work() as (group, report):
        summary = run(settings, out, place=group, progress=report)
    if not group.is_main_process:
        return
    if as_json:
        print_json(summary)
    else:
        print_evaluation(summary)
        echo(f"Written to {out}; see it with: longrm report {out} --out report.html")
    _tell_reasons(out, summary["counts"]["outcomes"])
    errors = summary["counts"]["outcomes"]["error"]
    if errors:
        total = summary["counts"]["comparisons"]
        raise RunError(
            f"{errors} of {total} comparisons ended in errors, named in {out / JUDGMENTS}; the same command tries "
            "them again"
        )


def _tell_reasons(out: Path, outcomes: Mapping[str, int]) -> None:
    """Why the first comparison of each outcome has no verdict."""
    left = {outcome for outcome, count in outcomes.items() if count and outcome != Outcome.ANSWERED}
    for record in read_judgments(out) if left else ():
        if record.outcome in left:
            left.remove(record.outcome)
            echo(f"Without a verdict, {record.outcome}, first: '{record.id}': {record.detail}", err=True)


_KEYS = {
    "seed": "judging.seed",
    "limit": "source.limit",
    "on_bad_row": "source.on_bad_row",
    "strict": "source.strict",
    "orders": "judging.orders",
    "votes": "judging.votes",
    "judge_format": "judge.format",
    "template": "judge.template",
    "verdict": "judge.verdict",
    "retries": "judge.retries",
    "temperature": "judge.temperature",
    "cut": "judge.cut",
}
"""Where the settings of the flags stand."""
