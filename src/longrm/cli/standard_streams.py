"""`-` in place of a file: rows from standard input, and to standard output, as JSONL."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from longrm.errors import ConfigError
from longrm.runs.workers import world_size

_STREAM = "-"


class RowFiles(NamedTuple):
    """Where rows come from and go to.

    Attributes:
        data: The file to read.
        out: The file to write.
        to_stdout: Whether standard output is for rows, so that messages go to standard error.
    """

    data: str
    out: Path
    to_stdout: bool

    @property
    def named_out(self) -> str:
        """How messages call the file to write."""
        return "standard output" if self.to_stdout else str(self.out)


@contextmanager
def row_files(data: str, out: Path) -> Iterator[RowFiles]:
    """Gives files in place of `-`; what was written for standard output is printed at the end.

    Raises:
        ConfigError: Several processes share the work, and standard input or output is of one.
    """
    streams = data == _STREAM, str(out) == _STREAM
    if any(streams) and world_size() > 1:
        raise ConfigError(
            "'-' stands for one process's standard input or output; name files for several processes"
        )
    with tempfile.TemporaryDirectory(prefix="longrm-") as scratch:
        if streams[0]:
            data = str(Path(scratch) / "standard-input.jsonl")
            with open(data, "wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        if streams[1]:
            out = Path(scratch) / "standard-output.jsonl"
        try:
            yield RowFiles(data, out, streams[1])
        finally:
            if streams[1] and out.exists():
                with open(out, "rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
