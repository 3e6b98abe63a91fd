"""The process group of the processes that a launcher started: how they meet, share work, and report one failure."""

import datetime
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

# torch has no public names for the store of an existing group, and the list of all groups.
from torch.distributed.distributed_c10d import _get_default_store, _world
from torch.distributed.rendezvous import rendezvous

from longrm.errors import ConfigError, RunError, first_line
from longrm.runs.workers import WorkerGroup, is_main_process, world_size

_log = logging.getLogger(__name__)

_GLOO_TIMEOUT = datetime.timedelta(hours=12)
"""How long a process waits over gloo for the others, which may be busy with a long context, an evaluation, or saving a
large model. A process that died is noticed otherwise: its connections break, and the launcher ends the others."""

_NCCL_TIMEOUT = datetime.timedelta(minutes=30)
"""The same over NCCL, which does not notice a process that died on another machine: its kernels would keep the GPUs
waiting. Processes that may be hours apart wait for each other over gloo first (`DistributedContext.wait`)."""

_RENDEZVOUS_TIMEOUT = datetime.timedelta(minutes=10)
"""How long processes look for each other at the start, when none of them is busy."""

_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class LaunchedProcesses(WorkerGroup):
    """One of several processes that share work; they count what is taken and done in the launcher's store."""

    def __init__(self, store: Any, rank: int, count: int) -> None:
        super().__init__(rank, count)
        self._store = store
        self._piece = -1

    def wait(self) -> None:
        """Waits until all processes are here; raises `RuntimeError` if one of them died."""
        dist.barrier()

    def takes(self, piece: int) -> bool:
        """Whether this process works on a piece: each is taken by the first process that is free."""
        while self._piece < piece:
            self._piece = self._store.add("pieces", 1) - 1
        return self._piece == piece

    def add_done(self, count: int) -> int:
        """Adds to the count of what is done; returns that of all processes."""
        return int(self._store.add("done", count))


@contextmanager
def join(backend: str = "gloo") -> Iterator[LaunchedProcesses]:
    """Joins the processes that the launcher has started, each on its own device, for a `with` block.

    The first process that fails reports why; the others end silently with exit status 1. Pieces are counted once, so
    two runs need two blocks. A process that is in a group already stays in it.

    Raises:
        ConfigError: There is no launcher, there are more processes than devices, or they do not reach each other.
        RunError: Another process died.
    """
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise ConfigError(
            f"several processes, and parallel.shard, need a launcher ({', '.join(missing)} not set): "
            f"torchrun --nproc-per-node {world_size()} -m longrm ..."
        )
    joined = dist.is_initialized()
    rank, count = int(os.environ["RANK"]), world_size()
    if joined:
        store = _get_default_store()
    else:
        # A launcher that restarts processes keeps its store: a prefix separates attempts.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        with _unreachable_explained(count):
            meeting = next(rendezvous("env://", timeout=_RENDEZVOUS_TIMEOUT))[0]
        store = PrefixStore(f"attempt {attempt}", meeting)
    own = PrefixStore("longrm", store)
    with report_first_failure(own):
        claim_gpu()
        if not joined:
            with _unreachable_explained(count):
                dist.init_process_group(
                    backend, store=store, rank=rank, world_size=count, timeout=_RENDEZVOUS_TIMEOUT
                )
            store.set_timeout(_NCCL_TIMEOUT)  # NCCL connects through it at the first exchange
        set_timeouts()
        yield LaunchedProcesses(own, rank, count)
    # A process that fails does not come here, but reports why before its connections close: then the others break off,
    # and the launcher ends all.
    if not joined:
        dist.destroy_process_group()


def set_timeouts() -> None:
    """Sets the time-outs of every group that this process is in; torch and libraries create groups with their own."""
    for group in _world.pg_map:
        for device in group._device_types:
            backend = group._get_backend(device)
            backend._set_default_timeout(_GLOO_TIMEOUT if backend.name() == "gloo" else _NCCL_TIMEOUT)


@contextmanager
def _unreachable_explained(count: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ConfigError(
            f"the {count} processes do not reach each other at {where} ({first_line(error)}): set GLOO_SOCKET_IFNAME "
            "and NCCL_SOCKET_IFNAME on every machine to the network interface that leads to the others"
        ) from None


@contextmanager
def report_first_failure(store: Any) -> Iterator[None]:
    """Lets only the first process that fails report why; the others end silently with exit status 1.

    Failures are counted in the store. A signal counts as one: it reaches all processes at once, or the remaining ones
    through the launcher. If a process died, the first one that notices raises `RunError`.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt):  # the launcher repeats a terminal's signal
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with suppress(RuntimeError):  # the store ends with the launcher or rank 0
            if store.add("failures", 1) > 1:
                raise SystemExit(1) from None
        lost = None
        if is_lost_process(error):
            lost = RunError(
                "another process of this run ended; if it reported no error it was killed, and the same command "
                "continues the run"
            )
        if not is_main_process():  # with a note, the command line prints errors of other processes, too
            (lost or error).add_note(f"(process {os.environ['RANK']})")
        if lost:
            raise lost from None
        raise


def is_lost_process(error: BaseException) -> bool:
    """Whether an exchange broke because a process died."""
    of_gloo = isinstance(error, RuntimeError) and "gloo/transport" in str(error)
    return of_gloo or isinstance(error, dist.DistError)


def claim_gpu() -> None:
    """Selects this process's own GPU, if there are any; raises `ConfigError` if there are too few."""
    if not torch.cuda.is_available():
        return
    place, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if place >= devices:
        raise ConfigError(
            f"process {place} of this machine has no GPU of its own; start at most {devices} processes per machine"
        )
    torch.cuda.set_device(place)
