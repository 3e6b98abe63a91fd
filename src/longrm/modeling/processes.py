"""The processes that a launcher has started: how they find each other, share out a run, and fail with one voice."""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.distributed_c10d import _get_default_store  # of a group that others have made
from torch.distributed.rendezvous import rendezvous

from longrm.errors import ConfigError, RunError
from longrm.runs.processes import Processes, launched, leads

# What a process may be busy with while the others wait: long contexts, an evaluation, or the statistics at its end.
_PATIENCE = datetime.timedelta(hours=12)
_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Launched(Processes):
    """One of several processes, which talk over gloo and count in the store of their launcher."""

    def __init__(self, store: Any, rank: int, count: int) -> None:
        super().__init__(rank, count)
        self._store = store
        self._piece = -1

    def wait(self) -> None:
        """Waits until all processes are here.

        Raises:
            RuntimeError: One of them is gone.
        """
        dist.barrier()

    def takes(self, piece: int) -> bool:
        """Whether this process works on a piece; a free process takes the next one that nobody has."""
        while self._piece < piece:
            self._piece = self._store.add("pieces", 1) - 1
        return self._piece == piece

    def add_done(self, count: int) -> int:
        """Counts what this process has done; returns what all have."""
        return int(self._store.add("done", count))


@contextmanager
def join(backend: str = "gloo") -> Iterator[Launched]:
    """Joins the processes that the launcher has started, each on a device of its own; leaves them at the end.

    The first process that fails says why. The others, whose exchanges break for it, end in silence with exit status 1.
    Pieces are counted once: who shares out two runs joins twice. Who is in a group already stays in it.

    Args:
        backend: What carries the exchanges of tensors.

    Raises:
        ConfigError: The launcher does not say who is who, or there are more processes than devices.
        RunError: Another process is gone.
    """
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise ConfigError(
            f"several processes, and parallel.zero, need a launcher that says who is who ({', '.join(missing)} not "
            f"set): torchrun --nproc-per-node {launched()} -m longrm ..."
        )
    joined = dist.is_initialized()
    rank, count = int(os.environ["RANK"]), launched()
    if joined:
        store = _get_default_store()
    else:  # the store of a launcher that starts processes anew holds what those before them have left
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt {attempt}", next(rendezvous("env://"))[0])
    own = PrefixStore("longrm", store)
    with one_voice(own):
        settle_device()
        if not joined:
            dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=_PATIENCE)
        yield Launched(own, rank, count)
    # Who fails does not come here. It is about to end, and says why before its connections close: once they do, the
    # others break off, and the launcher ends all.
    if not joined:
        dist.destroy_process_group()


@contextmanager
def one_voice(store: Any) -> Iterator[None]:
    """Has one process say why all of them end: the first that fails; the others end in silence with exit status 1.

    Args:
        store: Where the processes count their failures.

    Raises:
        RunError: Another process is gone.
    """
    try:
        yield
    except Exception as error:
        if not _first(store):
            raise SystemExit(1) from None
        lost = None
        if is_loss_of_a_process(error):
            lost = RunError(
                "another process of this run has ended; if it did not say why, it was killed, and the same command "
                "continues"
            )
        if not leads():  # the command line lets it speak for that
            (lost or error).add_note(f"(process {os.environ['RANK']})")
        if lost:
            raise lost from None
        raise


def _first(store: Any) -> bool:
    """Whether no process has failed before, as far as can be known: the store ends with the launcher, or rank 0."""
    try:
        return bool(store.add("failures", 1) == 1)
    except RuntimeError:
        return True


def is_loss_of_a_process(error: Exception) -> bool:
    """Whether an exchange broke because a process is gone."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def settle_device() -> None:
    """Gives this process a GPU of its own, where there are any.

    Raises:
        ConfigError: There are fewer than processes.
    """
    if not torch.cuda.is_available():
        return
    place, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if place >= devices:
        raise ConfigError(
            f"process {place} of this machine has no GPU of its own: there are {devices}; start as many processes"
        )
    torch.cuda.set_device(place)
