"""`longrm compare`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from longrm.cli.evaluate import coefficient, percentage
from longrm.cli.help import Command
from longrm.cli.options import JSON, PATH
from longrm.cli.terminal import echo, print_json, print_lines, print_next, print_table

if TYPE_CHECKING:  # numpy is not loaded for the help
    from longrm.evaluation.compare import RunComparison

_IDS = 5  # printed of the comparisons that only one run judged right


@click.command("compare", cls=Command)
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...", type=PATH)
@click.option("--metric", metavar="NAME", help="A mean over comparisons (default: main accuracy).")
@JSON
def command(runs: tuple[Path, ...], metric: str | None, as_json: bool) -> None:
    """Compare evaluations on the comparisons they share.

    \b
    longrm compare runs/base runs/trained
    longrm compare runs/base runs/trained runs/other --json

    It prints differences overall, by length, depth and task; every run is compared with the first one. Comparisons are
    matched by prompt and responses, also across benchmarks. Those that only one run has are left out and counted.
    """
    from longrm.evaluation.compare import compare

    found = compare(*runs, metric=metric)
    if as_json:
        print_json(found.as_dict())
    else:
        for number, one in enumerate(found.each):
            if number:
                echo()
            _print(one)
    print_next("report", *runs, "--out", "report.html", err=as_json)


def _print(found: "RunComparison") -> None:
    from longrm.evaluation.compare import LEFT_OUT
    from longrm.evaluation.metrics import metric_of
    from longrm.reading import short_name
    from longrm.reporting.formatting import FEW_NOTE, difference_text, p_value, plural
    from longrm.reporting.tables import compared_cells

    metric, first, second = metric_of(found.metric), found.first, found.second
    difference = difference_text(found.overall.difference, metric)
    n, p = plural(found.overall.n, "comparison"), p_value(found.overall.p)
    p = p if p.startswith("<") else f"= {p}"
    print_lines(f"{second.name} minus {first.name}: {metric.title} {difference} on the same {n}, p {p}")
    for place, run in (("First", first), ("Second", second)):
        model, bench = short_name(run.evaluation.model), short_name(run.evaluation.bench)
        print_lines(f"{place}: {run.path} ({model} on {bench})")
    tables: dict[str, list[tuple[str, ...]]] = {}
    # Parts by length and depth are many and small: they are in the JSON only.
    parts = [(kind, name, part) for kind, name, part in found.parts() if kind != "length and depth"]
    for kind, name, part in parts:
        cells = (f"{cell.text} {cell.detail}".strip() for cell in compared_cells(part, metric))
        tables.setdefault("length" if kind == "overall" else kind, []).append((name, *cells))
    for kind, rows in tables.items():
        if len(rows) > 1 or kind == "length":
            print_table((kind, "first", "second", "difference", "p", "n"), rows)
    print_lines(
        f"95% intervals; p: sign-flip test over {found.overall.groups:,} groups, Holm-adjusted within each table. "
        "McNemar's exact test, which treats comparisons of one group as independent: p = "
        f"{found.overall.mcnemar.p:.2g}."
    )
    if any(part.few_groups for _, _, part in parts):
        print_lines(f"{FEW_NOTE} Read p instead.")
    for side, run in (("first", first), ("second", second)):
        ids = found.wins[side]
        shown = f": {', '.join(ids[:_IDS])}{', ...' if len(ids) > _IDS else ''}" if ids else ""
        print_lines(f"Won by {run.name} only: {len(ids):,}{shown}")
    if (both := found.agreement) is not None:
        print_lines(
            f"Equal verdicts, %: {percentage(both.raw)}, Cohen's kappa {coefficient(both.kappa)}, on "
            f"{plural(both.raw.n, 'pair')} that both answered"
        )
    names = {"first": first.name, "second": second.name}
    left_out = [f"{n:,} {LEFT_OUT[why].format(**names)}" for why, n in found.left_out.items() if n]
    if left_out:
        print_lines(f"Left out: {'; '.join(left_out)}")
    if found.differs_in:
        print_lines("Settings that differ:", *(f"  {line}" for line in found.differs_in))
