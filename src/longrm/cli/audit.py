"""`longrm audit`."""

import shutil
from pathlib import Path

import click

from longrm.cli.options import FORMAT, JSON, OUTPUT_FILE, PATH, columns_option, resolve, set_option
from longrm.cli.terminal import echo, print_json, progress


@click.command("audit", short_help="Inspect a data set and list its problems.")
@click.argument("path")
@click.option(
    "--tokenizer",
    "tokenizers",
    multiple=True,
    help="Tokenizer for lengths: words, or a file, folder or Hub id; repeatable.",
)
@click.option(
    "--against",
    multiple=True,
    metavar="NAME:PATH",
    help="A benchmark that must not share text with the rows; repeatable.",
)
@columns_option()
@FORMAT
@click.option("--html", metavar="FILE", type=OUTPUT_FILE, help="Also write one HTML page.")
@click.option("--config", "config_file", type=PATH, help="TOML file of settings.")
@set_option("similarity_threshold=0.9")
@JSON
def command(
    path: str,
    as_json: bool,
    html: Path | None,
    tokenizers: tuple[str, ...],
    against: tuple[str, ...],
    format: str | None,
    columns: dict[str, str] | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Counts and lengths, biases, duplicates, leakage and unreadable rows of a data set.

    \b
    longrm audit rows.jsonl --html audit.html
    longrm audit runs/stage1 --tokenizer MODEL --against leval:FOLDER
    longrm audit long-rewardbench:FOLDER --json

    PATH is a file or folder of comparisons, judgments, demonstrations or documents in any supported format, a folder
    that longrm synthesize wrote, L-Eval's folder, or a benchmark as NAME:PATH. The exit status is 0 whatever is found.
    """
    from longrm.auditing import AuditSettings, as_html, as_text, audit
    from longrm.runs.folder import write_file

    flags = {
        "tokenizers": list(tokenizers) or None,
        "against": list(against) or None,
        "format": format,
        "columns": columns,
    }
    settings = resolve(AuditSettings, config_file, assignments, flags)
    with progress() as report:
        found = audit(path, settings, progress=report)
    if as_json:
        print_json(found.as_dict())
    else:
        echo(as_text(found, shutil.get_terminal_size().columns), end="")
    if html is not None:
        write_file(html, as_html(found))
        echo(f"Wrote {html}", err=as_json)
