"""Append-only typed logs: one JSON line a record, flushed; a half-written last line is never read back."""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from longrm import reading
from longrm.errors import RunError
from longrm.jsonl import append_lines, compact_line, cut_unfinished_line, whole_lines, writable
from longrm.runs.records import JudgmentRecord

Record = TypeVar("Record")


class Log(Generic[Record]):
    """A JSON-lines file of records of one dataclass.

    Opening a log for writing cuts a line that a killed process left without its end, so that what is read
    is exactly what was completely written.
    """

    def __init__(self, path: Path, record_type: type[Record]) -> None:
        self.path = path
        self._adapter: TypeAdapter[Record] = TypeAdapter(record_type)
        self._file: Any = None

    def __iter__(self) -> Iterator[Record]:
        """Reads the complete records.

        Raises:
            RunError: A complete line is not a record of this log's type.
        """
        return (record for _, record in self.placed())

    def placed(self) -> Iterator[tuple[int, Record]]:
        """Reads the complete records, each with the place in the file at which `at` finds it again.

        Raises:
            RunError: As iteration does.
        """
        for number, (place, line) in enumerate(whole_lines(self.path), start=1):
            yield place, self._read(line, number)

    def _read(self, line: bytes, number: int) -> Record:
        try:
            record = self._adapter.validate_json(line, strict=True)
            if isinstance(record, JudgmentRecord):
                record.check()
        except ValueError as error:
            raise RunError(
                f"{self.path}, line {number} is damaged{_fault(error)}; remove that line and the ones below it to redo "
                "them"
            ) from None
        return record

    def at(self, places: Iterable[int]) -> Iterator[Record]:
        """Reads the records at some places."""
        with self.path.open("rb") as file:
            for place in places:
                file.seek(place)
                yield self._adapter.validate_json(file.readline())

    def __enter__(self) -> Self:
        try:
            cut_unfinished_line(self.path)
            self._file = self.path.open("ab")
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        file, self._file = self._file, None
        try:
            file.close()
        except OSError:
            if error is None:
                raise

    def append(self, *records: Record) -> None:
        """Writes records, one line each, and flushes them to the operating system.

        Raises:
            RunError: The file cannot take the lines; what was written before stays readable.
        """
        assert self._file is not None, "open the log before appending"
        lines = [to_line(record) for record in records]
        with writable(self.path):
            append_lines(self._file, lines)


def _fault(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return f", field 'order': {error}"
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f": not valid JSON ({first['msg']})"
    return (
        reading.explained(error)
        if first["loc"]
        else f": not a JSON object, got {reading.short(first['input'])}"
    )


def to_line(record: Any) -> bytes:
    """One record as a JSON line. Numbers keep every digit; fields at their defaults are left out."""
    plain = {
        field.name: _plain(value)
        for field in dataclasses.fields(record)
        if (value := getattr(record, field.name)) != _default(field)
    }
    return compact_line(plain)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
