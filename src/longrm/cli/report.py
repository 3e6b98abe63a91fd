"""`longrm report`."""

from pathlib import Path

import click

from longrm.cli.options import HTML_FILE, PATH
from longrm.cli.terminal import echo


@click.command("report", short_help="Write an HTML report of one or more runs.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=PATH)
@click.option("--out", required=True, type=HTML_FILE, help="HTML file to write.")
def command(runs: tuple[Path, ...], out: Path) -> None:
    """Writes a self-contained HTML report of one or more runs, and its figures as SVG and PNG.

    \b
    longrm report runs/demo --out demo.html
    longrm report runs/base runs/trained --out compare.html
    """
    from longrm.report import build

    build(runs, out)
    echo(f"Wrote {out}")
