"""Append-only typed logs: one JSON line a record, flushed; a half-written last line is never read back.

Where several processes write a log at once, each writes into a part of its own beside it, until the parts are joined.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from longrm import reading
from longrm.errors import RunError
from longrm.jsonl import append_lines, compact_line, cut_unfinished_line, whole_lines, writable
from longrm.runs.records import JUDGMENT_FIELDS, TRIAL_FIELDS, JudgmentRecord
from longrm.runs.scratch import replacing
from longrm.types import Trial

LoggedRecord = TypeVar("LoggedRecord")
PART = ".part-"


class Log(Generic[LoggedRecord]):
    """A JSON-lines file of records of one dataclass.

    Opening a log for writing cuts a line that a killed process left without its end, so that what is read
    is exactly what was completely written.
    """

    def __init__(self, path: Path, record_type: type[LoggedRecord]) -> None:
        self.path = path
        self._adapter: TypeAdapter[LoggedRecord] = TypeAdapter(record_type)
        self._file: Any = None

    def __iter__(self) -> Iterator[LoggedRecord]:
        """Reads the complete records.

        Raises:
            RunError: A complete line is not a record of this log's type.
        """
        return (record for _, record in self.with_offsets())

    def with_offsets(self) -> Iterator[tuple[int, LoggedRecord]]:
        """Reads the complete records, each with the byte of the file at which `at` finds it again.

        Raises:
            RunError: As iteration does.
        """
        for number, (offset, line) in enumerate(whole_lines(self.path), start=1):
            yield offset, self._read(line, number)

    def _read(self, line: bytes, number: int) -> LoggedRecord:
        try:
            return self._adapter.validate_json(line, strict=True)
        except ValidationError as error:
            raise RunError(
                f"{self.path}, line {number} is damaged{_fault(error)}; remove that line and the ones below it to redo "
                "them"
            ) from None

    def at(self, offsets: Iterable[int]) -> Iterator[LoggedRecord]:
        """Reads the records at some offsets."""
        with self.path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
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

    def append(self, *records: LoggedRecord) -> None:
        """Writes records, one line each, and flushes them to the operating system.

        Raises:
            RunError: The file cannot take the lines; what was written before stays readable.
        """
        assert self._file is not None, "open the log before appending"
        lines = [to_line(record) for record in records]
        with writable(self.path):
            append_lines(self._file, lines)


def part_of(path: Path, rank: int) -> Path:
    """Where a process writes: the first into the log itself, the others into a part beside it."""
    return path if rank == 0 else path.with_name(f"{path.stem}{PART}{rank}{path.suffix}")


def parts_of(path: Path) -> list[Path]:
    """The parts of a log, written by processes that were killed or are still at work."""
    return sorted(path.parent.glob(f"{path.stem}{PART}*{path.suffix}"))


def join_parts(path: Path, record_type: type[LoggedRecord]) -> None:
    """Appends the parts of a log to it, and removes them.

    Whoever is killed meanwhile leaves a part that is joined again: records may then stand in the log twice.

    Raises:
        RunError: A line of a part is damaged.
    """
    for part in parts_of(path):
        with Log(path, record_type) as log:
            for record in Log(part, record_type):
                log.append(record)
        part.unlink()


def rearrange(path: Path, record_type: type[Any], wanted: Iterable[str]) -> None:
    """Leaves in a log, of every record whose id is wanted, the line that was written last, in this order.

    Ids that the log does not hold are passed over.

    Raises:
        RunError: A line is damaged, or the log cannot be written.
    """
    logged = [(record.id, offset) for offset, record in Log(path, record_type).with_offsets()]
    last = dict(logged)
    ordered = [(name, last[name]) for name in wanted if name in last]
    if ordered == logged:
        return
    with writable(path), replacing(path) as new, path.open("rb") as old:
        for _, offset in ordered:
            old.seek(offset)
            new.write(old.readline())


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f": not valid JSON ({first['msg']})"
    return (
        reading.validation_problem(error)
        if first["loc"]
        else f": not a JSON object, got {reading.short(first['input'])}"
    )


def to_line(record: Any) -> bytes:
    """One record as a JSON line. Numbers keep every digit; fields at their defaults are left out."""
    names = {field.name: field.name for field in dataclasses.fields(record)}
    if isinstance(record, JudgmentRecord):
        names = JUDGMENT_FIELDS
    plain = {}
    for field in dataclasses.fields(record):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        plain[field.name] = (getattr(record, field.name), default)
    if isinstance(record, JudgmentRecord) and len(record.trials) < 2:
        plain["trials"] = ((), ())  # the only trial is the record itself
    values = {key: plain[name] for key, name in names.items()}
    return compact_line({key: _plain(value) for key, (value, default) in values.items() if value != default})


def _plain(value: Any) -> Any:
    if isinstance(value, Trial):
        return {name: getattr(value, name) for name in TRIAL_FIELDS}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
