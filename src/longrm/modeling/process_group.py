"""The process group of a launcher's processes: how they meet, share out a run, and report one failure."""

import datetime
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

# The store of a group that others have made, all groups there are, and how long they wait: torch has no other names.
from torch.distributed.distributed_c10d import _get_default_store, _set_pg_timeout, _world
from torch.distributed.rendezvous import rendezvous

from longrm.errors import ConfigError, RunError, first_line
from longrm.runs.workers import WorkerGroup, is_main_process, world_size

_log = logging.getLogger(__name__)

_TIMEOUT = datetime.timedelta(hours=12)
"""How long a process waits for the others: a long context, an evaluation, the statistics at its end, or the saving of a
large model may keep them. That a process is gone is found out otherwise: its connections break, and the launcher ends
the others."""

_RENDEZVOUS_TIMEOUT = datetime.timedelta(minutes=10)
"""How long processes look for each other at their start, when none of them computes yet."""

_INTERFACE = "GLOO_SOCKET_IFNAME"
_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class LaunchedProcesses(WorkerGroup):
    """One of several processes, which exchange data over gloo and count in the store of their launcher."""

    def __init__(self, store: Any, rank: int, count: int) -> None:
        super().__init__(rank, count)
        self._store = store
        self._piece = -1

    def wait(self) -> None:
        """Waits until all processes are here; raises `RuntimeError` where one of them is gone."""
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
def join(backend: str = "gloo") -> Iterator[LaunchedProcesses]:
    """Joins the processes that the launcher has started, each on a device of its own; leaves them at the end.

    The first process that fails reports why. The others, whose exchanges break for it, end silently with exit status 1.
    Pieces are counted once, so two runs are shared out in two blocks. A process that is in a group already stays in it.

    Raises:
        ConfigError: The launcher does not say who is who, there are more processes than devices, or they do not reach
            each other.
        RunError: Another process is gone.
    """
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise ConfigError(
            f"several processes, and parallel.zero, need a launcher that says who is who ({', '.join(missing)} not "
            f"set): torchrun --nproc-per-node {world_size()} -m longrm ..."
        )
    joined = dist.is_initialized()
    rank, count = int(os.environ["RANK"]), world_size()
    if joined:
        store = _get_default_store()
    else:
        # The store of a launcher that starts processes anew holds what those before them have left.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        with _unreachable_explained(count):
            meeting = next(rendezvous("env://", timeout=_RENDEZVOUS_TIMEOUT))[0]
        store = PrefixStore(f"attempt {attempt}", meeting)
    own = PrefixStore("longrm", store)
    with report_first_failure(own):
        claim_gpu()
        if not joined:
            choose_interface()
            with _unreachable_explained(count):
                dist.init_process_group(
                    backend, store=store, rank=rank, world_size=count, timeout=_RENDEZVOUS_TIMEOUT
                )
            # NCCL connects when the first gradients are exchanged, for which the slowest process is waited for here.
            store.set_timeout(_TIMEOUT)
        extend_timeouts()
        yield LaunchedProcesses(own, rank, count)
    # A process that fails does not come here. It reports why before its connections close: once they do, the others
    # break off, and the launcher ends all.
    if not joined:
        dist.destroy_process_group()


def extend_timeouts() -> None:
    """Gives every group that this process is in the same timeout; those of libraries would wait half an hour."""
    for group in _world.pg_map:
        _set_pg_timeout(_TIMEOUT, group)


def choose_interface() -> None:
    """Makes gloo use the network interface that leads to the first machine, where there are several machines.

    By itself gloo takes the address of this machine's name, which on many machines is one that only they reach.

    Raises:
        ConfigError: Only the user knows which interface that is.
    """
    count = os.environ["WORLD_SIZE"]
    if os.environ.get("LOCAL_WORLD_SIZE", count) == count or os.environ.get(_INTERFACE):
        return
    host = os.environ["MASTER_ADDR"]
    try:
        interface = interface_to(host)
    except OSError as error:
        raise ConfigError(
            f"MASTER_ADDR = {host}, where the processes meet, is not known here: {error}"
        ) from None
    if interface is None:
        names = ", ".join(name for name in psutil.net_if_addrs() if name != "lo")
        raise ConfigError(
            f"{host}, where processes of several machines meet, leads this one to itself: start torchrun on the first "
            f"machine with --local-addr and an address that the others reach, or set {_INTERFACE} here (one of {names})"
        )
    _log.info("processes of several machines talk over %s (%s is not set)", interface, _INTERFACE)
    os.environ[_INTERFACE] = interface


def interface_to(host: str) -> str | None:
    """The network interface that leads to a host, which must be known; None where other machines are not behind it."""
    family, _, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect(address)  # sends nothing
        own = way.getsockname()[0]
    addresses = [(one.address, name) for name, held in psutil.net_if_addrs().items() for one in held]
    found = next((name for address, name in addresses if address.split("%")[0] == own), "lo")
    return None if found == "lo" else found


@contextmanager
def _unreachable_explained(count: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ConfigError(
            f"the {count} processes, which meet at {where}, do not reach each other ({first_line(error)}): set "
            f"{_INTERFACE} and NCCL_SOCKET_IFNAME on every machine to the network interface that leads to the others"
        ) from None


@contextmanager
def report_first_failure(store: Any) -> Iterator[None]:
    """Lets only the first process that fails report why; the others end in silence with exit status 1.

    A signal counts as a failure: it comes to all at once, or by the launcher, to those that are left. The processes
    count their failures in the store. Where another one is gone, the first that finds out raises `RunError`.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt):  # a launcher sends again what a terminal has sent to all
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with suppress(RuntimeError):  # the store ends with the launcher, or rank 0
            if store.add("failures", 1) > 1:
                raise SystemExit(1) from None
        lost = None
        if is_lost_process(error):
            lost = RunError(
                "another process of this run has ended; if it did not say why, it was killed, and the same command "
                "continues"
            )
        if not is_main_process():  # the command line lets it speak for that
            (lost or error).add_note(f"(process {os.environ['RANK']})")
        if lost:
            raise lost from None
        raise


def is_lost_process(error: BaseException) -> bool:
    """Whether an exchange broke because a process is gone."""
    of_gloo = isinstance(error, RuntimeError) and "gloo/transport" in str(error)
    return of_gloo or isinstance(error, dist.DistError)


def claim_gpu() -> None:
    """Gives this process a GPU of its own, where there are any; `ConfigError` where they are fewer than processes."""
    if not torch.cuda.is_available():
        return
    place, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if place >= devices:
        raise ConfigError(
            f"process {place} of this machine has no GPU of its own: there are {devices}; start as many processes"
        )
    torch.cuda.set_device(place)
