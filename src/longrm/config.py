"""Strict settings: defaults, then a TOML file, then flags and `--set a.b=value`.

Every command has one subclass of `Config`. An unknown key or a wrong type fails before any work starts, and the
resolved settings are written into the run folder as a file that repeats the run.
"""

import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Self, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from longrm.errors import ConfigError
from longrm.reading import cut, error_message, read_toml, short

OPERATIONAL = "operational"
"""Marks, in a field's `Annotated`, a setting that changes no result: a run may continue with another value."""


@dataclass(frozen=True, slots=True)
class IdentifiedBy:
    """Marks, in a field's `Annotated`, a setting of which only one part may change results."""

    part: Callable[[Any], Any]


class Config(BaseModel):
    """A frozen group of settings that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    # Names that users know from other libraries: the key here, or in several words what is done instead. Documented
    # here because the attributes of a docstring are settings.
    other_names: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def resolve(cls, file: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """Merges defaults, an optional TOML file and overrides; the last one wins, and a key of a group over the group.

        An override has a dotted key, or the last part of one that only one setting has, such as "learning_rate".
        """
        tree = read_toml(file, ConfigError) if file else {}
        given = {cls.dotted(key): value for key, value in (overrides or {}).items()}
        for dotted, value in sorted(given.items(), key=lambda item: item[0].count(".")):
            *parents, last = dotted.split(".")
            group = tree
            for parent in parents:
                below = group.get(parent, {})
                if not isinstance(below, Mapping):
                    raise ConfigError(
                        f"cannot set '{dotted}': '{parent}' is a value, not a group of settings"
                    )
                group[parent] = dict(below)  # the caller's own stays as it is
                group = group[parent]
            group[last] = value
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise ConfigError(_message(cls, error, f" (in {file} or the flags)" if file else "")) from None

    @classmethod
    def dotted(cls, key: str) -> str:
        """The dotted key of a setting by its last part; any other key as it is."""
        found = [known for known in keys_of(cls, lists=False) if known.rpartition(".")[2] == key]
        return found[0] if len(found) == 1 and key not in cls.model_fields else key

    @classmethod
    def defining(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The part of plain settings that may change results, and so must stay when a run continues."""
        kept = {}
        for name, value in settings.items():
            field = cls.model_fields.get(name)
            marks = field.metadata if field else []
            if OPERATIONAL in marks:
                continue
            for mark in marks:
                value = mark.part(value) if isinstance(mark, IdentifiedBy) else value
            kept[name] = _defining(list(groups_of(field.annotation)) if field else [], value)
        return kept

    def extends(self, begun: Mapping[str, Any]) -> bool:
        """Whether a run may continue with these settings although it began with others; an error says why not."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values for TOML, without optional settings that are not set."""
        return self.model_dump(mode="json", exclude_none=True)


def _defining(groups: list[type[Config]], value: Any) -> Any:
    if isinstance(value, Mapping) and groups:
        # The member of a union that has all of these keys.
        fitting = (group for group in groups if value.keys() <= group.model_fields.keys())
        return next(fitting, groups[0]).defining(value)
    if isinstance(value, list | tuple):
        return [_defining(groups, item) for item in value]
    return value


def groups_of(annotation: Any) -> Iterator[type[Config]]:
    """The groups of settings within a field's type: itself, the members of a union, the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    for argument in get_args(annotation):
        yield from groups_of(argument)


_RECIPES = Path(str(files("longrm") / "recipes"))


def packaged_recipes() -> dict[str, Path]:
    """The recipe files of the package by name, such as `paper/qwen3-8b/logo`."""
    found = sorted(_RECIPES.rglob("*.toml"))
    return {path.relative_to(_RECIPES).with_suffix("").as_posix(): path for path in found}


def recipe_file(name: str | Path) -> Path:
    """A settings file by its path, or by the name of a recipe of the package."""
    if Path(name).exists():
        return Path(name)
    known = packaged_recipes()
    recipe = known.get(str(name).removesuffix(".toml"))
    if recipe is None:
        near = get_close_matches(str(name), known, n=1)
        advice = f"did you mean '{near[0]}'?" if near else "longrm recipes lists the recipes"
        raise ConfigError(f"no file or recipe '{name}'; {advice}")
    return recipe


def packaged_file(name: str | Path) -> Path:
    """A file by its path, or one that the recipes of the package use, such as `instruct_judge/judge.jinja`."""
    packaged = _RECIPES / name
    return packaged if not Path(name).exists() and packaged.exists() else Path(name)


def to_toml(settings: Mapping[str, Any]) -> str:
    """Writes settings as TOML text."""
    return tomli_w.dumps(dict(settings))


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Parses `a.b=value` pairs. A value that is not TOML is a plain string, so that paths need no quotes."""
    parsed = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise ConfigError(
                f"--set needs KEY=VALUE, such as optimizer.max_steps=100; got {short(assignment)}"
            )
        try:
            value = tomllib.loads(f"value = {text}")
        except ValueError:
            value = {}
        # A text of several lines could define further keys; it is a string, too.
        parsed[key.strip()] = value["value"] if len(value) == 1 else text.strip()
    return parsed


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The settings that differ, each as `key: old -> new`."""
    before, after = _flatten(old), _flatten(new)
    pairs = {key: (before.get(key, "unset"), after.get(key, "unset")) for key in before | after}
    return [f"{key}: {was!r} -> {now!r}" for key, (was, now) in sorted(pairs.items()) if was != now]


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= (
            _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
        )
    return flat


def _message(cls: type[Config], error: ValidationError, where: str) -> str:
    """One line about the first error, and the keys of the others."""
    first, *others = error.errors()
    key = cut(".".join(map(str, first["loc"])))
    # A list with a wrong item is often an error itself, too: of none that is right, it is too short.
    items = {one["loc"][:-1] for one in error.errors()}
    more = ""
    for problem, is_missing in (("also required", True), ("also wrong", False)):
        keys = [
            cut(".".join(map(str, one["loc"])))
            for one in others
            if (one["type"] == "missing") == is_missing and one["loc"] not in items
        ]
        more += f"; {problem}: {', '.join(keys)}" if keys else ""
    if first["type"] == "extra_forbidden":
        path = ".".join(part for part in first["loc"] if isinstance(part, str))  # without places in lists
        group, _, last = path.rpartition(".")
        known = [one.rpartition(".") for one in keys_of(cls)]
        siblings = {name: f"{group}.{name}".lstrip(".") for other, _, name in known if other == group}
        # The same name in another group is a better guess than a similar one in this group. Names are compared without
        # the group, which alone would make them similar.
        near = [f"{other}.{last}".lstrip(".") for other, _, name in known if name == last]
        near += filter(None, [cls.other_names.get(path, cls.other_names.get(last, ""))])
        similar = (
            siblings
            if group
            else {name: f"{other}.{name}".lstrip(".") for other, _, name in known} | siblings
        )
        near += [similar[name] for name in get_close_matches(last, similar, n=1)]
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(siblings.values())}"
        if near and " " in near[0]:
            hint = near[0]
        return f"unknown key '{key}'{where}; {hint}{more}"
    if first["type"] == "missing":
        return f"the setting '{key}' is required{where}{more}"
    message = error_message(first)
    # A validator's own ConfigError names the value itself, unless the value is secret.
    is_own = isinstance(first.get("ctx", {}).get("error"), ConfigError)
    got = "" if is_own or not key else f", got {short(first['input'])}"
    return f"{f'wrong value for {key!r}{where}: ' if key else ''}{message}{got}{'' if key else where}{more}"


def documented(group: type[Config]) -> dict[str, str]:
    """The entry of each setting in a group's own docstring."""
    text = inspect.cleandoc(group.__dict__.get("__doc__") or "").partition("Attributes:")[2]
    entries = (entry.partition(":") for entry in re.split(r"\n(?=\w)", inspect.cleandoc(text)) if entry)
    return {name: " ".join(text.split()) for name, _, text in entries}


def described(group: type[Config], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The dotted keys of all single settings in a group and the groups below it, with their entries and defaults."""
    entries = documented(group)
    for name, field in group.model_fields.items():
        below = [*groups_of(field.annotation)]
        for one in below:
            yield from described(one, f"{prefix}{name}.")
        if not below:
            value = field.default
            shown = isinstance(value, bool | int | float | str) and value != ""
            default = f" (default {to_toml({'x': value}).removeprefix('x = ').strip()})" if shown else ""
            yield prefix + name, entries[name] + default


def keys_of(group: type[Config], prefix: str = "", *, lists: bool = True) -> Iterator[str]:
    """The dotted keys of all settings in a group and the groups below it, by default also within lists of groups."""
    for name, field in group.model_fields.items():
        yield prefix + name
        for below in (
            groups_of(field.annotation) if lists or get_origin(field.annotation) is not tuple else ()
        ):
            yield from keys_of(below, f"{prefix}{name}.", lists=lists)
