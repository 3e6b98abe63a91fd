"""Writes `docs/cli.md` from the program itself; `--check` fails when the page is out of date."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from longrm.cli.main import cli
from longrm.config import Config
from longrm.evaluation.run import Evaluation
from longrm.training.run import RECIPES

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """# The command line

This page is made by `make docs` from the `--help` texts and the settings' own descriptions.
"""
TRAININGS = {f"train {name.replace('_', '-')}": settings for name, settings in RECIPES.items()}
SETTINGS: dict[str, type[Config]] = {"evaluate": Evaluation, **TRAININGS}


def sections(command: click.Command, words: list[str]) -> Iterator[str]:
    result = CliRunner().invoke(cli, [*words, "--help"], prog_name="longrm", terminal_width=80)
    yield f"## `{' '.join(['longrm', *words])}`\n\n```text\n{result.output.rstrip()}\n```\n"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from sections(below, [*words, name])


def groups(settings: type[Config], key: str = "") -> Iterator[str]:
    """Describes a group of settings and those inside it, as they are keyed in TOML and in `--set`."""
    text = inspect.cleandoc(settings.__doc__ or "").partition("Attributes:")[2]
    yield f"`[{key or 'top level'}]`\n\n```text\n{inspect.cleandoc(text)}\n```\n"
    for name, field in settings.model_fields.items():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, Config):
                yield from groups(kind, f"{key}.{name}".strip("."))


def main() -> None:
    parts = [INTRODUCTION, *sections(cli, [])]
    for command, settings in SETTINGS.items():
        parts += [f"## Settings of `longrm {command}`\n", *groups(settings)]
    page = "\n".join(parts)
    if "--check" not in sys.argv:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        sys.exit("docs/cli.md is out of date: run `make docs` and commit it")


if __name__ == "__main__":
    main()
