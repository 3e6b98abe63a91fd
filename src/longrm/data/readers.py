"""Reading preference data: the format is recognized, and every fault names file, row and field."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from longrm.column_names import check_columns
from longrm.data.files import RUN_ROWS, RawRow, find_files, raw_rows
from longrm.data.formats import FORMATS, demonstration_from, describe_formats, recognize
from longrm.errors import DataError, RunError
from longrm.reading import FieldError, cut, located, short
from longrm.runs.folder import MANIFEST, read_manifest
from longrm.types import Comparison, Demonstration

_MESSAGES_KEPT = 5
_logger = logging.getLogger(__name__)

OnBadRow = Literal["stop", "skip"]


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One comparison of a file: what the row at a place, the file and the row, means."""

    number: int  # counts from 1 over all files: the line in JSONL, else the row, a header not counted
    place: str
    source: dict[str, Any]  # the row as the file holds it, its columns renamed where that was asked for
    comparison: Comparison

    @property
    def id(self) -> str:
        """The comparison's id."""
        return self.comparison.id


@dataclass(frozen=True, slots=True)
class DemonstrationRow:
    """One demonstration of a file, and its place (file and row) for messages."""

    place: str
    demonstration: Demonstration

    @property
    def id(self) -> str:
        """The demonstration's id."""
        return self.demonstration.id


_AnyRow = TypeVar("_AnyRow", bound=ComparisonRow | DemonstrationRow | Comparison)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that could not be read: how many, and the messages of the first of them."""

    count: int = 0
    messages: tuple[str, ...] = ()

    def with_one_more(self, message: str) -> "Skipped":
        """Counts one more row; its message is kept while they are few."""
        return self.joined(Skipped(1, (message,)))

    def joined(self, other: "Skipped") -> "Skipped":
        """Counts the others too."""
        return Skipped(self.count + other.count, (*self.messages, *other.messages)[:_MESSAGES_KEPT])

    def log(self) -> None:
        """Logs which rows were left out, and why."""
        for message in self.messages:
            _logger.info("skipped %s", message)
        if self.count > len(self.messages):
            _logger.info("skipped %d rows in all", self.count)


class RowError(DataError):
    """A row that may be skipped; the message names its place."""


def convert_row(
    raw: RawRow, convert: Callable[[RawRow, dict[str, Any]], _AnyRow], seen: dict[str, str]
) -> _AnyRow:
    """Converts a row; `RowError` where it cannot be read, or its id has been `seen`, at the place noted there."""
    if raw.value is None:
        raise RowError(raw.message)
    try:
        row = convert(raw, raw.value)
    except FieldError as fault:
        raise RowError(located(raw.place, fault)) from fault
    if row.id in seen:
        raise RowError(f"{raw.place}, field 'id': {short(row.id)} is also at {seen[row.id]}; make ids unique")
    seen[row.id] = raw.place
    return row


@dataclass(slots=True, eq=False)
class RowReader(Generic[_AnyRow]):
    """The rows of a file or folder, read anew at every iteration and never held together.

    Attributes:
        format: A key of `FORMATS`, or "demonstrations".
        columns: Names of longrm, each with that of the column in the files; empty where none is renamed.
        skipped: What the latest iteration has left out so far.
    """

    path: Path
    files: list[Path]
    format: str
    on_bad_row: OnBadRow
    columns: Mapping[str, str]
    convert: Callable[[RawRow, dict[str, Any]], _AnyRow]
    skipped: Skipped = field(default_factory=Skipped, init=False)

    def log_skipped(self) -> None:
        """Logs which rows the latest iteration has left out, and why."""
        self.skipped.log()

    def __iter__(self) -> Iterator[_AnyRow]:
        self.skipped = Skipped()
        seen: dict[str, str] = {}
        for raw in raw_rows(self.files, columns=self.columns):
            try:
                row = convert_row(raw, self.convert, seen)
            except DataError as error:
                if self.on_bad_row == "stop":
                    raise
                self.skipped = self.skipped.with_one_more(str(error))
                continue
            yield row


ComparisonReader = RowReader[ComparisonRow]
DemonstrationReader = RowReader[DemonstrationRow]


def read(
    path: str | Path,
    *,
    format: str | None = None,
    on_bad_row: OnBadRow = "stop",
    columns: Mapping[str, str] | None = None,
) -> ComparisonReader:
    """Opens preference data in any format that users have.

    Args:
        path: A `.jsonl`, `.jsonl.gz`, `.json`, `.csv`, `.csv.gz`, `.parquet` or `.arrow` file, a folder that `datasets`
            saved to disk, or a folder of shards.
        format: A key of `FORMATS`; recognized from the columns of the first row when not given.
        on_bad_row: "stop" raises at a row that cannot be read; "skip" counts it in `skipped`.
        columns: Names of longrm, each with the name that the column has in the file, such as
            `{"prompt": "question", "chosen": "good"}`; renamed before anything else is looked at.

    Raises:
        ConfigError: A name in `columns` that longrm does not read, or two for one column.
        DataError: Nothing to read, an unknown format, no such column to be renamed, or (while iterating, and for the
            first row at once) a row that cannot be read.
    """
    path, columns = Path(path), check_columns(columns or {})
    files = find_files(path)
    if format is not None and format not in FORMATS:
        raise DataError(f"there is no format '{format}'; known: {describe_formats()}")
    known = format or _recognize(path, files, on_bad_row, columns)
    _tell_unfinished(path)

    def convert(raw: RawRow, value: dict[str, Any]) -> ComparisonRow:
        return ComparisonRow(raw.number, raw.place, value, FORMATS[known].convert(value, raw.number))

    reading = ComparisonReader(path, files, known, on_bad_row, columns, convert)
    how = "as given" if format else "recognized from its columns"
    _logger.info("reading %s in the format '%s', %s", path, reading.format, how)
    if next(iter(reading), None) is None:
        first = f"; the first: {reading.skipped.messages[0]}" if reading.skipped.count else ""
        raise DataError(located(path, f"no row that can be read{first}"))
    return reading


def read_demonstrations(
    path: str | Path,
    *,
    on_bad_row: OnBadRow = "stop",
    columns: Mapping[str, str] | None = None,
) -> DemonstrationReader:
    """Opens stage-1 rows: a prompt (`chat_template` or `prompt`) and its `golden` or `completion`.

    The arguments are those of `read`.

    Raises:
        ConfigError: As `read`.
        DataError: Nothing to read, or (while iterating) a row that cannot be read.
    """
    path = Path(path)

    def convert(raw: RawRow, value: dict[str, Any]) -> DemonstrationRow:
        return DemonstrationRow(raw.place, demonstration_from(value, raw.number))

    columns = check_columns(columns or {})
    _tell_unfinished(path)
    return DemonstrationReader(path, find_files(path), "demonstrations", on_bad_row, columns, convert)


def _tell_unfinished(path: Path) -> None:
    """Warns where rows are of a run of `longrm synthesize` that was stopped: so far these are some of them."""
    run = path.parent if path.name == RUN_ROWS else path
    if not (run / RUN_ROWS).is_dir() or not (run / MANIFEST).is_file():
        return
    try:
        finished = bool(read_manifest(run).get("counts"))
    except RunError:  # somebody else's
        return
    if not finished:
        _logger.warning(
            "%s: the run that writes these rows is not finished, so that some are missing; its command continues it",
            run,
        )


def _recognize(path: Path, files: list[Path], on_bad_row: str, columns: Mapping[str, str]) -> str:
    problem = located(path, "no row in it")
    for raw in raw_rows(files, columns=columns):
        if raw.value is not None:
            name = recognize(raw.value.keys())
            if name is not None:
                return name
        names = cut(", ".join(raw.value or ()))
        reason = raw.fault or (
            f"the columns ({names}) are of no known format; known: {describe_formats()}; say what yours are called, "
            "as --columns prompt=QUESTION,chosen=GOOD,rejected=BAD does"
        )
        if raw.value is not None and {"prompt", "completion"} <= raw.value.keys():
            reason = f"the columns ({names}) are of a demonstration to imitate, which longrm train sft reads"
        problem = located(raw.place, reason)
        if on_bad_row == "stop":
            break
    raise DataError(problem)
