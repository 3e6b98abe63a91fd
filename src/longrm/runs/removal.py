"""Finds run folders, checks whether a process uses them, and removes them."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from longrm.errors import RunError
from longrm.runs.folder import CONFIG, LOCK, MANIFEST, read_manifest
from longrm.runs.scratch import TRASH, empty_trash, set_aside


def run_folders(top: Path) -> Iterator[Path]:
    """The run folders in a folder, which may be one itself, each before those inside it; links are not followed."""
    for place, inside, files in os.walk(top):
        inside[:] = sorted(name for name in inside if not name.endswith(TRASH))
        if {MANIFEST, CONFIG} <= {*files}:
            yield Path(place)


def size_of(place: Path) -> int:
    """Bytes of a file, or of all files in a folder; a link counts as itself."""
    if place.is_symlink() or not place.is_dir():
        return place.lstat().st_size if os.path.lexists(place) else 0
    return sum(size_of(Path(folder, name)) for folder, _, files in os.walk(place) for name in files)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Locks a run folder as the process of the run does; `RunError` if another process uses it."""
    if not (folder / LOCK).is_file():
        yield
        return
    with (folder / LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder} is in use by another process; wait for it or stop it first") from None
        yield


def is_running(folder: Path) -> bool:
    """Whether a process uses the run in this folder."""
    try:
        with held(folder):
            return False
    except RunError:
        return True


def check_removable(folder: Path) -> None:
    """Raises `RunError` unless the folder is a run (not a link to one) that no process uses, nor a run in it."""
    if folder.is_symlink():
        raise RunError(f"{folder} is a link; name the folder of the run itself")
    read_manifest(folder)
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder} has no {CONFIG}, so it is not a run of longrm and is not removed")
    for run in run_folders(folder):
        with held(run):
            pass


def remove_runs(folders: Sequence[Path]) -> None:
    """Removes run folders with everything in them, but not the targets of links.

    All folders are checked and locked before the first is removed.
    """
    for folder in folders:
        check_removable(folder)
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(held(folder))
        delete(folders)


def delete(places: Sequence[Path]) -> None:
    """Removes files and folders; `RunError` if one cannot be removed."""
    for place in places:
        try:
            if place.is_dir() and not place.is_symlink():
                place = place.resolve()
                empty_trash(place.parent)
                # Renamed first: a kill leaves no half of a run under its name.
                shutil.rmtree(set_aside(place))
            else:
                place.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"cannot remove {error.filename or place}: {error.strerror}") from None
