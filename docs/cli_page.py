"""Writes `docs/cli.md` from the command line itself; `--check` fails when the page is out of date."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from longrm.cli.main import cli

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """# The command line

This page is made by `make docs` from the `--help` texts.
"""


def sections(command: click.Command, path: str, parent: click.Context | None = None) -> Iterator[str]:
    context = click.Context(command, info_name=path.split()[-1], parent=parent, terminal_width=80)
    yield f"## `{path}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from sections(below, f"{path} {name}", context)


def main() -> None:
    page = "\n".join([INTRODUCTION, *sections(cli, "longrm")])
    if "--check" not in sys.argv:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        sys.exit("docs/cli.md is out of date: run `make docs` and commit it")


if __name__ == "__main__":
    main()
