"""Reads preference data: recognizes the format, and names file, row and field in every error."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from longrm.column_names import Columns, check_columns
from longrm.data.fields import GOLD, FileRow, scores_of
from longrm.data.files import RawRow, find_files, raw_rows
from longrm.data.formats import (
    FORMATS,
    JUDGE_PROMPT,
    demonstration_from,
    describe_formats,
    describe_unknown,
    judge_prompt_from,
    recognize,
)
from longrm.data.memory import Data, MemoryRows, named
from longrm.errors import DataError
from longrm.reading import FieldError, cut, located, reading, short
from longrm.types import Comparison, Demonstration, Outcome, Trajectory

_MESSAGES_KEPT = 5
_GOLD_MEANS = {
    "scores": "higher is better, equal scores tie",
    "winner": "the best response",
    "strength": "negative if the first response is better, 0 is a tie",
}
_logger = logging.getLogger(__name__)

OnBadRow = Literal["stop", "skip"]

SCORES = ("scores", "model_scores")
"""The columns that `longrm score` writes to by default."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One comparison of a file, and the row that it is from."""

    number: int  # counts from 1 over all files: the line in JSONL, otherwise the row without the header
    place: str  # file and row, for messages
    source: dict[str, Any]  # the row of the file, with renamed columns
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


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that could not be read: how many, and the first few messages."""

    count: int = 0
    messages: tuple[str, ...] = ()

    def with_one_more(self, message: str) -> "Skipped":
        """Counts one more row."""
        return Skipped(self.count + 1, (*self.messages, message)[:_MESSAGES_KEPT])

    def first(self) -> str:
        """The end of a message that no row is left."""
        return f"; the first: {self.messages[0]}" if self.messages else ""

    def log(self) -> None:
        """Logs which rows were skipped, and why."""
        for message in self.messages:
            _logger.warning("skipped %s", message)  # seen in Python, too, where no log is set up
        if self.count > len(self.messages):
            _logger.warning("skipped %d rows in total", self.count)


_Item = TypeVar("_Item", bound=Comparison | Demonstration | Trajectory)
_Row = TypeVar("_Row")


def convert_row(raw: RawRow, convert: Callable[[FileRow, int], _Item], places: dict[str, str]) -> _Item:
    """Converts a row, and notes the place of its id, which must be unique; `DataError` if the row cannot be read."""
    try:
        item = convert(raw.checked(), raw.number)
    except FieldError as error:
        raise DataError(located(raw.place, error)) from error
    if item.id in places:
        raise DataError(
            f"{raw.place}, field 'id': {short(item.id)} is also at {places[item.id]}; make ids unique"
        )
    places[item.id] = raw.place
    return item


@dataclass(slots=True, eq=False)
class RowReader(Generic[_Row]):
    """The rows of a file, a folder or an object, read again at every iteration.

    Attributes:
        path: Where they are from; rows in memory are kept by it.
        format: A key of `FORMATS`, "demonstrations", "judge_prompts" or "trajectories".
        columns: longrm's names, each with the name of the column in the files; empty if none is renamed.
        convert: Makes a row, and notes the place of its id.
        skipped: The rows that the latest iteration has skipped so far.
    """

    path: Path | MemoryRows
    files: list[Path]
    format: str
    on_bad_row: OnBadRow
    columns: Columns
    convert: Callable[[RawRow, dict[str, str]], _Row]
    skipped: Skipped = field(default_factory=Skipped, init=False)

    def skip(self, error: DataError) -> None:
        """Counts a row as skipped; raises the error instead if bad rows stop the run."""
        if self.on_bad_row == "stop":
            raise error
        self.skipped = self.skipped.with_one_more(str(error))

    def __iter__(self) -> Iterator[_Row]:
        self.skipped = Skipped()
        places: dict[str, str] = {}
        for raw in raw_rows(self.files, columns=self.columns):
            try:
                row = self.convert(raw, places)
            except DataError as error:
                self.skip(error)
            else:
                yield row


ComparisonReader = RowReader[ComparisonRow]
DemonstrationReader = RowReader[DemonstrationRow]


def read(
    data: Data,
    *,
    format: str | None = None,
    on_bad_row: OnBadRow = "stop",
    columns: Columns | None = None,
) -> ComparisonReader:
    """Opens preference data in any of `FORMATS`.

    Args:
        data: A `.jsonl`, `.jsonl.gz`, `.json`, `.csv`, `.csv.gz`, `.parquet` or `.arrow` file, a folder that `datasets`
            saved to disk, a folder of shards, or the id of a data set on the Hub; or rows in memory: a
            `datasets.Dataset`, a pandas `DataFrame` or a list of dicts.
        format: A key of `FORMATS`; recognized from the columns of the first row if not given.
        on_bad_row: "stop" raises at a row that cannot be read; "skip" counts it in `skipped`.
        columns: longrm's names, each with the name of the column in the data, such as
            `{"prompt": "question", "responses": ["answer_a", "answer_b"], "winner": "label"}`; renamed before the
            format is recognized.

    Raises:
        ConfigError: `columns` has a name that longrm does not read, or two for one column.
        DataError: There is nothing to read, the format is unknown, a column to be renamed is missing, or (while
            iterating, and for the first row at once) a row cannot be read.
    """
    path, columns = named(data), check_columns(columns or {})
    files = find_files(Path(str(path)))
    if format is not None and format not in FORMATS:
        raise DataError(f"there is no format '{format}'; known: {describe_formats()}")
    name = format or _recognize(path, files, on_bad_row, columns)

    def convert(raw: RawRow, places: dict[str, str]) -> ComparisonRow:
        comparison = convert_row(raw, FORMATS[name].convert, places)
        return ComparisonRow(raw.number, raw.place, raw.checked(), comparison)

    reader = ComparisonReader(path, files, name, on_bad_row, columns, convert)
    how = "as requested" if format else "recognized from its columns"
    _logger.info("reading %s in the format '%s', %s", path, name, how)
    first = next(iter(reader), None)
    if first is None:
        raise DataError(f"{path}: no row can be read{reader.skipped.first()}")
    if name == "longrm" and first.comparison.ranks is not None:
        gold = next(column for column in GOLD if first.source.get(column) is not None)
        if meaning := _GOLD_MEANS.get(gold):
            own = columns.get(gold, gold)
            place = own if isinstance(own, str) else "+".join(own)
            _logger.info("the gold order is that of the column '%s': %s", place, meaning)
    return reader


def read_demonstrations(
    data: Data,
    *,
    format: Literal["demonstrations", "judge_prompts"] = "demonstrations",
    on_bad_row: OnBadRow = "stop",
    columns: Columns | None = None,
) -> DemonstrationReader:
    """Opens rows to imitate: a prompt (`chat_template` or `prompt`) and its `golden` or `completion`.

    Judge prompts have no completion; see `judging.judge_prompts`. Arguments and errors are those of `read`, but no row
    is read before the first iteration.
    """
    path, columns = named(data), check_columns(columns or {})
    make = demonstration_from if format == "demonstrations" else judge_prompt_from

    def convert(raw: RawRow, places: dict[str, str]) -> DemonstrationRow:
        return DemonstrationRow(raw.place, convert_row(raw, make, places))

    return DemonstrationReader(path, find_files(Path(str(path))), format, on_bad_row, columns, convert)


def _recognize(path: Path | MemoryRows, files: list[Path], on_bad_row: str, columns: Columns) -> str:
    problem = f"{path}: no row in it"
    for raw in raw_rows(files, columns=columns):
        if raw.value is None:
            problem = raw.message
        elif name := recognize(raw.value):
            return name
        else:
            names = cut(", ".join(raw.value))
            problem = f"{raw.place}: {describe_unknown(raw.value)}"
            if {"prompt", "completion"} <= raw.value.keys():
                problem = (
                    f"{raw.place}: the columns ({names}) are a demonstration; read it with longrm train sft"
                )
            elif raw.value.keys() >= JUDGE_PROMPT:
                problem = (
                    f"{raw.place}: the columns ({names}) are a judging prompt; read it with longrm train grpo"
                )
        if on_bad_row == "stop":
            break
    raise DataError(problem)


def written_columns(name: str) -> tuple[str, str, str, str]:
    """The columns that `longrm score` writes, by that of the scores.

    They are the scores, the outcome, the name of the model and, with `judge.group`, the standard errors of the scores.
    """
    return name, f"{name}_outcome", f"{name}_by", f"{name}_se"


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row of a file with the scores of a reward model.

    Attributes:
        comparison: The row's comparison.
        columns: The row, with columns for the scores and the outcome.
        column: The name of the column of the scores.
        scores: One per response, in the row's own order, higher is better; empty unless answered.
        outcome: How the query ended.
    """

    comparison: Comparison
    columns: dict[str, Any]
    column: str
    scores: tuple[float, ...]
    outcome: str


def read_scored(reader: ComparisonReader, column: str | None = None) -> Iterator[ScoredRow]:
    """Reads rows that have scores.

    Args:
        reader: The rows.
        column: The column of the scores; by default the one that `longrm score` wrote, which has a column with the
            outcomes next to it.

    Raises:
        DataError: There is no such column, or a row does not have one score per response, and bad rows stop.
    """
    if column is None:
        first = next(iter(reader))
        found = [name for name in reversed(SCORES) if f"{name}_outcome" in first.source]
        if not found:
            raise DataError(
                f"{first.place}: no scores written by longrm score; name a --model to score with, or the --column"
            )
        column = found[0]
        if len(found) > 1:
            by = first.source.get(f"{column}_by") or "an unnamed model"
            _logger.info("reading the scores of %s in column '%s'; --column names another", by, column)
    for row in reader:
        try:
            with reading(row.place, DataError):
                scored = _scored_row(row, column)
        except DataError as error:
            reader.skip(error)
        else:
            yield scored


def _scored_row(row: ComparisonRow, name: str) -> ScoredRow:
    given = row.source.get(name)
    if given is not None:
        scores = tuple(scores_of(given, len(row.comparison.responses), name))
        if not all(map(math.isfinite, scores)):
            raise FieldError(name, f"must be finite numbers, got {short(given)}")
        return ScoredRow(row.comparison, row.source, name, scores, str(Outcome.ANSWERED))
    if name not in row.source:
        raise FieldError(name, "missing; every row needs it, null if there are no scores")
    outcome = row.source.get(f"{name}_outcome", "no scores")
    if outcome == Outcome.ANSWERED:
        raise FieldError(name, "null, although the outcome is 'answered'")
    return ScoredRow(row.comparison, row.source, name, (), str(outcome))
