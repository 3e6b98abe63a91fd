"""Files and folders that appear in one step, durably.

Data is synced before it is renamed into place: after a power cut there is the old version or the new one. Scratch
files are locked by the process that writes them. A lock ends with its process, even if that is killed, so an unlocked
scratch file is a leftover, and the next process that writes the same file removes it.
"""

import errno
import fcntl
import glob
import os
import re
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

TRASH = ".longrm-trash"
_SCRATCH_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.part", re.DOTALL)


class TemporaryFolder:
    """A folder that is removed with this object, or when the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="longrm-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing that replaces `path` when the block ends, or is deleted on an error.

    The target of a symbolic link is replaced, not the link. Raises `OSError` if it cannot be written.
    """
    path = writable_target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, path.name)
    while True:
        scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        file = scratch.open("xb")
        if _lock(file.fileno()):
            break
        file.close()  # another process swept the file before it was locked: try again
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            scratch.replace(path)
        sync(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


def writable_target(path: Path) -> Path:
    """The path with its symbolic links resolved; `OSError` if it exists and is not a regular file."""
    target = Path(os.path.realpath(path))
    if os.path.lexists(target) and not stat.S_ISREG(target.stat().st_mode):
        code = errno.EISDIR if target.is_dir() else errno.EINVAL
        raise OSError(code, "is a folder" if target.is_dir() else "is not a regular file", str(path))
    return target


def sync(place: Path) -> None:
    """Writes a file, or the names in a folder, to the disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which replaces `target` when the block ends, or is deleted on an error."""
    target = Path(os.path.realpath(target))
    home = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(home, ignore_errors=True)  # left by a process that was killed
    folder = home / target.parent.name / target.name  # the final names: a model card shows them
    folder.mkdir(parents=True)
    try:
        yield folder
        move_in(folder, target)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def move_in(folder: Path, target: Path) -> None:
    """Renames a finished folder to `target` once its contents are on the disk; an existing one is removed."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place, name))
        sync(Path(place))
    discard(target)
    folder.rename(target)
    sync(target.parent)


def discard(folder: Path) -> None:
    """Removes a folder if it exists. It is renamed first, so that a kill never leaves half of it under its name."""
    if folder.is_dir():
        set_aside(folder)
    empty_trash(folder.parent)


def set_aside(folder: Path) -> Path:
    """Renames a folder to a name that `empty_trash` removes, and returns the new path."""
    return folder.rename(folder.with_name(f".{folder.name}.{secrets.token_hex(4)}{TRASH}"))


def empty_trash(folder: Path) -> None:
    """Removes folders that `set_aside` renamed, in this process or in one that was killed."""
    for trash in folder.glob(f".*{TRASH}"):
        shutil.rmtree(trash, ignore_errors=True)


def sweep(folder: Path, name: str | None = None) -> None:
    """Removes the scratch files that killed processes left in a folder: those of one file, or all."""
    for left in folder.glob(f".{'*' if name is None else glob.escape(name)}.*.part"):
        if _SCRATCH_NAME.fullmatch(left.name):
            with suppress(OSError), left.open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()


def _lock(descriptor: int) -> bool:
    """Locks a new file; False if another process has swept it in the meantime."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: no process can sweep it
    return os.fstat(descriptor).st_nlink > 0  # 0: swept between its creation and the lock
