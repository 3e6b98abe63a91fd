"""Files from outside: every fault of reading becomes one line that names the file and what is wrong with it.

Whoever reads a file that a user, or a killed run, may have left in any state reads it through these functions. They
open regular files alone, bound what is held in memory, and turn every error of the readers below them (the operating
system's, Unicode's, JSON's, TOML's, Arrow's; nesting and numbers without end) into one of `longrm.errors`.
"""

import gzip
import json
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from longrm.errors import LongRMError

Value = TypeVar("Value")

LONGEST = 256 * 1024 * 1024
"""Bytes of the largest file that is read whole, and of the longest line or row of one that is streamed."""

DEEPEST = 100
"""Levels of lists and objects within each other; no format that is read here has more than ten."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class ParseError(ValueError):
    """What is wrong with a text; whoever knows where it stands says that too."""


@contextmanager
def reading(place: object, error_type: type[LongRMError]) -> Iterator[None]:
    """Turns every fault of reading inside it into one line: the place, what is wrong, and what to do.

    Args:
        place: The file, or the file and the row.
        error_type: What is raised instead. Errors of longrm's own pass as they are.
    """
    try:
        yield
    except LongRMError:
        raise
    except OSError as error:
        raise error_type(f"{_shown(place)}: cannot be read: {error.strerror or first_line(error)}") from error
    except UnicodeError as error:
        raise error_type(f"{_shown(place)}: not UTF-8 text ({first_line(error)})") from error
    except RecursionError as error:
        raise error_type(f"{_shown(place)}: nested too deeply to be read") from error
    except MemoryError as error:
        raise error_type(f"{_shown(place)}: too large to be held in memory") from error
    except (EOFError, zlib.error) as error:
        raise error_type(f"{_shown(place)}: damaged or cut off: {first_line(error)}") from error
    except (ValueError, OverflowError, TypeError, KeyError, NotImplementedError) as error:
        # pyarrow's own errors are among these, so no reader here needs to import it.
        raise error_type(f"{_shown(place)}: cannot be read: {first_line(error)}") from error


def open_file(path: Path, error_type: type[LongRMError]) -> IO[bytes]:
    """Opens a regular file for reading; `.gz` is decompressed on the way.

    Raises:
        LongRMError: Of `error_type`: there is no such file, or it is a folder, a pipe or a device, on which
            reading might never end.
    """
    with reading(path, error_type):
        # Without O_NONBLOCK, opening a pipe waits until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):
            os.close(descriptor)
            what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
            raise error_type(f"{_shown(path)}: {what}; name a file")
        file = os.fdopen(descriptor, "rb")
        return gzip.GzipFile(fileobj=file) if path.name.endswith(".gz") else file  # type: ignore[return-value]


def read_bytes(path: Path, error_type: type[LongRMError], longest: int = LONGEST) -> bytes:
    """Reads a whole file of at most `longest` bytes (after decompression).

    Raises:
        LongRMError: Of `error_type`: it cannot be read, or is larger.
    """
    with open_file(path, error_type) as file, reading(path, error_type):
        content = file.read(longest + 1)
    if len(content) > longest:
        raise error_type(f"{_shown(path)}: larger than {longest:,} bytes, which is the most that is read")
    return content


def read_text(path: Path, error_type: type[LongRMError], longest: int = LONGEST) -> str:
    """Reads a whole file of UTF-8 text, with or without a byte order mark.

    Raises:
        LongRMError: Of `error_type`: as `read_bytes`, or it is no UTF-8.
    """
    content = read_bytes(path, error_type, longest)
    with reading(path, error_type):
        return content.decode("utf-8-sig")


def read_json(path: Path, error_type: type[LongRMError], longest: int = LONGEST) -> Any:
    """Reads a file that holds one JSON value.

    Raises:
        LongRMError: Of `error_type`: it cannot be read, or is no valid JSON.
    """
    content = read_bytes(path, error_type, longest)
    try:
        return parse_json(content)
    except ParseError as error:
        raise error_type(f"{_shown(path)}: {error}") from None


def read_object(path: Path, error_type: type[LongRMError], longest: int = LONGEST) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Raises:
        LongRMError: Of `error_type`: it cannot be read, is no valid JSON, or holds something else.
    """
    value = read_json(path, error_type, longest)
    if not isinstance(value, dict):
        raise error_type(f"{_shown(path)}: holds no JSON object")
    return value


def read_toml(path: Path, error_type: type[LongRMError]) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        LongRMError: Of `error_type`: it cannot be read, or is no valid TOML.
    """
    text = read_text(path, error_type)
    try:
        return parse_toml(text)
    except ParseError as error:
        raise error_type(f"{_shown(path)} is not valid TOML: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parses a TOML document.

    Raises:
        ParseError: It is not valid, or nests deeper than `DEEPEST`.
    """
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise ParseError(f"nested more than {DEEPEST} levels deep") from None
    except ValueError as error:
        raise ParseError(first_line(error)) from None
    check_depth(value)
    return value


def parse_json(text: str | bytes) -> Any:
    """Parses one JSON value more strictly than the standard library does.

    Raises:
        ParseError: It is not valid JSON; it has a key twice in one object, half of a surrogate pair, a number of
            thousands of digits, or more levels than `DEEPEST`.
    """
    try:
        data = text.encode() if isinstance(text, str) else text.removeprefix(b"\xef\xbb\xbf")
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_object)
        # A text has at most as many levels as it opens, and it is quick to count what it opens.
        if data.count(b"[") + data.count(b"{") > DEEPEST:
            check_depth(value)
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except ParseError:
        raise
    except UnicodeEncodeError:
        raise ParseError("holds half of a surrogate pair (\\ud800 to \\udfff); repair it") from None
    except UnicodeDecodeError as error:
        raise ParseError(f"not UTF-8 text ({first_line(error)})") from None
    except RecursionError:
        raise ParseError(f"nested more than {DEEPEST} levels deep") from None
    except ValueError as error:
        raise ParseError(f"not valid JSON, perhaps cut off ({first_line(error)})") from None
    return value


def check_depth(value: Any) -> None:
    """Checks that lists and objects lie at most `DEEPEST` levels deep.

    Raises:
        ParseError: They lie deeper.
    """
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise ParseError(f"nested more than {DEEPEST} levels deep")
        held = [item for item in level if isinstance(item, dict | list)]
        level = [part for item in held for part in (item.values() if isinstance(item, dict) else item)]
        depth += 1


def typed(adapter: TypeAdapter[Value], value: Any, place: object, error_type: type[LongRMError]) -> Value:
    """Validates what was read against a type.

    Raises:
        LongRMError: Of `error_type`; names the place, the first field that does not fit, and what it needs.
    """
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise error_type(f"{_shown(place)}{explained(error)}") from None


def explained(error: ValidationError) -> str:
    """The first fault of a validation, as `, field 'a.b': what is wrong, got 1`, and how many more there are."""
    first, *others = error.errors()
    field = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    got = "" if first["type"] == "missing" else f", got {_short(first['input'])}"
    more = f"; and {len(others)} more" if others else ""
    return f"{f', field {field!r}' if field else ''}: {message}{got}{more}"


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its name where it says nothing."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ParseError(f"the key {_short(twice)} stands twice in one object; remove one")
    return value


def _short(value: Any) -> str:
    """A value as a message shows it, cut where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits, or lists without end
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _shown(place: object) -> str:
    """A place as a message shows it: names of files need not be text."""
    return str(place).encode(errors="backslashreplace").decode()
