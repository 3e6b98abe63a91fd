"""One thread for all that computes for a model: in order, on that thread, and on after what failed or was cancelled."""

import threading

import pytest

from longrm.serving.model_thread import ModelThread


@pytest.fixture
def started():
    """A thread of ours, and the one that it is."""
    before = {*threading.enumerate()}
    ours = ModelThread()
    (thread,) = {*threading.enumerate()} - before
    yield ours, thread
    ours.close()
    thread.join(30)
    assert not thread.is_alive()


def test_what_was_cancelled_while_it_waited_is_not_done_and_the_next_is(started):
    ours, thread = started
    begun, may, done = threading.Event(), threading.Event(), []

    def first():
        begun.set()
        assert may.wait(30)
        return "first"

    working, gone, later = (
        ours.submit(first),
        ours.submit(lambda: done.append("gone")),
        ours.submit(lambda: done.append("later")),
    )
    assert begun.wait(30)
    assert gone.cancel()
    assert not working.cancel(), "the control: what has begun cannot be taken back"
    may.set()
    assert working.result(30) == "first"
    later.result(30)
    assert done == ["later"]
    assert ours.submit(threading.current_thread).result(30) is thread


def test_what_fails_is_told_and_the_next_is_done(started):
    ours, _ = started

    class Panic(BaseException):
        """As programs in Rust raise it."""

    def panics():
        raise Panic

    failed, later = ours.submit(panics), ours.submit(lambda: "later")
    assert isinstance(failed.exception(30), Panic)
    assert later.result(30) == "later"


def test_what_was_submitted_before_it_closed_is_done(started):
    ours, thread = started
    may = threading.Event()
    several = [ours.submit(lambda: may.wait(30)), *(ours.submit(lambda at=at: at) for at in range(3))]
    ours.close()
    may.set()
    assert [one.result(30) for one in several] == [True, 0, 1, 2]
    thread.join(30)
    assert not thread.is_alive()
