"""`longrm compare`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from longrm.cli.options import NamedPath
from longrm.cli.terminal import echo, print_json, print_lines, print_table

if TYPE_CHECKING:  # numpy is not loaded for the other commands
    from longrm.evaluation.comparison import RunComparison
    from longrm.evaluation.run import Run

_MOST_IDS = 5
_IN_JSON_ALONE = "length and depth"
"""Parts that are small, and many."""
_COLUMNS = ("first", "second", "difference", "p", "n")


@click.command("compare", short_help="Tell which of several evaluated models is better, and where.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...", type=NamedPath())
@click.option("--metric", help="A metric that is a mean over comparisons (default main accuracy).")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(runs: tuple[Path, ...], metric: str | None, as_json: bool) -> None:
    """Compares evaluations on the comparisons that they share: overall, by length, depth and task.

    \b
    longrm compare runs/base runs/trained
    longrm compare runs/base runs/trained runs/other --json

    The first run is the reference: every other one is compared with it. Comparisons are the same where prompt and
    responses are, whatever the benchmark is called. What only one run holds or could judge is left out, and counted.
    """
    from longrm.evaluation.comparison import compare

    found = compare(*runs, metric=metric)
    if as_json:
        print_json(found.as_dict())
        return
    for number, one in enumerate(found.each):
        if number:
            echo()
        _print_comparison(one)


def _print_comparison(found: "RunComparison") -> None:
    from longrm.evaluation.comparison.compared_parts import part_figures
    from longrm.evaluation.metrics import metric_of

    metric = metric_of(found.metric)
    print_lines([found.sentence, f"First: {_named(found.first)}", f"Second: {_named(found.second)}"])
    tables: dict[str, list[tuple[str, ...]]] = {}
    for kind, name, part in found.parts():
        if kind == _IN_JSON_ALONE:
            continue
        cells = (*part_figures(metric, part), f"{part.n:,}")
        tables.setdefault("length" if kind == "overall" else kind, []).append((name, *cells))
    for kind, rows in tables.items():
        if len(rows) > 1 or kind == "length":
            print_table((kind, *_COLUMNS), rows)
    print_lines(_notes(found))


def _notes(found: "RunComparison") -> list[str]:
    """How to read the tables, who won what, and what was left out or differs."""
    from longrm.evaluation import wording
    from longrm.evaluation.comparison.shared_items import LEFT_OUT
    from longrm.evaluation.metrics import metric_of

    names = {"first": found.first.name, "second": found.second.name}
    whole = found.overall
    notes = [
        f"{metric_of(found.metric).title}, second minus first, 95% intervals; p: sign-flip test over "
        f"{whole.groups:,} groups, Holm-adjusted in each table. McNemar's exact test, for which comparisons of one "
        f"group are independent: p = {whole.mcnemar.p:.2g}."
    ]
    if any(part.few_groups for kind, _, part in found.parts() if kind != _IN_JSON_ALONE):
        notes.append(f"{wording.FEW_NOTE} Read p.")
    for side, ids in found.wins.items():
        shown = f": {', '.join(ids[:_MOST_IDS])}{', ...' if len(ids) > _MOST_IDS else ''}" if ids else ""
        notes.append(f"Won by {names[side]} alone: {len(ids):,}{shown}")
    left_out = [f"{n:,} {LEFT_OUT[why].format(**names)}" for why, n in found.left_out.items() if n]
    notes += [f"Left out: {'; '.join(left_out)}."] if left_out else []
    notes += ["The runs differ in:", *(f"  {line}" for line in found.differs_in)] if found.differs_in else []
    return notes


def _named(run: "Run") -> str:
    from longrm.reading import short_name

    return f"{run.path} ({short_name(run.evaluation.model)} on {short_name(run.evaluation.bench)})"
