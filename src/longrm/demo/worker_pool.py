"""Independent tasks of the demo side by side: one process a processor, one thread each.

Tiny models gain little from several threads, and lose a lot where another program wants the same processors;
with one thread each, what the tasks compute does not depend on how many processors there are.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from longrm.runs.progress import Progress

_SECONDS_BETWEEN_LOOKS = 0.2
_queue: Any = None


@dataclass(frozen=True, slots=True)
class DemoTask:
    """A piece of work.

    Attributes:
        name: Unique.
        function: Called with the arguments and a `progress`; another process must be able to import it.
        arguments: What it is called with.
        after: Names of the tasks that have to be finished before.
        work: How much there is to do, in a unit that all tasks share.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    after: tuple[str, ...] = ()
    work: float = 1.0


class WorkerPool:
    """Worker processes; a context manager.

    Args:
        count: How many.
        label: What all tasks together are called where progress is shown.
        progress: Told, in percent, how much of all the work is done, and what is going on.
    """

    def __init__(self, count: int, label: str, progress: Progress) -> None:
        context = multiprocessing.get_context("spawn")
        self._count = count
        self._messages = context.SimpleQueue()
        self._label, self._progress = label, progress
        self._pool = ProcessPoolExecutor(
            count, mp_context=context, initializer=_start_worker, initargs=(self._messages, os.getpid())
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception):  # a signal, which is not to wait for tasks
            for worker in multiprocessing.active_children():
                worker.terminate()
        self._pool.shutdown(cancel_futures=True)

    def run(
        self, tasks: Sequence[DemoTask], finished: Callable[[str], None] = lambda name: None
    ) -> dict[str, float]:
        """Runs the tasks, says of each by its name that it is finished, and returns the seconds each took.

        A worker that is free takes the first task in the list whose tasks before it are finished.

        Raises:
            Exception: What a task raised; tasks that have not begun are then not begun.
        """
        waiting, running = list(tasks), dict[Future[float], str]()
        seconds: dict[str, float] = {}
        reached: dict[str, tuple[int, int]] = {}
        while waiting or running:
            ready = [task for task in waiting if seconds.keys() >= set(task.after)]
            for task in ready[: self._count - len(running)]:
                waiting.remove(task)
                with _ignoring_ctrl_c():
                    running[self._pool.submit(_work, task)] = task.name
            assert running, f"parts wait for each other: {[task.name for task in waiting]}"
            done, _ = wait(running, timeout=_SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
            while not self._messages.empty():
                name, *reached[name] = self._messages.get()
            for future in done:
                name = running.pop(future)
                seconds[name] = round(future.result(), 3)
                finished(name)
            self._show(tasks, seconds, {name: reached.get(name, (0, 0)) for name in running.values()})
        return seconds

    def _show(
        self, tasks: Sequence[DemoTask], finished: Collection[str], reached: Mapping[str, tuple[int, int]]
    ) -> None:
        shares = {name: done / total for name, (done, total) in reached.items() if total}
        done = sum(task.work * (task.name in finished or shares.get(task.name, 0.0)) for task in tasks)
        running = (f"{name} {done}/{total}" if total else name for name, (done, total) in reached.items())
        percent = int(100 * done / sum(task.work for task in tasks))
        # All is done when all are finished, and not before: the end is told once.
        self._progress(
            self._label, percent if len(finished) == len(tasks) else min(percent, 99), 100, ", ".join(running)
        )


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Processes started meanwhile do not hear Ctrl-C, which a terminal sends to them too: this one ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(messages: Any, parent: int) -> None:
    """Prepares a worker: one thread, a way to report, and an end when the main process ends."""
    import torch

    global _queue
    _queue = messages
    torch.set_num_threads(1)
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _work(task: DemoTask) -> float:
    began = time.perf_counter()
    task.function(*task.arguments, progress=partial(_report, task.name))
    return time.perf_counter() - began


def _report(task: str, label: str, done: int, total: int, note: str = "") -> None:
    del label, note  # the task's name says enough
    _queue.put((task, done, total))
