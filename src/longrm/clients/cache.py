"""Completions kept by the content of their requests."""

import dataclasses
import json
import sqlite3
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from longrm.clients.completions import Completion
from longrm.errors import RunError
from longrm.types import Outcome

_PATIENCE = 60.0  # seconds to wait while another process writes
_PAUSE = 0.05  # seconds between two tries
_SETUP = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "CREATE TABLE IF NOT EXISTS completions (key TEXT PRIMARY KEY, completion TEXT NOT NULL)",
)


class Cache:
    """One SQLite file, which several processes may use at once. Use it as a context manager.

    Attributes:
        path: Where the file lies; it is made on entering.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
            self._set_up(self._database)
        except (OSError, sqlite3.Error) as error:
            self._close()
            raise self._unusable(error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def get(self, key: str) -> Completion | None:
        """The completion kept under a key, if there is one.

        Raises:
            RunError: The file cannot be read.
        """
        rows = self._run("SELECT completion FROM completions WHERE key = ?", key)
        if not rows:
            return None
        fields = json.loads(rows[0][0])
        return Completion(**fields | {"outcome": Outcome(fields["outcome"])})

    def put(self, key: str, completion: Completion) -> None:
        """Keeps a completion; of two under one key the first stays.

        Raises:
            RunError: The file cannot be written.
        """
        text = json.dumps(dataclasses.asdict(completion))
        self._run("INSERT OR IGNORE INTO completions VALUES (?, ?)", key, text)

    def _set_up(self, database: sqlite3.Connection) -> None:
        """Makes the file a cache; who finds another process at that waits here, because SQLite itself does not."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                for statement in _SETUP:
                    database.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
            time.sleep(_PAUSE)

    def _run(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        assert self._database is not None, "open the cache before use"
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _unusable(self, error: Exception) -> RunError:
        return RunError(
            f"cannot use {self.path} as a cache of answers: {error}; move it away or name another"
        )
