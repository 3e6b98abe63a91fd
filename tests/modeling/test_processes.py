"""Who of several processes says why all of them end."""

import pytest
import torch.distributed as dist

from longrm.errors import ConfigError, DataError, RunError
from longrm.modeling.processes import Launched, join, one_voice


@pytest.fixture
def as_process(monkeypatch):
    """Makes this process one of two."""

    def become(rank):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", str(rank))

    return become


@pytest.mark.parametrize(
    "error", [DataError("line 3"), ModuleNotFoundError("No module named 'peft'", name="peft"), ValueError()]
)
@pytest.mark.parametrize(("first", "notes"), [(0, []), (1, ["(process 1)"])])
def test_the_first_that_fails_speaks_and_says_who_it_is(as_process, error, first, notes):
    store = dist.HashStore()
    error = type(error)(*error.args)
    as_process(first)
    with pytest.raises(type(error)) as said, one_voice(store):
        raise error
    assert getattr(said.value, "__notes__", []) == notes
    as_process(1 - first)
    with pytest.raises(SystemExit) as silent, one_voice(store):
        raise type(error)(*error.args)
    assert silent.value.code == 1


def test_a_process_that_is_gone_is_told_by_one_of_those_that_miss_it(as_process):
    store = dist.HashStore()
    as_process(1)
    with pytest.raises(RunError, match="another process of this run has ended") as said, one_voice(store):
        raise dist.DistNetworkError("connection closed")
    assert said.value.__notes__ == ["(process 1)"]
    as_process(0)
    with pytest.raises(SystemExit), one_voice(store):
        raise RuntimeError(
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"
        )


def test_every_piece_is_taken_by_one_process_and_what_is_done_is_counted_once():
    store = dist.HashStore()
    hands = [Launched(store, rank, 3) for rank in range(3)]
    taken = [[hand.rank for hand in hands if hand.takes(piece)] for piece in range(30)]
    assert all(len(ranks) == 1 for ranks in taken)
    assert {rank for (rank,) in taken} == {0, 1, 2}
    assert [hand.add_done(5) for hand in hands] == [5, 10, 15]


def test_processes_without_a_launcher_are_refused(as_process, monkeypatch):
    as_process(0)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(ConfigError, match=r"MASTER_PORT not set\): torchrun --nproc-per-node 2"), join():
        pass
