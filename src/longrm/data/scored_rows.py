"""Rows with the scores of their responses, as `longrm score` has written them."""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from longrm.data.fields import scores_of
from longrm.data.readers import ComparisonReader, ComparisonRow
from longrm.errors import DataError
from longrm.reading import FieldError, located, short
from longrm.types import Comparison, Outcome

_logger = logging.getLogger(__name__)

SCORES = ("scores", "model_scores")
"""The columns that `longrm score` writes to by default."""

_NO_SCORES = "no scores"
"""The outcome of a row that has no scores, and no column that says why."""


def written_columns(name: str) -> tuple[str, str, str]:
    """The columns that `longrm score` writes, by that of the scores: scores, outcome, and the name of the model."""
    return name, f"{name}_outcome", f"{name}_by"


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row of a file, and what a reward model said of it.

    Attributes:
        comparison: What the row means.
        columns: The row, with columns for the scores and the outcome.
        column: The name of the column for the scores.
        scores: One a response, in the row's own order, higher is better; empty unless answered.
        outcome: How the query ended.
    """

    comparison: Comparison
    columns: dict[str, Any]
    column: str
    scores: tuple[float, ...]
    outcome: str


def read_scored(reading: ComparisonReader, column: str | None = None) -> Iterator[ScoredRow]:
    """The rows of a file with the scores that stand in it.

    Args:
        reading: The rows.
        column: The column of the scores; by default the one that `longrm score` has written, which another beside it
            with the outcomes tells from scores of another source.

    Raises:
        DataError: There is no such column, or a row has not one score a response in it, and bad rows are not skipped.
    """
    name = column or _written_column(reading)
    for row in reading:
        try:
            yield _read(row, name)
        except DataError as error:
            if reading.on_bad_row == "stop":
                raise
            reading.skipped = reading.skipped.with_one_more(str(error))


def _written_column(reading: ComparisonReader) -> str:
    """The column that `longrm score` has written; rows of one file have the same columns."""
    first = next(iter(reading))
    found = [name for name in reversed(SCORES) if f"{name}_outcome" in first.source]
    if not found:
        raise DataError(
            f"{first.place}: no scores that longrm score has written; name a --model to score with, or the --column"
        )
    if len(found) > 1:
        by = first.source.get(f"{found[0]}_by") or "a model that is not named"
        _logger.info("reading the scores of %s in column '%s'; --column names another", by, found[0])
    return found[0]


def _read(row: ComparisonRow, name: str) -> ScoredRow:
    try:
        if row.source.get(name) is None:
            return ScoredRow(row.comparison, row.source, name, (), _outcome(row.source, name))
        scores = tuple(scores_of(row.source[name], len(row.comparison.responses), name))
        if not all(map(math.isfinite, scores)):
            raise FieldError(name, f"needs finite numbers, got {short(row.source[name])}")
        return ScoredRow(row.comparison, row.source, name, scores, str(Outcome.ANSWERED))
    except FieldError as fault:
        raise DataError(located(row.place, fault)) from fault


def _outcome(columns: Mapping[str, Any], name: str) -> str:
    """Why a row has no scores."""
    if name not in columns:
        raise FieldError(name, "missing; every row needs it, null where there are no scores")
    given = columns.get(f"{name}_outcome", _NO_SCORES)
    if given not in (_NO_SCORES, *(outcome for outcome in Outcome if outcome is not Outcome.ANSWERED)):
        raise FieldError(f"{name}_outcome", f"{short(given)} is no outcome of a row without scores")
    return str(given)
