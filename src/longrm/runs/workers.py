"""The processes that work on one run together: this one alone, or those that a launcher such as `torchrun` started."""

import os
import sys
from pathlib import Path

from longrm.errors import RunError

_LONGEST_LINE = 1500
"""Characters of an error; of a longer one the middle is left out."""


def world_size() -> int:
    """How many processes the launcher has started; 1 where there is none."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process writes files for all: the first that the launcher started, or the only one."""
    return world_size() == 1 or int(os.environ.get("RANK", "0")) == 0


def print_error(line: str, error: BaseException) -> None:
    """Prints on standard error why this process ends; of several on a machine the first does.

    An error that passed by the others, and is reported by this one, has a note that says so.
    """
    notes = getattr(error, "__notes__", [])
    local_rank = os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))
    if notes or world_size() == 1 or int(local_rank) == 0:
        # Not needed to end early, when every import would take its time.
        from longrm.reading import visible

        message = visible(" ".join([*line.split(), *notes]))
        if len(message) > _LONGEST_LINE:  # what somebody gave may be as long as a command line can be
            message = f"{message[: _LONGEST_LINE // 2]} ... {message[-_LONGEST_LINE // 2 :]}"
        print(f"longrm: {message}", file=sys.stderr)


def check_seen(folder: Path) -> None:
    """Refuses to work where the folder that the main process has claimed does not exist.

    Raises:
        RunError: It is not.
    """
    if not folder.is_dir():
        raise RunError(
            f"{folder} does not exist here; the processes of one torchrun need storage that all of them share"
        )


class WorkerGroup:
    """The processes that share a run: this one alone, or several in a subclass.

    The pieces of a run are numbered from 0, the same everywhere, and each is taken by one process. So are the
    processes: `rank` is the number of this one, `count` how many there are.
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
        """Whether this process works on a piece; asked about every piece, in rising order."""
        return True

    def add_done(self, count: int) -> int:
        """Counts what this process has done; returns what all have."""
        self._done += count
        return self._done
