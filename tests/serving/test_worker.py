"""What the thread of a model does when nobody waits for a call any more."""

from contextlib import contextmanager

import pytest

from longrm.serving.asked import Asked, Failure
from longrm.serving.worker import Worker

from .test_limits import Slow

ASKED = Asked("Question?", ["w1", "w2"])


@contextmanager
def reading():
    """A worker in the middle of a reading, so that what is asked of it now waits; and the answer to that reading."""
    model = Slow()
    worker = Worker(model, waiting=10)
    worker.start()
    (begun,) = worker.submit([ASKED])
    assert model.begun.wait(30)
    try:
        yield model, worker, begun
    finally:
        model.may.set()
        worker.stop(30)
        assert not worker.alive


def test_a_call_that_is_cancelled_while_it_waits_is_not_made_and_the_next_one_is():
    called = []
    with reading() as (model, worker, begun):
        gone, later = worker.call(called.append), worker.call(called.append)
        assert gone.cancel()
        model.may.set()
        later.result(30)
        assert called == [model], "the later one alone; the control: it would have been made"
        assert begun.result(30).scores == (0.0, 1.0)
        (after,) = worker.submit([ASKED])
        assert after.result(30).scores == (0.0, 1.0)
        assert worker.call(lambda model: model.name).result(30) == "slow"
        assert worker.alive


def test_a_call_that_fails_is_told_to_who_asked():
    with reading() as (model, worker, _):
        failing = worker.call(lambda model: 1 / 0)
        model.may.set()
        assert isinstance(failing.exception(30), ZeroDivisionError)
        assert worker.call(lambda model: model.name).result(30) == "slow"


def test_all_that_wait_are_told_that_the_worker_stops_though_one_was_cancelled():
    with reading() as (model, worker, begun):
        gone, later = (worker.call(lambda model: model.name) for _ in range(2))
        (waiting,) = worker.submit([ASKED])
        assert gone.cancel()
        worker.stop(0)
        model.may.set()
        for one in (later, waiting):
            failure = one.exception(30)
            assert isinstance(failure, Failure)
            assert failure.kind == "stopping"
        assert begun.result(30).scores == (0.0, 1.0), "what was being read is answered"
        with pytest.raises(Failure, match="stopping"):
            worker.call(lambda model: model.name)
