"""Options that several commands share, the recipes of the package, and `-` for standard input and output."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from longrm.config import Config, parse_assignments
from longrm.errors import ConfigError, nearest
from longrm.reading import short
from longrm.runs.workers import world_size

Settings = TypeVar("Settings", bound=Config)
Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

PATH = click.Path(path_type=Path)
OUTPUT_FILE = click.Path(path_type=Path, dir_okay=False, writable=True)


def options(*decorators: Decorator) -> Decorator:
    """Combines options into one decorator; the help lists them in this order."""

    def add(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


def resolve(
    settings: type[Settings],
    config_file: Path | None,
    assignments: tuple[str, ...],
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Defaults < `--config` < named flags and `--set`.

    A flag has the name of its setting, with two underscores for every dot; None means that it was not given.
    """
    given = {key.replace("__", "."): value for key, value in (flags or {}).items() if value is not None}
    return settings.resolve(config_file, given | parse_assignments(assignments))


# --- Recipes ---

_RECIPES = Path(str(files("longrm") / "recipes"))


def packaged_recipes() -> dict[str, Path]:
    """The recipe files of the package by name, such as `paper/qwen3-8b/logo`."""
    found = sorted(_RECIPES.rglob("*.toml"))
    return {path.relative_to(_RECIPES).with_suffix("").as_posix(): path for path in found}


def recipe_file(name: str) -> Path:
    """An option type: a settings file by its path, or by the name of a recipe of the package."""
    if Path(name).exists():
        return Path(name)
    known = packaged_recipes()
    recipe = known.get(name.removesuffix(".toml"))
    if recipe is None:
        raise click.BadParameter(f"no file or recipe '{name}'; {nearest(name, known)} (see: longrm recipes)")
    return recipe


# --- Options ---


def setting(flag: str, key: str, help: str, type: Any = None, metavar: str | None = None) -> Decorator:
    """A flag for the setting `key`, which stays as it is unless the flag is given.

    Args:
        flag: Such as "--cut".
        key: The setting's dotted key.
        help: The help text, with the default in parentheses.
        type: A type, `bool` for a flag without a value, or a list of choices; text by default.
        metavar: Name of the value in the help.
    """
    name = key.replace(".", "__")
    if type is bool:
        return click.option(flag, name, is_flag=True, default=None, help=help)
    return click.option(
        flag, name, type=click.Choice(type) if isinstance(type, list) else type, metavar=metavar, help=help
    )


def set_option(example: str = "") -> Decorator:
    """The option `--set`, with an example of a setting."""
    help = f"Change one setting{example and f', such as {example}'} (TOML value); repeatable."
    return click.option("--set", "assignments", multiple=True, metavar="A.B=VALUE", help=help)


_CONFIG_HELP = "TOML file of settings, or the name of a recipe (longrm recipes)."
CONFIG = click.option("--config", "config_file", type=recipe_file, metavar="FILE", help=_CONFIG_HELP)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_OUT_HELP = "Run folder; the same command continues an interrupted run."
OUT_FOLDER = click.option("--out", required=True, type=PATH, help=_OUT_HELP)
RUN_OPTIONS = options(OUT_FOLDER, CONFIG, set_option(), JSON)
FORMAT = click.option("--format", help="Format of the rows (default: recognized from the columns).")


def _pairs(option: str, text: str, example: str) -> dict[str, str]:
    """The value NAME=VALUE,... of an option as a dictionary."""
    found: dict[str, str] = {}
    for pair in text.split(","):
        name, equals, value = (part.strip() for part in pair.rpartition("="))
        if not name or not equals or not value:
            raise ConfigError(f"{option} needs NAME=VALUE, such as {example}; got {short(pair)}")
        if name in found:
            raise ConfigError(f"{option} names '{name}' twice")
        found[name] = value
    return found


def columns_option(key: str = "columns") -> Decorator:
    """The option `--columns`, whose value is the setting of this name."""
    return click.option(
        "--columns",
        key.replace(".", "__"),
        metavar="OURS=THEIRS,...",
        callback=lambda _, __, text: text and _pairs("--columns", text, "chosen=good"),
        help="Column names in the data, such as chosen=good.",
    )


def _weights(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, float] | None:
    """The callback of `--weights`."""
    if text is None:
        return None
    try:
        return {label: float(weight) for label, weight in _pairs("--weights", text, "helpfulness=1").items()}
    except ValueError as error:
        raise ConfigError(f"--weights: {error}") from None


MODEL_OPTIONS = options(
    click.option(
        "--weights",
        "judge__weights",
        metavar="LABEL=WEIGHT,...",
        callback=_weights,
        help="Weights of the labels of a head with several, such as helpfulness=1,verbosity=-0.4.",
    ),
    setting(
        "--device",
        "judge.device",
        "Device of a local model, such as cpu or cuda:1 (default auto: a GPU if there is one).",
    ),
    setting(
        "--dtype",
        "judge.dtype",
        "Type of a local model's weights (default auto: that of its checkpoint).",
        ["auto", "float32", "bfloat16", "float16"],
    ),
)

_LIMIT_HELP = "Judge a sample of this size only, spread over lengths, depths and tasks."
_SHARD_HELP = "Judge part I of N only, into a folder of its own; longrm runs merge joins them."
_CUT_HELP = "Part to cut out of a context that does not fit (default refuse)."
JUDGING_OPTIONS = options(
    setting("--seed", "judging.seed", "Seed of presented orders and bootstrap (default 0).", int),
    setting("--limit", "source.limit", _LIMIT_HELP, int),
    setting("--shard", "shard", _SHARD_HELP, metavar="I/N"),
    setting("--orders", "judging.orders", "Presented orders (default auto).", ["auto", "one", "both"]),
    setting("--cut", "judge.cut", _CUT_HELP, ["middle", "left", "right", "refuse"]),
    MODEL_OPTIONS,
)


def scoring_options(*, model: str, column: str, model_required: bool) -> Decorator:
    """The options of score, rank and filter, with the help texts of `--model` and `--column`."""
    data, out = (
        "Preference data; - for JSONL from standard input.",
        "JSONL or Parquet file; - for standard output.",
    )
    workers = "Number of Ray workers (default: one per GPU, else one per CPU)."
    return options(
        click.option("--model", required=model_required, help=model),
        click.option("--data", metavar="PATH", required=True, help=data),
        click.option("--out", required=True, type=PATH, help=out),
        columns_option(),
        setting("--column", "column", column),
        setting(
            "--on-bad-row", "on_bad_row", "Handling of unreadable rows (default stop).", ["stop", "skip"]
        ),
        setting("--engine", "engine", "Score on the workers of a Ray cluster.", ["ray"]),
        setting("--workers", "workers", workers, int),
        MODEL_OPTIONS,
        set_option("judge.max_tokens=64"),
    )


# --- Standard input and output ---


class RowFiles(NamedTuple):
    """Files in place of `-`; `to_stdout` means that messages must go to standard error."""

    data: str
    out: Path
    to_stdout: bool

    @property
    def out_name(self) -> str:
        """The output's name in messages."""
        return "standard output" if self.to_stdout else str(self.out)


@contextmanager
def row_files(data: str, out: Path) -> Iterator[RowFiles]:
    """Replaces `-` by temporary files: standard input is read first, standard output is written at the end."""
    from_stdin, to_stdout = data == "-", str(out) == "-"
    if (from_stdin or to_stdout) and world_size() > 1:
        raise ConfigError("'-' is not supported with several processes; name files")
    with tempfile.TemporaryDirectory(prefix="longrm-") as folder:
        if from_stdin:
            data = str(Path(folder) / "standard-input.jsonl")
            with open(data, "wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        if to_stdout:
            out = Path(folder) / "standard-output.jsonl"
        try:
            yield RowFiles(data, out, to_stdout)
        finally:
            if to_stdout and out.exists():
                with out.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
