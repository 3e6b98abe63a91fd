"""Threads in the roles of processes that share work."""

import threading
from concurrent.futures import ThreadPoolExecutor

from longrm.runs.workers import WorkerGroup


class Thread(WorkerGroup):
    """A thread in the role of one of several processes; all threads share the dictionary `group`."""

    def __init__(self, rank, group):
        super().__init__(rank, group["barrier"].parties)
        self._group = group
        self._piece = rank  # the first pieces are dealt, so that every thread has one

    def wait(self):
        self._group["barrier"].wait(timeout=60)

    def takes(self, piece):
        with self._group["lock"]:
            while self._piece < piece:
                self._piece = self._group["pieces"]
                self._group["pieces"] += 1
        return self._piece == piece

    def add_done(self, count):
        with self._group["lock"]:
            self._group["done"] += count
            return self._group["done"]


def together(work, count=3):
    """Calls `work` in every thread of a group; returns all results, or raises the first error."""
    group = {"barrier": threading.Barrier(count), "lock": threading.Lock(), "pieces": count, "done": 0}

    def one(rank):
        try:
            return work(Thread(rank, group))
        except BaseException:
            group["barrier"].abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(one, rank) for rank in range(count)]
    errors = [future.exception() for future in futures if future.exception()]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
