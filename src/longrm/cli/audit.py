"""`longrm audit`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.help import Command
from longrm.cli.options import FORMAT, HTML_FILE, JSON, PATH, SET, columns_option, resolve
from longrm.cli.terminal import echo, print_json, print_next, progress, terminal_width

if TYPE_CHECKING:  # numpy is not loaded for the help
    from longrm.auditing import DataSetAudit

_TOKENIZER_HELP = "Tokenizer that measures lengths: words, a file, folder or Hub id; repeatable."
_AGAINST_HELP = "Report rows that share text with this benchmark; repeatable."


@click.command("audit", cls=Command)
@click.argument("path")
@click.option("--tokenizer", "tokenizers", multiple=True, metavar="PATH", help=_TOKENIZER_HELP)
@click.option("--against", multiple=True, metavar="NAME:PATH", help=_AGAINST_HELP)
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
    """Inspect a data set and list its problems.

    \b
    longrm audit rows.jsonl --html audit.html
    longrm audit runs/stage1 --tokenizer MODEL --against leval:FOLDER
    longrm audit long-rewardbench:FOLDER --json

    It reports counts, lengths, biases, duplicates, leakage and unreadable rows. PATH is a file or folder of
    comparisons, judgments, demonstrations, trajectories or documents, a run of longrm synthesize, or a benchmark as
    NAME:PATH. Findings do not change the exit status.
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
    print_next(*_next_step(path, found), err=as_json)


def _next_step(path: str, found: "DataSetAudit") -> list[str]:
    """The command that uses most rows of the data set."""
    from longrm.benchmarks import BENCHMARKS

    kind = max(found.kinds, key=lambda kind: found.kinds[kind])
    if (
        kind == "trajectory"
        and "no labels, outcome unknown" not in found.labels
        and found.format not in BENCHMARKS
    ):
        return ["train", "prm", "--model", "MODEL", "--data", path, "--out", "RUN"]
    if kind in ("comparison", "trajectory") or found.format in BENCHMARKS:
        is_named = path.partition(":")[0] in BENCHMARKS
        bench = path if is_named else f"{found.format if found.format in BENCHMARKS else 'file'}:{path}"
        return ["evaluate", "--model", "MODEL", "--bench", bench, "--out", "RUN"]
    if kind == "document":
        documents = f"documents.path={path}"
        return ["synthesize", "responses", "--config", "data/responses", "--set", documents, "--out", "RUN"]
    objective = "preference" if kind == "judgment" else "sft"
    return ["train", objective, "--set", f"data.path={path}", "--set", "model.path=MODEL", "--out", "RUN"]
