"""Runs commands in this process, as the entry point does."""

import io
import shlex
import sys
from typing import NamedTuple

import click
import pytest

from longrm.cli import commands, terminal
from longrm.data import write
from longrm.worlds import WorldPlan, generate, words_tokenizer


class Done(NamedTuple):
    """Output and exit status of a command."""

    status: int
    out: str
    err: str

    @property
    def error(self):
        """The one line of an error."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("longrm: error: ")]
        return line


def parse(line):
    """Parses a command as the command line does, and runs nothing; a usage error is raised."""
    name, *words = shlex.split(line)
    context = commands.cli.make_context(name, words)
    while isinstance(context.command, click.Group):
        words = [*context._protected_args, *context.args]
        name, command, words = context.command.resolve_command(context, words)
        context = command.make_context(name, words, parent=context)


@pytest.fixture(autouse=True)
def _next_commands_parse(monkeypatch):
    """What any test's command prints as the next one is a command with valid options."""
    echo = terminal.echo

    def checked(text="", **options):
        if text.startswith("next: "):
            parse(text.removeprefix("next: "))
        echo(text, **options)

    monkeypatch.setattr(terminal, "echo", checked)


@pytest.fixture
def longrm(monkeypatch, capsys):
    """Runs a command with arguments, and perhaps bytes on standard input."""

    def run(*arguments, rows=b"", columns=80):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", ["longrm", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            commands.run_command_line()
        return Done(ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """Twelve generated pairs in a file; read only."""
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    write(path, generate(WorldPlan("records", 64, per_group=2), 12, words_tokenizer()))
    return path
