"""`longrm audit`."""

from pathlib import Path
from typing import Any

import click

from longrm.cli.options import FORMAT, HTML_FILE, JSON, PATH, SET, columns_option, resolve
from longrm.cli.terminal import echo, print_json, progress, terminal_width


@click.command("audit", short_help="Inspect a data set and list its problems.")
@click.argument("path")
@click.option(
    "--tokenizer",
    "tokenizers",
    multiple=True,
    help="Tokenizer that measures lengths: words, a file, a folder or a Hub id; repeatable.",
)
@click.option(
    "--against",
    multiple=True,
    metavar="NAME:PATH",
    help="Report rows that share text with this benchmark; repeatable.",
)
@columns_option()
@FORMAT
@click.option("--html", metavar="FILE", type=HTML_FILE, help="Also write the result as an HTML page.")
@click.option("--config", "config_file", type=PATH, help="TOML file of settings.")
@SET
@JSON
def command(
    path: str,
    html: Path | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
    **flags: Any,
) -> None:
    """Reports counts, lengths, biases, duplicates, leakage and unreadable rows of a data set.

    \b
    longrm audit rows.jsonl --html audit.html
    longrm audit runs/stage1 --tokenizer MODEL --against leval:FOLDER
    longrm audit long-rewardbench:FOLDER --json

    PATH is a file or folder of comparisons, judgments, demonstrations or documents in any supported format, the output
    folder of longrm synthesize, L-Eval's folder, or a benchmark as NAME:PATH. Findings do not change the exit status.
    """
    from longrm.auditing import AuditSettings, as_html, as_text, audit
    from longrm.runs.folder import write_file

    settings = resolve(AuditSettings, config_file, assignments, flags)
    with progress() as report:
        found = audit(path, settings, progress=report)
    if as_json:
        print_json(found.as_dict())
    else:
        echo(as_text(found, terminal_width()), end="")
    if html is not None:
        write_file(html, as_html(found))
        echo(f"Wrote {html}", err=as_json)
