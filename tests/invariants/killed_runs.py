"""A command that is killed at random moments, again and again, and what is looked at each time."""

import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from longrm.cli.runs import listed_runs
from longrm.runs.folder import CACHE, MANIFEST, SUMMARY
from longrm.runs.logs import JUDGMENTS
from tests.clients.faults import FaultyServer

CONCURRENCY = 16
"""The most requests under way at once, which a kill may have asked twice."""

ENDINGS = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
WAYS = [(signal.SIGKILL,)] * 4 + [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGTERM, signal.SIGINT)]
EARLY = "before the claim"
WRITTEN = (MANIFEST, JUDGMENTS, "items.parquet", "items.csv", "results.csv", SUMMARY, ".part")


def contents(folder: Path) -> dict[str, object]:
    """All that a run folder holds, leftovers too.

    Two things are not bytes of their own right: when a run was started, and in which order answers came to the cache.
    """
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    if MANIFEST in found:
        found[MANIFEST] = {k: v for k, v in json.loads(found[MANIFEST]).items() if k != "started"}
    if CACHE in found:
        found[CACHE] = kept(folder)
    return found


def kept(folder: Path) -> dict[str, str]:
    """The answers in a run's cache by their keys, of a copy: reading would tidy up what a killed process left."""
    copy = folder.parent / "cache"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for path in folder.glob(f"{CACHE}*"):
        shutil.copy(path, copy)
    with closing(sqlite3.connect(copy / CACHE)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'completions'").fetchall()
        return dict(database.execute("SELECT key, completion FROM completions")) if tables else {}


def started(arguments, out: Path) -> subprocess.Popen:
    environment = {**os.environ, "TMPDIR": str(out.parent / "tmp")}
    return subprocess.Popen(
        [sys.executable, "-m", "longrm", *map(str, arguments), "--out", str(out)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(arguments, out: Path) -> float:
    """Runs a command until it has no errors left; returns how many seconds the last one took."""
    for _ in range(20):
        begun = time.monotonic()
        process = started(arguments, out)
        _, errors = process.communicate(timeout=300)
        if process.returncode == 0:
            return time.monotonic() - begun
        assert "the same command retries them" in errors, errors
    raise AssertionError("errors are left after 20 calls")


@dataclass
class Killer:
    """Kills one command again and again, and looks at what is left.

    Attributes:
        expected: What the run folder holds that nobody killed.
        seconds: How long that took.
        server: What the command asks, if it asks any.
        moments: How many kills came at which stage.
    """

    arguments: list[str]
    out: Path
    expected: dict[str, object]
    seconds: float
    draw: random.Random
    server: FaultyServer | None
    moments: Counter[str] = field(default_factory=Counter)
    asked_again: int = 0

    def kill(self, times: int) -> None:
        """Kills so often; a run that has ended meanwhile is compared, and begun anew."""
        since = 0
        while times:
            if self._killed():
                times, since = times - 1, since + 1
            else:
                self.finish(since)
                shutil.rmtree(self.out)
                if self.server:
                    self.server.forget()
                since = 0
        self.finish(since)

    def finish(self, kills: int) -> None:
        """Runs the command to its end, and compares all that there is."""
        before = self._known()
        finish(self.arguments, self.out)
        self._check_asked(before)
        assert differences(self.out, self.expected) == []
        assert [*(self.out.parent / "tmp").iterdir()] == []
        (run,) = listed_runs(self.out)
        assert run["state"] == "finished"
        if self.server:
            again = sum(self.server.answered.values()) - len(self.server.answered)
            assert again <= CONCURRENCY * kills
            self.asked_again += again

    def _killed(self) -> bool:
        """Starts the command, or two of it, and stops it; False where it ended by itself."""
        ways = self.draw.choice(WAYS)
        came = self._moment()
        before = self._known()
        processes = [started(self.arguments, self.out) for _ in range(1 + (self.draw.random() < 0.1))]
        while not came() and any(process.poll() is None for process in processes):
            time.sleep(0.0005)  # another process is waited for
        alive = [process for process in processes if process.poll() is None]
        for process, way in itertools.product(alive, ways):
            process.send_signal(way)
        stage = self._stage()
        errors = [process.communicate(timeout=60)[1] for process in processes]
        # A negative one where Python itself had not come to our code yet.
        statuses = {ENDINGS[way] for way in ways} | {-way for way in ways}
        killed = any(process.returncode in statuses for process in alive)
        self._check_asked(before)
        if not killed:
            assert any(process.returncode in (0, 1) for process in processes), (ways, processes, errors)
            return False
        ended = [process.returncode for process in processes]
        assert not any("Traceback" in text for text, end in zip(errors, ended, strict=True) if end > 0), (
            errors
        )
        assert not any(text for text, end in zip(errors, ended, strict=True) if end < 0 and end != -9), errors
        self.moments[stage] += 1
        self.moments[" and ".join(way.name for way in ways) + " of two" * (len(alive) > 1)] += 1
        self._check_left()
        return True

    def _moment(self):
        """Draws when to kill: after some time, at some length of the log, or when a file is there or another one."""
        held, begun = self._sizes(), time.monotonic()
        kind = self.draw.random()
        if kind < 0.4:
            until = begun + self.draw.random() * self.seconds
            return lambda: time.monotonic() >= until
        if kind < 0.7:
            whole = len(self.expected[JUDGMENTS])
            wanted = self.draw.uniform(held.get(JUDGMENTS, (0, 0, 0))[2], whole)
            return lambda: self._sizes().get(JUDGMENTS, (0, 0, 0))[2] > wanted
        name = self.draw.choice(WRITTEN)
        return lambda: any(
            held.get(found) != state for found, state in self._sizes().items() if found.endswith(name)
        )

    def _sizes(self) -> dict[str, tuple[int, int, int]]:
        found = {}
        for path in self.out.glob("*") if self.out.exists() else ():
            try:
                state = path.lstat()
            except FileNotFoundError:  # it has just replaced another
                continue
            found[path.name] = (state.st_ino, state.st_mtime_ns, state.st_size)
        return found

    def _stage(self) -> str:
        held = self._sizes()
        logged = held.get(JUDGMENTS, (0, 0, 0))[2]
        if MANIFEST not in held:
            return EARLY
        if not logged:
            return "before the first judgment"
        if SUMMARY in held:
            return "with a summary"
        return "among the judgments" if logged < len(self.expected[JUDGMENTS]) else "while it is summed up"

    def _check_left(self) -> None:
        """A run that looks finished is finished; none looks damaged."""
        if not self.out.exists():
            return
        for run in listed_runs(self.out):
            assert run["state"] in ("stopped", "finished", "incomplete"), run["fault"]
            if run["state"] == "finished":
                assert differences(self.out, self.expected, ignore=(".part", "-wal", "-shm")) == []

    def _known(self) -> tuple[set[str], Counter[bytes]]:
        """The keys of the answers that are in the cache, and what was asked so far."""
        if self.server is None or not self.out.exists():
            return set(), Counter()
        return set(kept(self.out)), Counter(self.server.asked)

    def _check_asked(self, before) -> None:
        if self.server is not None:
            keys, asked = before
            again = {body for body in asked if self.server.asked[body] > asked[body]}
            assert not keys & {key(self.server, body) for body in again}


def differences(folder: Path, expected: dict[str, object], ignore: tuple[str, ...] = ()) -> list[str]:
    found = {name: held for name, held in contents(folder).items() if not name.endswith(ignore)}
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def key(server: FaultyServer, body: bytes) -> str:
    """Under which the client keeps the answer to a request."""
    return hashlib.sha256(f"{server.url}/v1/chat/completions\0".encode() + body).hexdigest()
