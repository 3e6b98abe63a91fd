"""Files that replace others when they are complete, and temporary folders that end with their process.

Each is locked by the process that makes it, and a lock ends with its process, however that ends: what nobody holds was
left by one that was killed, and is removed by the next one that makes the same.
"""

import fcntl
import glob
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.part", re.DOTALL)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Writes a file that replaces the one at a path when all went well, and is removed when not.

    Raises:
        OSError: It cannot be written; what was at the path is left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, path.name)
    scratch, file = _begin(path)
    try:
        with file:
            yield file
            file.flush()
            scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def sweep(folder: Path, name: str | None = None) -> None:
    """Removes what processes that were killed have begun in a folder: of one file, or of all."""
    for left in folder.glob(f".{'*' if name is None else glob.escape(name)}.*.part"):
        if _NAME.fullmatch(left.name):
            with suppress(OSError), left.open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder among the temporary files, removed at the end; those that killed processes left are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError), _opened(left) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError), _opened(folder) as descriptor:
            if _hold(descriptor):
                try:
                    yield folder
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return


def _begin(path: Path) -> tuple[Path, IO[bytes]]:
    while True:
        scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        file = scratch.open("xb")
        if _hold(file.fileno()):
            return scratch, file
        file.close()


def _hold(descriptor: int) -> bool:
    """Locks what this process has made; False where another one has just taken it for what a killed one left."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks, on which nobody can take it
    return os.fstat(descriptor).st_nlink > 0


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
