"""Reads local files. `reading(place, error_type)` adds the file, row or field to whatever goes wrong inside it."""

import gzip
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeGuard, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from longrm.errors import LongRMError, first_line

Value = TypeVar("Value")

# Characters that change how a terminal or browser shows the text around them: control characters other than tab and
# newline, marks that reverse the direction of a line, lone surrogates, and two code points that XML cannot hold.
CONTROL_CHARACTERS = (
    *range(0x09),
    *range(0x0B, 0x20),
    *range(0x7F, 0xA0),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
    *range(0xFFFE, 0x10000),
)
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in CONTROL_CHARACTERS}

STDIN_COPY = "standard-input-"
"""Begins the name of a temporary copy of standard input; a digest of its contents follows."""


class FieldError(ValueError):
    """A problem in one field of a row. The caller that knows the file and row adds them."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"field '{field}': {problem}")


def located(place: object, problem: object) -> str:
    """Joins a file or row and a problem; one that names a field reads `FILE, row 3, field 'id': ...`."""
    return f"{place}{',' if str(problem).startswith('field ') else ':'} {problem}"


@contextmanager
def reading(place: object, error_type: type[LongRMError]) -> Iterator[None]:
    """Turns every error inside the block, except longrm's own, into `error_type` with the place in front."""
    try:
        yield
    except LongRMError:
        raise
    except OSError as error:
        raise error_type(f"{place}: cannot be read: {error.strerror or first_line(error)}") from error
    except ValidationError as error:
        raise error_type(f"{place}{validation_problem(error)}") from None
    except (FieldError, tomllib.TOMLDecodeError) as error:
        raise error_type(located(place, error)) from error
    except UnicodeError as error:
        raise error_type(f"{place}: not UTF-8 text ({first_line(error)}); save the file as UTF-8") from error
    except Exception as error:
        raise error_type(f"{place}: cannot be read: {first_line(error)}") from error


def open_file(path: Path) -> IO[bytes]:
    """Opens a file for reading; `.gz` is decompressed."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]  # both are binary streams


def file_digest(path: Path, error_type: type[LongRMError]) -> str:
    """The SHA-256 of a file as it is stored, in hexadecimal digits."""
    with reading(path, error_type), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: Path, error_type: type[LongRMError]) -> str:
    """Reads a file of UTF-8 text, with or without a byte order mark."""
    with reading(path, error_type):
        return path.read_bytes().decode("utf-8-sig")  # read_text would translate line breaks


def read_json(path: Path, error_type: type[LongRMError]) -> dict[str, Any]:
    """Reads a file that holds one JSON object."""
    with reading(path, error_type), open_file(path) as file:
        value = parse_json(file.read())
    if not isinstance(value, dict):
        raise error_type(f"{path}: not a JSON object")
    return value


def read_toml(path: Path, error_type: type[LongRMError]) -> dict[str, Any]:
    """Reads a TOML file."""
    text = read_text(path, error_type)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise error_type(f"{path} is not valid TOML: {error}") from None


def parse_json(text: str | bytes) -> Any:
    """Parses one JSON value.

    Lone surrogates, which models write when a text is cut within an emoji, become question marks, because no tokenizer
    and no UTF-8 file accepts them.
    """
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text ({error}); save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON, perhaps truncated ({first_line(error)})") from None
    return _without_surrogates(value) if "\\ud" in text or "\\uD" in text else value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list) else value


def typed(adapter: TypeAdapter[Value], value: Any, place: object, error_type: type[LongRMError]) -> Value:
    """Validates a value; an error names the place and the first wrong field."""
    with reading(place, error_type):
        return adapter.validate_python(value)


def validation_problem(error: ValidationError) -> str:
    """The first error of a validation, as `, field 'a.b': problem, got 1`, and how many others there are."""
    first, *others = error.errors()
    field = ".".join(map(str, first["loc"]))
    got = "" if first["type"] == "missing" else f", got {short(first['input'])}"
    more = f"; and {len(others)} more" if others else ""
    return f"{f', field {field!r}' if field else ''}: {error_message(first)}{got}{more}"


def error_message(error: ErrorDetails) -> str:
    """Pydantic's message for one error, without the prefix that it gives to messages of validators."""
    message = error["msg"].removeprefix("Value error, ")
    return message if message is not error["msg"] else message[:1].lower() + message[1:]


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_text(text: str) -> bool:
    """Whether a text can be written as UTF-8; one with a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def cut(text: str, most: int = 200) -> str:
    """The text, shortened to `most` characters for a message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def short(value: Any) -> str:
    """The `repr` of a value, shortened for a message."""
    return cut(repr(value), 80)


def visible(text: str) -> str:
    """The text with control characters escaped, safe to print on a terminal or a page."""
    return text.translate(_ESCAPES)


def short_name(name: str) -> str:
    """A short display name of a model or benchmark: the last part of a path, or the run that a model is from.

    `runs/demo/training/long/model` becomes `long`, `judgebench:/data/pairs.jsonl` becomes `judgebench:pairs.jsonl`.
    Hub ids (`owner/model`) and URLs stay as they are.
    """
    if "://" in name:
        return name
    parts = [name] if Path(name).exists() else re.split("([:#+])", name)
    return "".join(map(_last_part, parts))


def _last_part(name: str) -> str:
    path = Path(name)
    if not name or not (path.is_absolute() or len(path.parts) > 2 or path.exists()):
        return name
    path = Path(os.path.abspath(path))
    return path.parent.name if path.name == "model" and path.parent.name else path.name
