"""Options that several commands share, the recipes of the package, and `-` for standard input and output."""

import math
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


def set_option(example: str = "") -> Decorator:
    """The option `--set`, with an example of a setting."""
    help = f"Change one setting{example and f', such as {example}'} (TOML value); repeatable."
    return click.option("--set", "assignments", multiple=True, metavar="A.B=VALUE", help=help)


OUT_FOLDER = click.option(
    "--out", required=True, type=PATH, help="Run folder; the same command continues an interrupted run."
)
CONFIG = click.option(
    "--config",
    "config_file",
    type=recipe_file,
    metavar="FILE",
    help="TOML file of settings, or the name of a recipe (longrm recipes).",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
RUN_OPTIONS = options(OUT_FOLDER, CONFIG, set_option(), JSON)
FORMAT = click.option("--format", help="Format of the rows (default: recognized from the columns).")


def _columns(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, str] | None:
    """The callback of `--columns`: OURS=THEIRS,... as a dictionary."""
    if text is None:
        return None
    names: dict[str, str] = {}
    for pair in text.split(","):
        ours, equals, theirs = (part.strip() for part in pair.partition("="))
        if not ours or not equals:
            raise ConfigError(
                f"--columns needs OURS=THEIRS, such as prompt=question,chosen=good; got {short(pair)}"
            )
        if ours in names:
            raise ConfigError(f"--columns names '{ours}' twice")
        names[ours] = theirs
    return names


def columns_option(setting: str = "columns") -> Decorator:
    """The option `--columns`, whose value is the setting of this name."""
    return click.option(
        "--columns",
        setting,
        metavar="OURS=THEIRS,...",
        callback=_columns,
        help="Column names in the data, such as chosen=good.",
    )


def _weights(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, float] | None:
    """The callback of `--weights`: LABEL=WEIGHT,... as a dictionary."""
    if text is None:
        return None
    weights: dict[str, float] = {}
    for pair in text.split(","):
        label, _equals, weight = (part.strip() for part in pair.rpartition("="))
        try:
            value = float(weight)
        except ValueError:
            value = math.nan
        if not label or not math.isfinite(value):
            raise ConfigError(f"--weights needs LABEL=WEIGHT, such as helpfulness=1; got {short(pair)}")
        if label in weights:
            raise ConfigError(f"--weights names '{label}' twice")
        weights[label] = value
    return weights


MODEL_OPTIONS = options(
    click.option(
        "--weights",
        "judge__weights",
        metavar="LABEL=WEIGHT,...",
        callback=_weights,
        help="Weights of the labels of a head with several, such as helpfulness=1,verbosity=-0.4.",
    ),
    click.option(
        "--device",
        "judge__device",
        help="Device of a local model, such as cpu or cuda:1 (default auto: a GPU if there is one).",
    ),
    click.option(
        "--dtype",
        "judge__dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        help="Type of a local model's weights (default auto: that of its checkpoint).",
    ),
)

JUDGING_OPTIONS = options(
    click.option(
        "--seed", "judging__seed", type=int, help="Seed of presented orders and bootstrap (default 0)."
    ),
    click.option(
        "--limit",
        "source__limit",
        type=int,
        help="Judge a sample of this size only, spread over lengths, depths and tasks.",
    ),
    click.option(
        "--shard",
        "shard",
        metavar="I/N",
        help="Judge part I of N only, into a folder of its own; longrm runs merge joins them.",
    ),
    click.option(
        "--orders",
        "judging__orders",
        type=click.Choice(["auto", "one", "both"]),
        help="Presented orders (default auto).",
    ),
    click.option(
        "--cut",
        "judge__cut",
        type=click.Choice(["middle", "left", "right", "refuse"]),
        help="Part to cut out of a context that does not fit (default refuse).",
    ),
    MODEL_OPTIONS,
)


def scoring_options(*, model: str, column: str, model_required: bool) -> Decorator:
    """The options of score, rank and filter, with the help texts of `--model` and `--column`."""
    return options(
        click.option("--model", required=model_required, help=model),
        click.option(
            "--data",
            metavar="PATH",
            required=True,
            help="Preference data; - for JSONL from standard input.",
        ),
        click.option(
            "--out", required=True, type=PATH, help="JSONL or Parquet file to write; - for standard output."
        ),
        FORMAT,
        columns_option(),
        click.option("--column", help=column),
        click.option(
            "--on-bad-row",
            type=click.Choice(["stop", "skip"]),
            default="stop",
            show_default=True,
            help="What to do with an unreadable row.",
        ),
        click.option("--engine", type=click.Choice(["ray"]), help="Score on the workers of a Ray cluster."),
        click.option(
            "--workers", type=int, help="Number of Ray workers (default: one per GPU, else one per CPU)."
        ),
        click.option(
            "--force", is_flag=True, default=None, help="Overwrite a file with another model's scores."
        ),
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
