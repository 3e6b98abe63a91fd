"""`longrm report`."""

from pathlib import Path

import click

from longrm.cli.help import Command
from longrm.cli.options import HTML_FILE, PATH
from longrm.cli.terminal import echo


@click.command("report", cls=Command)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=PATH)
@click.option("--out", required=True, type=HTML_FILE, help="HTML file to write.")
def command(runs: tuple[Path, ...], out: Path) -> None:
    """Write an HTML report of one or more runs.

    \b
    longrm report runs/demo --out demo.html
    longrm report runs/base runs/trained --out compare.html

    The report is one self-contained file; its figures are also saved as SVG and PNG.
    """
    from longrm.report import build

    build(runs, out)
    echo(f"Wrote {out}")
