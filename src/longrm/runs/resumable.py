"""Work on inputs in order, in batches, that continues after a kill and that several processes may share."""

import hashlib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Self, TypeVar

from longrm.errors import ConfigError, DataError
from longrm.jsonl import writable
from longrm.runs.logs import PART, Log, parts_of
from longrm.runs.scratch import replacing
from longrm.runs.workers import WorkerGroup, check_seen

Item = TypeVar("Item")
Written = Mapping[str, Sequence[Any]]
"""What the work on a batch writes: the records for each log, by the log's name."""


class ResumableRun:
    """Applies a function to batches of inputs and logs its records; killed at any moment, the same call continues.

    After any kills, by any number of processes, the logs have the records of an uninterrupted run, and `arrange` puts
    them in its order. That takes four rules:

    - Batches are cut the same way whatever the logs contain. A batch with an unfinished input is worked on as a whole,
      since rounding and shared prefixes depend on the batch; records that are in their log already are dropped.
    - A batch is one write to each log, flushed to the operating system. A kill loses the batches in progress, and a
      line without its end is cut off by the next start.
    - The last log decides which inputs are done, and is written last. Anything else that a batch writes, in the other
      logs or in its own files, may therefore be there without it, and is skipped or overwritten by the next start.
    - Every process writes parts of the logs. The main process appends them to the logs at the end, or at the next start
      after a kill.

    Ctrl-C is an exception in the work: the batch in progress writes nothing, and `RunFolder` adds what the same command
    does next.
    """

    def __init__(
        self,
        folder: Path,
        logs: Mapping[str, type[Any]],
        workers: WorkerGroup | None = None,
        *,
        key: str = "id",
    ) -> None:
        """Appends the parts that killed processes left; all processes call it, once the folder is claimed.

        Args:
            folder: The run folder.
            logs: The type of the records of every log by its file name, in the order in which they are written.
            workers: This process among those that share the work; alone by default.
            key: The attribute that identifies inputs and their records.
        """
        self._folder, self._logs = folder, logs
        self._workers = workers or WorkerGroup()
        self._key = attrgetter(key)
        self._finished = self._pending = 0
        self._progress: Callable[[int], None] = lambda done: None
        if self._workers.is_main_process:
            self._join()
        self._workers.wait()
        check_seen(folder)

    def read(self, name: str) -> Log[Any]:
        """A log, to read what earlier processes did."""
        return Log(self._folder / name, self._logs[name])

    def run(
        self,
        batches: Iterable[Sequence[Any]],
        work: Callable[[Sequence[Any]], Written],
        done: Mapping[str, Container[Any]],
        *,
        skip: Callable[[Sequence[Any]], Written] = lambda batch: {},
        progress: Callable[[int], None] = lambda done: None,
    ) -> int:
        """Works on the batches with an input that is not done; returns the number of inputs that were.

        Args:
            batches: Every process gets all of them, in the same order.
            work: Makes the records of a batch. What it writes itself is on disk before these are.
            done: For each log the keys whose records are not written again. An input that is in the last one is done;
                one whose work failed is left out, and is tried again.
            skip: Is called in place of `work` for batches that are done, or that another process works on.
            progress: Called with the number of inputs that all processes have worked on.
        """
        *_, last = self._logs
        self._progress = progress
        self.report()
        with ExitStack() as stack:
            logs = {
                name: stack.enter_context(Log(_part_of(self._folder / name, self._workers.rank), kind))
                for name, kind in self._logs.items()
            }
            for number, batch in enumerate(batches):
                mine = self._workers.takes(number)
                self._pending = sum(self._key(one) not in done[last] for one in batch) if mine else 0
                written = (work if self._pending else skip)(batch)
                for name, log in logs.items():
                    known = done.get(name, ())
                    log.append(*(one for one in written.get(name, ()) if self._key(one) not in known))
                self._finished = self._workers.add_done(self._pending)
                self._pending = 0
                self.report()
        self._workers.wait()
        if self._workers.is_main_process:
            self._join()
        return self._workers.add_done(0)

    def report(self, share: float = 0.0) -> None:
        """Reports progress; `share` of the batch in progress is done."""
        self._progress(self._finished + int(share * self._pending))

    def arrange(self, name: str, keys: Iterable[Any] | None = None) -> None:
        """Rewrites a log in one step: the last record of every key, in this order; keys without one are skipped.

        Without `keys` all are sorted.
        """
        logged = [(self._key(record), offset) for offset, record in self.read(name).with_offsets()]
        last = dict(logged)
        ordered = [(key, last[key]) for key in (sorted(last) if keys is None else keys) if key in last]
        if ordered == logged:
            return
        path = self._folder / name
        with writable(path), replacing(path) as new, path.open("rb") as old:
            for _, offset in ordered:
                old.seek(offset)
                new.write(old.readline())

    def _join(self) -> None:
        """Appends the parts of all logs, and deletes them.

        After a kill in between, a part is appended again. A log may have records twice, and the last one counts.
        """
        for name, kind in self._logs.items():
            for part in parts_of(self._folder / name):
                with self.read(name) as log:
                    log.append(*Log(part, kind))
                part.unlink()


def _part_of(path: Path, rank: int) -> Path:
    """The file that a process writes: the main process the log itself, the others parts next to it."""
    return path if rank == 0 else path.with_name(f"{path.stem}{PART}{rank}{path.suffix}")


def unique(inputs: Iterable[Item]) -> Iterator[Item]:
    """Passes inputs on; `DataError` for an id that was there before."""
    seen: set[bytes] = set()  # of each id, 8 bytes of a hash: enough for millions
    for one in inputs:
        name: str = one.id  # type: ignore[attr-defined]
        digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
        if digest in seen:
            raise DataError(f"two inputs have the id '{name}'; make ids unique")
        seen.add(digest)
        yield one


@dataclass(frozen=True, order=True, slots=True)
class Shard:
    """Shard `number` of `count`, from 1: every `count`-th batch. Its run is independent, on any machine."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads I/N, such as 2/4; `ConfigError` if it is something else."""
        found = re.fullmatch(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})", text)
        if found is None or int(found[1]) > int(found[2]):
            raise ConfigError(f"a shard is I/N with I from 1 to N, such as 2/4; got '{text[:40]}'")
        return cls(int(found[1]), int(found[2]))

    def __contains__(self, batch: int) -> bool:
        return batch % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def merged(shards: Sequence[Iterable[Item]], sizes: Iterable[int]) -> Iterator[Item]:
    """The records of all shards in the order of the whole run, by the sizes of its batches; a surplus at the end."""
    sources = [iter(shard) for shard in shards]
    for number, size in enumerate(sizes):
        yield from islice(sources[number % len(sources)], size)
    for source in sources:
        yield from source
