"""Writes `docs/cli.md` from the program itself; `--check` fails when the page is out of date."""

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Literal, get_origin

import click
from click.testing import CliRunner
from pydantic_core import PydanticUndefined

from longrm.auditing import Auditing
from longrm.cli.commands import cli
from longrm.cli.synthesize import command as synthesize
from longrm.config import Config, to_toml
from longrm.evaluation.run import Evaluation
from longrm.training.run import RECIPES

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """# The command line

This page is made by `make docs` from the `--help` texts and the settings' own descriptions.
"""
TRAININGS = {f"train {name.replace('_', '-')}": settings for name, settings in RECIPES.items()}
DATA = {
    f"synthesize {name}": import_module(f"longrm.synthesis.runs.{name.replace('-', '_')}").RECIPE
    for name in synthesize.commands
}
SETTINGS: dict[str, type[Config]] = {"evaluate": Evaluation, **TRAININGS, **DATA, "audit": Auditing}


def sections(command: click.Command, words: list[str]) -> Iterator[str]:
    result = CliRunner().invoke(cli, [*words, "--help"], prog_name="longrm", terminal_width=80)
    yield f"## `{' '.join(['longrm', *words])}`\n\n```text\n{result.output.rstrip()}\n```\n"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from sections(below, [*words, name])


def groups(
    settings: type[Config], key: str = "", seen: dict[type[Config], str] | None = None
) -> Iterator[str]:
    """Describes a group of settings and those inside it, as they are keyed in TOML and in `--set`; each kind once."""
    seen = {} if seen is None else seen
    if settings in seen:
        yield f"`[{key}]`: as `[{seen[settings]}]`\n"
        return
    seen[settings] = key
    yield f"`[{key or 'top level'}]`\n\n```text\n{attributes(settings)}\n```\n"
    for name, field in settings.model_fields.items():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, Config):
                yield from groups(kind, f"{key}.{name}".strip("."), seen)


def attributes(settings: type[Config]) -> str:
    """What the docstrings of a group say of its settings; its own first, then those of the groups that it extends."""
    found: dict[str, str] = {}
    for kind in (kind for kind in settings.__mro__ if issubclass(kind, Config)):
        text = inspect.cleandoc(kind.__dict__.get("__doc__") or "").partition("Attributes:")[2]
        for entry in re.split(r"\n(?=\w)", inspect.cleandoc(text)):
            name = entry.partition(":")[0]
            found.setdefault(name, entry + given(settings, name))
    return "\n".join(filter(None, found.values()))


def given(settings: type[Config], name: str) -> str:
    """What a setting may be and is by default, where that is a plain value."""
    field = settings.model_fields.get(name)
    if field is None:
        return ""
    told = []
    kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
    choices = next((kind.__args__ for kind in kinds if get_origin(kind) is Literal), ())
    if choices:
        told.append(
            "one of " + ", ".join(to_toml({"x": choice}).partition("= ")[2].strip() for choice in choices)
        )
    if field.is_required():
        told.append("required")
    elif field.default not in (None, "", (), PydanticUndefined) and not isinstance(field.default, Config):
        told.append(f"default {shown(field.default)}")
    return f"\n    ({'; '.join(told)})" if told else ""


def shown(value: object) -> str:
    """A default as TOML has it."""
    plain = list(value) if isinstance(value, tuple) else value
    if isinstance(plain, list) and any(isinstance(item, Config) for item in plain):
        return "one table with its defaults"
    return (
        to_toml({"x": plain})
        .partition("= ")[2]
        .strip()
        .replace("\n    ", " ")
        .replace("[ ", "[")
        .replace(",\n]", "]")
    )


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
