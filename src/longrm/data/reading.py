"""Reading preference data: the format is recognized, and every fault names file, row and field."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from longrm.data.fields import FieldError
from longrm.data.files import Raw, find_files, raw_rows
from longrm.data.formats import FORMATS, demonstration_from, describe_formats, recognize
from longrm.errors import DataError
from longrm.types import Comparison, Demonstration

_MESSAGES_KEPT = 5
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        number: Counts from 1 over all files: the line in JSONL, else the row.
        source: The row as the file holds it.
        comparison: What it means.
    """

    number: int
    source: dict[str, Any]
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that could not be read: how many, and the messages of the first of them."""

    count: int = 0
    messages: tuple[str, ...] = ()

    def with_one_more(self, message: str) -> "Skipped":
        """Counts one more row; its message is kept while they are few."""
        return Skipped(self.count + 1, (*self.messages, message)[:_MESSAGES_KEPT])


class Reading:
    """The rows of a file or folder, read anew at every iteration and never held together.

    Attributes:
        path: What is read.
        format: The name of the rows' format, a key of `FORMATS`.
        skipped: What the latest iteration has left out so far.
    """

    __slots__ = ("_files", "_on_bad_row", "format", "path", "skipped")

    def __init__(self, path: Path, files: list[Path], name: str, on_bad_row: Literal["stop", "skip"]) -> None:
        self.path = path
        self.format = name
        self.skipped = Skipped()
        self._files = files
        self._on_bad_row = on_bad_row

    def tell_skipped(self) -> None:
        """Says which rows the latest iteration has left out, and why."""
        for message in self.skipped.messages:
            _logger.info("skipped %s", message)
        if self.skipped.count > len(self.skipped.messages):
            _logger.info("skipped %d rows in all", self.skipped.count)

    def __iter__(self) -> Iterator[Row]:
        self.skipped = Skipped()
        seen: dict[str, str] = {}
        for raw in raw_rows(self._files):
            try:
                row = _row(raw, self.format)
                identity = row.comparison.id
                if identity in seen:
                    raise DataError(
                        f"{raw.place}, field 'id': {identity!r} is also at {seen[identity]}; make ids unique"
                    )
            except DataError as error:
                if self._on_bad_row == "stop":
                    raise
                self.skipped = self.skipped.with_one_more(str(error))
                continue
            seen[identity] = raw.place
            yield row


def read(
    path: str | Path, *, format: str | None = None, on_bad_row: Literal["stop", "skip"] = "stop"
) -> Reading:
    """Opens preference data in any format that users have.

    Args:
        path: A `.jsonl`, `.jsonl.gz`, `.json`, `.parquet` or `.arrow` file, a folder that `datasets` saved to
            disk, or a folder of shards.
        format: A key of `FORMATS`; recognized from the columns of the first row when not given.
        on_bad_row: "stop" raises at a row that cannot be read; "skip" counts it in `Reading.skipped`.

    Raises:
        DataError: Nothing to read, an unknown format, or (while iterating, and for the first row at once) a
            row that cannot be read.
    """
    path = Path(path)
    files = find_files(path)
    if format is not None and format not in FORMATS:
        raise DataError(f"there is no format '{format}'; known: {describe_formats()}")
    reading = Reading(path, files, format or _recognize(path, files, on_bad_row), on_bad_row)
    how = "as told" if format else "recognized from its columns"
    _logger.info("reading %s in the format '%s', %s", path, reading.format, how)
    if next(iter(reading), None) is None:
        first = f"; the first: {reading.skipped.messages[0]}" if reading.skipped.count else ""
        raise DataError(f"{path}: no row that can be read{first}")
    return reading


def read_demonstrations(path: str | Path) -> Iterator[Demonstration]:
    """Reads stage-1 rows: a prompt (`chat_template` or `prompt`) and its `golden` or `completion`.

    Raises:
        DataError: Nothing to read, or a row that cannot be read.
    """
    for raw in raw_rows(find_files(Path(path))):
        try:
            yield demonstration_from(_value(raw), raw.number)
        except FieldError as fault:
            raise DataError(f"{raw.place}, {fault}") from fault


def _recognize(path: Path, files: list[Path], on_bad_row: str) -> str:
    problem = f"{path}: no row in it"
    for raw in raw_rows(files):
        if raw.value is not None:
            name = recognize(raw.value.keys())
            if name is not None:
                return name
        columns = ", ".join(raw.value) if raw.value else ""
        reason = raw.fault or f"the columns ({columns}) are of no known format; known: {describe_formats()}"
        problem = f"{raw.place}: {reason}"
        if on_bad_row == "stop":
            break
    raise DataError(problem)


def _row(raw: Raw, format: str) -> Row:
    value = _value(raw)
    try:
        return Row(raw.number, value, FORMATS[format].convert(value, raw.number))
    except FieldError as fault:
        raise DataError(f"{raw.place}, {fault}") from fault


def _value(raw: Raw) -> dict[str, Any]:
    if raw.value is None:
        raise DataError(f"{raw.place}: {raw.fault}")
    return raw.value
