"""Writes `docs/cli.md` from the help texts and the settings; `--check` fails if the page is out of date."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args, get_origin

import click
from click.testing import CliRunner
from pydantic_core import PydanticUndefined

from longrm.attribution.run import AttributionSettings
from longrm.auditing import AuditSettings
from longrm.cli.commands import cli
from longrm.cli.synthesize import command as synthesize
from longrm.cli.train import SETTINGS_HEADING
from longrm.config import Config, documented, groups_of, to_toml
from longrm.evaluation.evaluate import Evaluation
from longrm.scoring.scored_file import ScoreSettings
from longrm.serving.settings import ServeSettings
from longrm.training.losses import LOSSES
from longrm.training.settings import LossSettings, TrainingSettings

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """# The command line

Every command with all of its options (`longrm COMMAND --help-all`), then every setting for `--config` and `--set`.
`make docs` writes this page from the help texts and the docstrings of the settings.
"""
DATA = {
    f"synthesize {name}": import_module(f"longrm.synthesis.recipes.{name.replace('-', '_')}").RECIPE
    for name in synthesize.commands
}
SETTINGS: dict[str, type[Config]] = {
    "evaluate": Evaluation,
    "score": ScoreSettings,
    "attribute": AttributionSettings,
    "serve": ServeSettings,
    "train": TrainingSettings,
    **DATA,
    "audit": AuditSettings,
}


def sections(command: click.Command, words: list[str]) -> Iterator[str]:
    result = CliRunner().invoke(cli, [*words, "--help-all"], prog_name="longrm", terminal_width=80)
    shown = result.output.partition(f"\n{SETTINGS_HEADING}:")[
        0
    ].rstrip()  # this page describes settings below
    yield f"## `{' '.join(['longrm', *words])}`\n\n```text\n{shown}\n```\n"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from sections(below, [*words, name])


class Settings:
    """Describes the settings of one command after another; groups and settings that they share are described once."""

    def __init__(self) -> None:
        self._described: dict[type[Config], tuple[str, str]] = {}

    def section(self, command: str, settings: type[Config]) -> Iterator[str]:
        """The groups of a command's settings, under their keys in TOML and `--set`."""
        yield f"## Settings of `longrm {command}`\n"
        known: dict[str, list[str]] = {}
        for key, group in self._groups("", settings):
            place = f"`{key or '[top level]'}`"
            if group in self._described:
                known.setdefault(self._reference(group, command, key), []).append(place)
                continue
            text = "\n".join(self._entries(group, command, key.strip("[]")))
            self._described.update({group: (command, key)})
            yield f"{place}\n\n{text}\n"
        yield from (f"{', '.join(places)}: {reference}\n" for reference, places in known.items())

    def _groups(self, key: str, settings: type[Config]) -> Iterator[tuple[str, type[Config]]]:
        """A group and the groups inside it, each with its key; those inside a described group are left out."""
        described = settings in self._described
        yield key, settings
        for name, field in {} if described else settings.model_fields.items():
            for group in groups_of(field.annotation):
                below = f"{key.strip('[]')}.{name}".strip(".")
                yield from self._groups(f"[[{below}]]" if is_list(field.annotation) else f"[{below}]", group)

    def _reference(self, group: type[Config], command: str, key: str) -> str:
        other, place = self._described[group]
        where = "" if place == key else f" `{place or '[top level]'}`"
        return f"as{where}" + ("" if other == command else f" for `longrm {other}`")

    def _entries(self, settings: type[Config], command: str, place: str) -> Iterator[str]:
        """The docstring entries of a group's settings, and of the groups that it extends."""
        found: set[str] = set()
        for kind in (kind for kind in settings.__mro__ if issubclass(kind, Config)):
            entries = {name: entry for name, entry in documented(kind).items() if name not in found}
            found |= entries.keys()
            alike = [name for name in entries if kind in self._described and same(settings, kind, name)]
            for name in (name for name in entries if name not in alike):
                key = f"{place}.{name}".strip(".")
                anchor = f'<a id="{command.replace(" ", "-")}.{key}"></a>'
                yield f"- {anchor}`{key}`: {entries[name]}{given(settings, name)}"
            if alike:
                names = ", ".join(f"`{name}`" for name in alike)
                yield f"- {names}: {self._reference(kind, command, '')}"
            elif entries and kind is not settings:
                self._described[kind] = (command, "")


def same(settings: type[Config], other: type[Config], name: str) -> bool:
    return given(settings, name) == given(other, name)


def is_list(annotation: object) -> bool:
    """Whether a setting takes a list, which may be optional."""
    kinds = (annotation, *getattr(annotation, "__args__", ()))
    return any(get_origin(kind) in (tuple, list) for kind in kinds)


def choices(annotation: object) -> Iterator[object]:
    """The allowed values of a setting, or of its items if it is a list."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif (
        not (isinstance(annotation, type) and issubclass(annotation, dict))
        and get_origin(annotation) is not dict
    ):
        for kind in get_args(annotation):
            yield from choices(kind)


def given(settings: type[Config], name: str) -> str:
    """The allowed values and the default of a setting, where these are plain values."""
    field = settings.model_fields.get(name)
    if field is None:
        return ""
    notes = []
    if name == "kind" and issubclass(settings, LossSettings):
        return losses()
    if values := ", ".join(shown(choice) for choice in choices(field.annotation)):
        notes.append(f"a list of some of {values}" if is_list(field.annotation) else f"one of {values}")
    if field.annotation is LossSettings:
        notes.append("default: that of the objective")
    elif field.is_required():
        notes.append("required")
    elif field.default not in (None, "", (), PydanticUndefined) and not isinstance(field.default, Config):
        notes.append(f"default {shown(field.default)}")
    return f" *({'; '.join(notes)})*" if notes else ""


def losses() -> str:
    """The losses, with their objectives, what each compares and its own defaults."""
    listed = " *(one of these)*"
    for name, loss in LOSSES.items():
        options = ", ".join(
            option if default is None else f"{option} {shown(default)}"
            for option, default in loss.options.items()
        )
        listed += f'\n    - "{name}" ({loss.objective}): {loss.title}, {loss.description}{options and f"; {options}"}'
    return listed


def shown(value: object) -> str:
    """A default as TOML, in backticks."""
    plain = list(value) if isinstance(value, tuple) else value
    if isinstance(plain, list) and any(isinstance(item, Config) for item in plain):
        return "one table with its defaults"
    written = (
        to_toml({"x": plain})
        .partition("= ")[2]
        .strip()
        .replace("\n    ", " ")
        .replace("[ ", "[")
        .replace(",\n]", "]")
    )
    return f"`{written}`"


def main() -> None:
    parts, describing = [INTRODUCTION, *sections(cli, [])], Settings()
    for command, settings in SETTINGS.items():
        parts += describing.section(command, settings)
    page = "\n".join(parts)
    if "--check" not in sys.argv:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        sys.exit("docs/cli.md is out of date: run `make docs` and commit it")


if __name__ == "__main__":
    main()
