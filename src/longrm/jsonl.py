"""JSON lines: one place writes a value as a line, adds lines to a file and cuts off what was left unfinished."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from longrm import reading
from longrm.errors import RunError

_BLOCK = 65536


def json_text(value: Any, *, allow_nan: bool = False, default: Callable[[Any], Any] | None = None) -> str:
    """A value as JSON that a file can hold: where a text has half of a surrogate pair, all of it is escaped.

    `allow_nan` writes NaN and infinity, which JSON does not have, in place of raising `ValueError`.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=allow_nan, default=default)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=allow_nan, default=default)
    return text


def json_line(value: Any, *, allow_nan: bool = False, default: Callable[[Any], Any] | None = None) -> bytes:
    """A value as one line; the arguments are those of `json_text`."""
    return json_text(value, allow_nan=allow_nan, default=default).encode() + b"\n"


def compact_line(value: Any) -> bytes:
    """A value as one line without spaces.

    Raises:
        ValueError: It holds NaN, infinity or half of a surrogate pair, with which no log could be read again.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Raises `RunError` if the file cannot be written; what was written before stays readable."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror}; make room and run the same command again"
        ) from None


def append_lines(file: IO[bytes], lines: Iterable[bytes], *, to_disk: bool = False) -> None:
    """Writes lines at the end of a file and hands them to the operating system, or has them on the disk."""
    file.write(b"".join(lines))
    file.flush()
    if to_disk:
        os.fsync(file.fileno())


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that end with a line break, each with the byte at which it begins; none without a file.

    Raises:
        RunError: The file cannot be read.
    """
    if not os.path.lexists(path):
        return
    start = 0
    with reading.reading(path, RunError), path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield start, line
            start += len(line)


def cut_unfinished_line(path: Path) -> None:
    """Cuts off the last line of a file if a killed process has left it without its line break."""
    if not os.path.lexists(path):
        return
    with reading.reading(path, RunError), path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            end = start
        file.truncate(0)
