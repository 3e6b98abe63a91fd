"""The processes that share one run: this one alone, or those that a launcher such as `torchrun` started."""

import ctypes
import os
import sys
import threading
from pathlib import Path

from longrm.errors import RunError

_MAX_LINE = 1500  # characters of an error; a longer one (it may quote a command line) loses its middle


def world_size() -> int:
    """How many processes the launcher has started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process writes files for all: the first that the launcher started, or the only one."""
    return world_size() == 1 or int(os.environ.get("RANK", "0")) == 0


def print_error(line: str, error: BaseException) -> None:
    """Prints on standard error why this process ends; of several on one machine only the first does.

    An error that only this process knows of has a note with this fact, and is printed by any process.
    """
    notes = getattr(error, "__notes__", [])
    local_rank = os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))
    if notes or world_size() == 1 or int(local_rank) == 0:
        from longrm.reading import visible  # pydantic's import time, which an early exit does not need

        message = visible(" ".join([*line.split(), *notes]))
        if len(message) > _MAX_LINE:
            message = f"{message[: _MAX_LINE // 2]} ... {message[-_MAX_LINE // 2 :]}"
        print(f"longrm: {message}", file=sys.stderr)


def interrupt(thread: threading.Thread) -> None:
    """Ends a thread between two of its Python instructions, as Ctrl-C ends the main thread: a model computes for hours.

    The thread gets a `SystemExit`, which is silent. It comes after a call into native code or a wait for a lock.
    """
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))


def check_seen(folder: Path) -> None:
    """Raises `RunError` if this process does not see the folder that the main process has claimed."""
    if not folder.is_dir():
        raise RunError(f"{folder} does not exist here; the processes of one torchrun need shared storage")


class WorkerGroup:
    """The processes that share a run: this one alone, or several in a subclass.

    The pieces of a run are numbered from 0, the same in all processes, and each is taken by one process. `rank` is the
    number of this process, `count` how many there are.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count
        self._done = 0

    @property
    def is_main_process(self) -> bool:
        """Whether this process claims the run and writes its results."""
        return self.rank == 0

    def wait(self) -> None:
        """Waits until all processes are here."""

    def takes(self, piece: int) -> bool:
        """Whether this process works on a piece; called for every piece, in ascending order."""
        return True

    def add_done(self, count: int) -> int:
        """Adds to the amount of work that this process has done; returns the sum over all processes."""
        self._done += count
        return self._done
