"""JSON lines: writes values as lines, appends them to a file, and cuts off an unfinished last line."""

import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from longrm import reading
from longrm.errors import RunError


def json_text(value: Any, *, default: Callable[[Any], Any] | None = None) -> str:
    """A value as JSON; `ValueError` for NaN and infinity. A lone surrogate has all of the text escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=default)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, default=default)
    return text


def json_line(value: Any, *, default: Callable[[Any], Any] | None = None) -> bytes:
    """A value as one line; the arguments are those of `json_text`."""
    return json_text(value, default=default).encode() + b"\n"


def compact_line(value: Any) -> bytes:
    """A value as one line without spaces; `ValueError` for NaN, infinity and lone surrogates."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turns an `OSError` into a `RunError` with the file's name."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror}; free some space and rerun the command"
        ) from None


def append_lines(file: IO[bytes], lines: Iterable[bytes], *, to_disk: bool = False) -> None:
    """Appends lines to a file and flushes it, with `to_disk` up to the disk."""
    file.write(b"".join(lines))
    file.flush()
    if to_disk:
        os.fsync(file.fileno())


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The complete lines of a file, each with the byte at which it begins; none without a file."""
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
    if not os.path.lexists(path) or not path.stat().st_size:
        return
    with path.open("rb+") as file:
        # Mapped, so that only the end of a large log is read.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = content.rfind(b"\n") + 1
        file.truncate(end)
