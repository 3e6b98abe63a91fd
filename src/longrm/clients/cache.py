"""Completions by the content of their requests, in an SQLite file."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from longrm.clients import Completion
from longrm.errors import RunError

_BUSY_TIMEOUT = 60.0  # seconds to wait while another process writes
_SETUP = """
PRAGMA journal_mode=WAL;
PRAGMA synchronous=NORMAL;
CREATE TABLE IF NOT EXISTS completions (key TEXT PRIMARY KEY, completion TEXT NOT NULL);
"""
_COMPLETION = TypeAdapter(Completion)


class Cache:
    """Open it with `open_cache`. Several processes may use one file at a time."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def get(self, key: str) -> Completion | None:
        """The completion under a key, if there is one."""
        row = self._database.execute("SELECT completion FROM completions WHERE key = ?", (key,)).fetchone()
        return None if row is None else _COMPLETION.validate_json(row[0])

    def put(self, key: str, completion: Completion) -> None:
        """Stores a completion. The first under a key stays, so that processes that share a file agree."""
        text = json.dumps(asdict(completion))
        self._database.execute("INSERT OR IGNORE INTO completions VALUES (?, ?)", (key, text))


@contextmanager
def open_cache(path: Path) -> Iterator[Cache]:
    """Opens a cache, creating the file if needed.

    Raises:
        RunError: The file is not a cache, is damaged, or the disk is full; raised within the block, too.
    """
    path = path.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot use {path} as a cache (remote.cache): {error}") from error
    deadline = time.monotonic() + _BUSY_TIMEOUT
    try:
        # The cache is opened here and used in the thread of the event loop, one after the other.
        connection = sqlite3.connect(
            path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
        )
        with closing(connection) as database:
            while True:
                try:
                    database.executescript(_SETUP)
                    break
                except sqlite3.OperationalError as error:
                    # SQLite's own timeout does not apply while another process switches the journal mode.
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                        raise
                time.sleep(0.05)
            yield Cache(database)
    except (sqlite3.Error, ValidationError) as error:
        raise RunError(
            f"cannot use {path} as a cache (remote.cache): {' '.join(str(error).split())}"
        ) from error
