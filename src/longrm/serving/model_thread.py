"""The thread on which everything is computed for a model."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class ModelThread:
    """A thread that does one thing after the other, until it is closed or the process ends.

    Whatever computes for a model should be done on one thread, loading included. Each thread that computes has a team
    of OpenMP threads, and where all of them are more than the processors, a team that waits for its next work sleeps
    at once: short forwards then take half as long again.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="longrm-model", daemon=True).start()

    def submit(self, function: Callable[[], Any]) -> "Future[Any]":
        """What the function returns or raises, once what was submitted before is done."""
        done: Future[Any] = Future()
        self._work.put((done, function))
        return done

    def close(self) -> None:
        """Ends the thread, once what was submitted before is done."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            settle(*work)


def settle(done: "Future[Any]", function: Callable[[], Any]) -> None:
    """Gives a future what a function returns or raises; nothing is called for one that was cancelled."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(function())
    except BaseException as error:  # whoever waits is told
        done.set_exception(error)
