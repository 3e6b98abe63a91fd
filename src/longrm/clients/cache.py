"""Completions kept by the content of their requests."""

import dataclasses
import json
import logging
import sqlite3
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from longrm.clients.completions import Completion, valid_token_count
from longrm.errors import RunError
from longrm.types import Outcome

_logger = logging.getLogger(__name__)
_PATIENCE = 60.0  # seconds to wait while another process writes
_PAUSE = 0.05  # seconds between two tries
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_KEPT = TypeAdapter(Completion)
_COLUMNS = "SELECT columns.name FROM sqlite_master LEFT JOIN pragma_table_info('completions') AS columns"
_SETUP = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "CREATE TABLE IF NOT EXISTS completions (key TEXT PRIMARY KEY, completion TEXT NOT NULL)",
)


class Cache:
    """One SQLite file, made on entering the context, which several processes may use at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database: sqlite3.Connection | None = None
        self._unread = 0

    def __enter__(self) -> Self:
        self._unread = 0
        try:
            self.path = self.path.expanduser()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and not self.path.is_file():
                raise OSError("it is no file")
            self._database = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
            self._database.text_factory = bytes  # what is damaged may be no text
            self._set_up(self._database)
        except (OSError, ValueError, RuntimeError, sqlite3.Error) as error:
            self._close()
            raise self._unusable(error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if self._unread:
            _logger.warning(
                "%s: answers that could not be read, and were asked for again: %d", self.path, self._unread
            )

    def get(self, key: str) -> Completion | None:
        """The completion kept under a key, if there is one; what is none is counted, and makes room for another."""
        for (text,) in self._run("SELECT completion FROM completions WHERE key = ?", key):
            kept = _read(text)
            if kept is not None:
                return kept
            self._unread += 1
            self._run("DELETE FROM completions WHERE key = ? AND CAST(completion AS BLOB) = ?", key, text)
        return None

    def put(self, key: str, completion: Completion) -> None:
        """Keeps a completion; of two under one key the first stays."""
        text = json.dumps(dataclasses.asdict(completion))
        self._run("INSERT OR IGNORE INTO completions VALUES (?, ?)", key, text)

    def _set_up(self, database: sqlite3.Connection) -> None:
        """Makes the file a cache; who finds another process at that waits here, because SQLite itself does not."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                columns = {name for (name,) in database.execute(_COLUMNS)}
                if columns and not columns >= {b"key", b"completion"}:
                    raise ValueError("it is a database of something else")
                for statement in _SETUP:
                    database.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
            time.sleep(_PAUSE)

    def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Runs a statement; raises `RunError` where the file cannot be used."""
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
        full = isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _FULL
        other = "move it away or name another (remote.cache)"
        advice = "make room and run the same command again" if full else other
        return RunError(f"cannot use {self.path} as a cache of answers: {error}; {advice}")


def _read(row: bytes) -> Completion | None:
    """The completion that a row holds; None where it holds none that is ever kept."""
    try:
        kept = _KEPT.validate_json(row, strict=True)
    except (ValidationError, TypeError):
        return None
    if kept.outcome is Outcome.ERROR:
        return None
    read, written = valid_token_count(kept.prompt_tokens), valid_token_count(kept.completion_tokens)
    return dataclasses.replace(kept, prompt_tokens=read, completion_tokens=written)
