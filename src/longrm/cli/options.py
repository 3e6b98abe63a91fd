"""Options that several commands share, the recipes of the package, and `-` for standard input and output."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from longrm.column_names import LISTS, Columns
from longrm.config import Config, packaged_recipes, parse_assignments, recipe_file
from longrm.errors import ConfigError, DataError
from longrm.reading import STDIN_COPY, file_digest, short
from longrm.runs.workers import world_size

Settings = TypeVar("Settings", bound=Config)
Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

PATH = click.Path(path_type=Path)


class HtmlFile(click.Path):
    """A page to write. Its name must end in .html, so that a typo cannot overwrite data."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Another suffix is a usage error."""
        path = Path(str(super().convert(value, param, ctx)))
        if path.suffix.lower() not in (".html", ".htm"):
            self.fail(f"{path}: the name of a page must end in .html", param, ctx)
        return path


OUTPUT_FILE = click.Path(path_type=Path, dir_okay=False, writable=True)
HTML_FILE = HtmlFile(path_type=Path, dir_okay=False, writable=True)


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

    A flag has the name of its setting, with two underscores for every dot. None, or () for an option that may be
    repeated, means that it was not given.
    """
    given = {
        key.replace("__", "."): list(value) if isinstance(value, tuple) else value
        for key, value in (flags or {}).items()
        if value is not None and value != ()
    }
    return settings.resolve(config_file, given | parse_assignments(assignments))


# --- Recipes ---


def recipe_option(name: str) -> Path:
    """An option type: a settings file by its path, or by the name of a recipe of the package."""
    try:
        return recipe_file(name)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def recipe_name(path: Path) -> str:
    """How a user writes the path of a settings file: by its name if it is a recipe of the package."""
    return next((name for name, known in packaged_recipes().items() if known == path), str(path))


# --- Options ---


def setting(flag: str, key: str, help: str, type: Any = None, metavar: str | None = None) -> Decorator:
    """A flag for the setting `key`, which keeps its value unless the flag is given.

    Args:
        flag: Name of the option, such as "--cut".
        key: Dotted key of the setting.
        help: Help text, with the default in parentheses.
        type: A type, `bool` for a flag without a value, or a list of choices; text by default.
        metavar: Name of the value in the help.
    """
    name = key.replace(".", "__")
    if type is bool:
        return click.option(flag, name, is_flag=True, default=None, help=help)
    choice = click.Choice(type) if isinstance(type, list) else type
    return click.option(flag, name, type=choice, metavar=metavar, help=help)


_SET_HELP = "Change a setting (a TOML value); repeatable."
SET = click.option("--set", "assignments", multiple=True, metavar="A.B=VALUE", help=_SET_HELP)
_CONFIG_HELP = "TOML file, or a recipe of longrm recipes."
CONFIG = click.option("--config", "config_file", type=recipe_option, metavar="FILE", help=_CONFIG_HELP)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_OUT_HELP = "Run folder; rerun to continue."
OUT_FOLDER = click.option("--out", required=True, type=PATH, help=_OUT_HELP)
RUN_OPTIONS = options(OUT_FOLDER, CONFIG, SET, JSON)
FORMAT = click.option(
    "--format", metavar="NAME", help="Format of the rows (default: detected from the columns)."
)


def _pairs(_: click.Context, option: click.Parameter, text: str | None) -> dict[str, str] | None:
    """The callback of an option with NAME=VALUE,... (a name may contain "=", a value may not)."""
    if text is None:
        return None
    pairs = [pair.rpartition("=") for pair in text.split(",")]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if len(found) < len(pairs) or not all(found) or not all(found.values()):
        raise ConfigError(f"{option.opts[0]} needs NAME=VALUE,... with each name once; got {short(text)}")
    return found


def _columns(context: click.Context, option: click.Parameter, texts: Sequence[str]) -> Columns | None:
    """The callback of `--columns`: `responses=a+b` is two columns."""
    pairs = _pairs(context, option, ",".join(texts) or None) or {}
    several = {name: own.split("+") for name, own in pairs.items() if name in LISTS and "+" in own}
    return {**pairs, **several} or None


def columns_option(key: str = "columns") -> Decorator:
    """The option `--columns` for the setting `key`."""
    help = "Names of your columns, as in prompt=q,responses=a+b,winner=label."
    name = key.replace(".", "__")
    return click.option(
        "--columns", name, metavar="OURS=YOURS,...", callback=_columns, multiple=True, help=help
    )


_WEIGHTS_HELP = "Weights of the labels of a multi-label model, as in helpfulness=1,verbosity=-0.4."
_DEVICE_HELP = "Device of a local model (default: a GPU if any)."
_DTYPE_HELP = "Dtype of a local model's weights (default auto: as in its files)."
_JUDGE_HELP = "A published judge, asked in its own form, such as nemotron-genrm."
_CUT_HELP = "Cut contexts that do not fit: middle, left or right."
MODEL_OPTIONS = options(
    click.option(
        "--weights",
        "model_args__label_weights",
        metavar="LABEL=WEIGHT,...",
        callback=_pairs,
        help=_WEIGHTS_HELP,
    ),
    setting("--device", "model_args.device", _DEVICE_HELP, metavar="NAME"),
    setting("--dtype", "model_args.dtype", _DTYPE_HELP, ["auto", "float32", "bfloat16", "float16"]),
    setting("--cut", "model_args.cut", _CUT_HELP, ["middle", "left", "right", "refuse"], "WHERE"),
    setting("--judge", "judge.name", _JUDGE_HELP, metavar="NAME"),
)
"""How a model of any kind is loaded, and what it reads: `ModelSettings`, and the form of a published judge."""

_FORMAT_HELP = "Judging format, such as pairwise or pointwise, or steps for trajectories."
_FORMATS = ["pairwise", "listwise", "pointwise"]
_VERDICT_HELP = "Pattern of the verdict that your template asks for."
JUDGE_OPTIONS = options(
    setting("--format", "judge.format", _FORMAT_HELP, _FORMATS, "FORMAT"),
    setting("--template", "judge.template", "Your own judging prompt (jinja2).", metavar="FILE"),
    setting("--verdict", "judge.verdict", _VERDICT_HELP, metavar="REGEX"),
    setting("--retries", "judge.retries", "Retries after an answer without a verdict (default 1).", int, "N"),
    setting(
        "--temperature", "judge.temperature", "Temperature of a generative model (default 0).", float, "T"
    ),
)
"""How a language model is asked for its judgment: `JudgeSettings`."""

ON_BAD_ROW = ("Stop at a row that cannot be read, or skip and count it (default stop).", ["stop", "skip"])
_LIMIT_HELP = "Judge a sample, spread over lengths and tasks."
_SHARD_HELP = "Judge part I of N only; longrm runs merge joins the parts."
_ORDERS_HELP = "Orders in which a judge sees the responses (default auto: both for pairs)."
JUDGING_OPTIONS = options(
    setting(
        "--seed", "judging.seed", "Seed of the presented orders and of the bootstrap (default 0).", int, "N"
    ),
    setting("--limit", "source.limit", _LIMIT_HELP, int, "N"),
    setting("--shard", "shard", _SHARD_HELP, metavar="I/N"),
    setting("--orders", "judging.orders", _ORDERS_HELP, ["auto", "one", "both"]),
    MODEL_OPTIONS,
)
"""What evaluate and probe judge, in which orders, with which model."""

MODEL_HELP = "Folder or Hub id of a reward model, or another kind (longrm evaluate --help-all)."
ROWS_HELP = {"Rows": "--data --columns --out --on-bad-row", "Model": "--model --device --set"}
"""The common options of score, rank and filter, by heading."""


def scoring_options(*, model: str, column: str, model_required: bool) -> Decorator:
    """The options of score, rank and filter, with the help texts of `--model` and `--column`."""
    data = "Preference data; - reads JSONL from standard input."
    workers = "Number of Ray workers (default: one per GPU, or per CPU)."
    return options(
        click.option("--model", metavar="MODEL", required=model_required, help=model),
        click.option("--data", metavar="PATH", required=True, help=data),
        click.option(
            "--out", required=True, type=PATH, help="JSONL or Parquet file; - writes to standard output."
        ),
        columns_option(),
        setting("--column", "column", column, metavar="NAME"),
        setting("--on-bad-row", "on_bad_row", *ON_BAD_ROW),
        setting("--engine", "engine", "Score on the workers of a Ray cluster.", ["ray"]),
        setting("--workers", "workers", workers, int, "N"),
        setting("--force", "force", "Overwrite a file with another model's scores.", bool),
        MODEL_OPTIONS,
        SET,
    )


# --- Standard input and output ---


@contextmanager
def row_files(data: str, out: Path) -> Iterator[tuple[str, Path, str]]:
    """Replaces `-` by temporary files; yields both files and the output's name in messages.

    Standard input is read first, standard output is written at the end.
    """
    from_stdin, to_stdout = data == "-", str(out) == "-"
    if (from_stdin or to_stdout) and world_size() > 1:
        raise ConfigError("'-' is not supported with several processes; name files")
    with tempfile.TemporaryDirectory(prefix="longrm-") as folder:
        if from_stdin:
            copy = Path(folder) / "standard-input.jsonl"
            with copy.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            data = str(copy.rename(copy.with_stem(STDIN_COPY + file_digest(copy, DataError)[:16])))
        if to_stdout:
            out = Path(folder) / "standard-output.jsonl"
        try:
            yield data, out, "standard output" if to_stdout else str(out)
        except KeyboardInterrupt as error:
            if to_stdout:  # the scores so far are removed with the folder
                error.args = ("the same command starts again from the beginning",)
            raise
        finally:
            if to_stdout and out.exists():
                with out.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
