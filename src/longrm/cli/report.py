"""`longrm report`."""

from pathlib import Path

import click

from longrm.cli.help import Command
from longrm.cli.options import HTML_FILE, PATH
from longrm.cli.terminal import echo


@click.command("report", cls=Command)
@click.argument("runs", nargs=-1, metavar="RUN...", type=PATH)
@click.option("--config", "config_file", type=PATH, help="TOML file of groups, labels and contrasts of runs.")
@click.option("--out", required=True, type=HTML_FILE, help="HTML file to write.")
def command(runs: tuple[Path, ...], config_file: Path | None, out: Path) -> None:
    """Write an HTML report of one or more runs.

    \b
    longrm report runs/base runs/trained --out compare.html
    longrm report --config runs/demo/report.toml --out demo.html

    The report is one self-contained file; its figures are also saved as SVG and PNG.
    """
    from longrm.reporting import ReportSettings, report

    report(runs, out, ReportSettings.read(config_file) if config_file else None)
    echo(f"Wrote {out}")
