"""Reading preference data: the format is recognized, and every fault names file, row and field."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from longrm.data.fields import FieldError
from longrm.data.files import RawRow, find_files, raw_rows
from longrm.data.formats import FORMATS, demonstration_from, describe_formats, recognize
from longrm.errors import DataError
from longrm.reading import cut, located, short
from longrm.types import Comparison, Demonstration

_MESSAGES_KEPT = 5
_logger = logging.getLogger(__name__)

OnBadRow = Literal["stop", "skip"]
AnyRow = TypeVar("AnyRow")


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One row.

    Attributes:
        number: Counts from 1 over all files: the line in JSONL, else the row.
        place: File and row, for messages.
        source: The row as the file holds it.
        comparison: What it means.
    """

    number: int
    place: str
    source: dict[str, Any]
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class DemonstrationRow:
    """One row of stage-1 data: its place (file and row, for messages), and what it means."""

    place: str
    demonstration: Demonstration


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that could not be read: how many, and the messages of the first of them."""

    count: int = 0
    messages: tuple[str, ...] = ()

    def with_one_more(self, message: str) -> "Skipped":
        """Counts one more row; its message is kept while they are few."""
        return Skipped(self.count + 1, (*self.messages, message)[:_MESSAGES_KEPT])

    def joined(self, other: "Skipped") -> "Skipped":
        """Counts the others too."""
        return Skipped(self.count + other.count, (*self.messages, *other.messages)[:_MESSAGES_KEPT])

    def tell(self) -> None:
        """Says which rows were left out, and why."""
        for message in self.messages:
            _logger.info("skipped %s", message)
        if self.count > len(self.messages):
            _logger.info("skipped %d rows in all", self.count)


class _Rows(Generic[AnyRow]):
    """The rows of a file or folder, read anew at every iteration and never held together.

    Attributes:
        path: What is read.
        format: The name of the rows' format.
        on_bad_row: What a row that cannot be read does.
        skipped: What the latest iteration has left out so far.
    """

    __slots__ = ("_files", "_repair", "format", "on_bad_row", "path", "skipped")

    def __init__(
        self, path: Path, files: list[Path], format: str, on_bad_row: OnBadRow, repair: bool
    ) -> None:
        self.path = path
        self.format = format
        self.on_bad_row = on_bad_row
        self.skipped = Skipped()
        self._files = files
        self._repair = repair

    def tell_skipped(self) -> None:
        """Says which rows the latest iteration has left out, and why."""
        self.skipped.tell()

    def _row(self, raw: RawRow, value: dict[str, Any]) -> tuple[str, AnyRow]:
        """The id of a row, and the row; raises `FieldError`."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[AnyRow]:
        self.skipped = Skipped()
        seen: dict[str, str] = {}
        for raw in raw_rows(self._files, repair=self._repair):
            try:
                row = self._checked(raw, seen)
            except DataError as error:
                if self.on_bad_row == "stop":
                    raise
                self.skipped = self.skipped.with_one_more(str(error))
                continue
            yield row

    def _checked(self, raw: RawRow, seen: dict[str, str]) -> AnyRow:
        value = raw.checked()
        try:
            identity, row = self._row(raw, value)
        except FieldError as fault:
            raise DataError(located(raw.place, fault)) from fault
        if identity in seen:
            raise DataError(
                f"{raw.place}, field 'id': {short(identity)} is also at {seen[identity]}; make ids unique"
            )
        seen[identity] = raw.place
        return row


class ComparisonReader(_Rows[ComparisonRow]):
    """The comparisons of a file or folder; `format` is a key of `FORMATS`."""

    __slots__ = ()

    def _row(self, raw: RawRow, value: dict[str, Any]) -> tuple[str, ComparisonRow]:
        comparison = FORMATS[self.format].convert(value, raw.number)
        return comparison.id, ComparisonRow(raw.number, raw.place, value, comparison)


class DemonstrationReader(_Rows[DemonstrationRow]):
    """The demonstrations of a file or folder; `format` is "demonstrations"."""

    __slots__ = ()

    def _row(self, raw: RawRow, value: dict[str, Any]) -> tuple[str, DemonstrationRow]:
        demonstration = demonstration_from(value, raw.number)
        return demonstration.id, DemonstrationRow(raw.place, demonstration)


def read(
    path: str | Path, *, format: str | None = None, on_bad_row: OnBadRow = "stop", repair: bool = False
) -> ComparisonReader:
    """Opens preference data in any format that users have.

    Args:
        path: A `.jsonl`, `.jsonl.gz`, `.json`, `.parquet` or `.arrow` file, a folder that `datasets` saved to
            disk, or a folder of shards.
        format: A key of `FORMATS`; recognized from the columns of the first row when not given.
        on_bad_row: "stop" raises at a row that cannot be read; "skip" counts it in `skipped`.
        repair: Make question marks of halves of surrogate pairs; else rows that hold one cannot be read.

    Raises:
        DataError: Nothing to read, an unknown format, or (while iterating, and for the first row at once) a
            row that cannot be read.
    """
    path = Path(path)
    files = find_files(path)
    if format is not None and format not in FORMATS:
        raise DataError(f"there is no format '{format}'; known: {describe_formats()}")
    reading = ComparisonReader(path, files, format or _recognize(path, files, on_bad_row), on_bad_row, repair)
    how = "as told" if format else "recognized from its columns"
    _logger.info("reading %s in the format '%s', %s", path, reading.format, how)
    if next(iter(reading), None) is None:
        first = f"; the first: {reading.skipped.messages[0]}" if reading.skipped.count else ""
        raise DataError(located(path, f"no row that can be read{first}"))
    return reading


def read_demonstrations(
    path: str | Path, *, on_bad_row: OnBadRow = "stop", repair: bool = False
) -> DemonstrationReader:
    """Opens stage-1 rows: a prompt (`chat_template` or `prompt`) and its `golden` or `completion`.

    Args:
        path: As for `read`.
        on_bad_row: "stop" raises at a row that cannot be read; "skip" counts it in `skipped`.
        repair: As for `read`.

    Raises:
        DataError: Nothing to read, or (while iterating) a row that cannot be read.
    """
    path = Path(path)
    return DemonstrationReader(path, find_files(path), "demonstrations", on_bad_row, repair)


def _recognize(path: Path, files: list[Path], on_bad_row: str) -> str:
    problem = located(path, "no row in it")
    for raw in raw_rows(files, repair=True):
        if raw.value is not None:
            name = recognize(raw.value.keys())
            if name is not None:
                return name
        columns = ", ".join(raw.value) if raw.value else ""
        reason = (
            raw.fault or f"the columns ({cut(columns)}) are of no known format; known: {describe_formats()}"
        )
        if raw.value is not None and {"prompt", "completion"} <= raw.value.keys():
            reason = f"the columns ({cut(columns)}) are of a demonstration to imitate, which longrm train sft reads"
        problem = located(raw.place, reason)
        if on_bad_row == "stop":
            break
    raise DataError(problem)
