"""Which of several processes reports why all of them end."""

import signal
import socket
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from longrm.errors import ConfigError, DataError, RunError
from longrm.modeling import process_group
from longrm.modeling.process_group import (
    LaunchedProcesses,
    join,
    report_first_failure,
    set_timeouts,
)


@pytest.fixture
def as_process(monkeypatch):
    """Makes this process one of two."""

    def become(rank):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", str(rank))

    return become


@pytest.fixture
def signals():
    """A process that is stopped ignores signals from then on; the test process must not."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("error", [DataError("line 3"), KeyboardInterrupt()])
@pytest.mark.parametrize(("first", "notes"), [(0, []), (1, ["(process 1)"])])
def test_only_the_first_process_that_fails_reports(as_process, signals, error, first, notes):
    store = dist.HashStore()
    error = type(error)(*error.args)
    as_process(first)
    with pytest.raises(type(error)) as said, report_first_failure(store):
        raise error
    assert getattr(said.value, "__notes__", []) == notes
    as_process(1 - first)
    with pytest.raises(SystemExit) as no_progress, report_first_failure(store):
        raise type(error)(*error.args)
    assert no_progress.value.code == 1
    stopped = isinstance(error, KeyboardInterrupt)
    assert {signal.getsignal(number) for number in signals} == (
        {signal.SIG_IGN} if stopped else {*signals.values()}
    )


def test_one_process_reports_that_another_died(as_process):
    store = dist.HashStore()
    as_process(1)
    with (
        pytest.raises(RunError) as said,
        report_first_failure(store),
    ):
        raise dist.DistNetworkError("connection closed")
    assert said.value.__notes__ == ["(process 1)"]
    as_process(0)
    with pytest.raises(SystemExit), report_first_failure(store):
        raise RuntimeError(
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"
        )


def test_every_piece_is_taken_by_one_process_and_what_is_done_is_counted_once():
    store = dist.HashStore()
    hands = [LaunchedProcesses(store, rank, 3) for rank in range(3)]
    taken = [[hand.rank for hand in hands if hand.takes(piece)] for piece in range(30)]
    assert all(len(ranks) == 1 for ranks in taken)
    assert {rank for (rank,) in taken} == {0, 1, 2}
    assert [hand.add_done(5) for hand in hands] == [5, 10, 15]


@pytest.mark.parametrize(("name", "hours"), [("gloo", 12), ("nccl", 0.5)])
def test_only_gloo_waits_for_hours(monkeypatch, name, hours):
    """A lost worker must not keep GPUs waiting; a GPU's group has both, a CPU's has gloo for both devices."""
    found = {}

    class Backend:
        def __init__(self, name):
            self.name = lambda: name
            self._set_default_timeout = lambda timeout: found.update({name: timeout})

    class Group:
        _device_types = (torch.device("cuda"), torch.device("cpu"))

        def _get_backend(self, device):
            return Backend(name if device.type == "cuda" else "gloo")

    monkeypatch.setattr(process_group, "_world", SimpleNamespace(pg_map={Group(): None}))
    set_timeouts()
    assert found == {"gloo": timedelta(hours=12), name: timedelta(hours=hours)}


def test_processes_that_do_not_meet_fail(as_process, monkeypatch):
    as_process(0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launched = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(process_group, "_RENDEZVOUS_TIMEOUT", timedelta(seconds=1))
    with pytest.raises(ConfigError, match=r"127.0.0.1:\d+"), join():
        pass
    assert not dist.is_initialized()
