"""The scores of a file's rows: how they are computed, and the log that holds them by row number."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, tee
from pathlib import Path

from longrm.data import ComparisonRow
from longrm.errors import DataError
from longrm.reward_models import RewardModel
from longrm.reward_models.trials import points
from longrm.runs.logs import Log
from longrm.types import Outcome, Query, query_of

# Rows between two writes to the log: a killed run loses no more.
_ROWS_PER_BATCH = 16


@dataclass(frozen=True, slots=True)
class ScoreRecord:
    """The scores of one row, in the row's own order of responses (`scores.jsonl`); none unless answered."""

    number: int
    outcome: Outcome
    scores: tuple[float, ...] = ()
    detail: str = ""


ScoreBatch = list[tuple[int, Query]]
"""Rows, each a number and a query, that are always scored together: how a model rounds may depend on the batch."""


def batches(rows: Iterable[ComparisonRow]) -> Iterator[ScoreBatch]:
    """Cuts rows into batches, the same way whatever has been scored already."""
    stream = iter(rows)
    while some := list(islice(stream, _ROWS_PER_BATCH)):
        yield [(row.number, query_of(row.comparison, range(len(row.comparison.responses)))) for row in some]


def score(batch: ScoreBatch, model: RewardModel) -> list[ScoreRecord]:
    """Scores every row, in several orders where the model sees the order."""
    numbers, queries = zip(*batch, strict=True)
    return [
        ScoreRecord(number, whole.outcome, points(whole), whole.detail)
        for number, whole in zip(numbers, model.judge_in_all_orders(queries), strict=True)
    ]


class RowScores:
    """A log of scores by row number. They stay on disk: a row takes nine bytes of memory.

    A row that ended in an error is in the log, and is not done: whoever continues tries it again.

    Raises:
        RunError: A line of the log is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._log = Log(path, ScoreRecord)
        self._offsets = array("q")
        self._done = bytearray()
        for offset, record in self._log.with_offsets():
            new = record.number + 1 - len(self._offsets)
            self._offsets.extend([-1] * new)
            self._done.extend(bytes(max(0, new)))
            self._offsets[record.number] = offset  # the last record of a row counts
            self._done[record.number] = record.outcome is not Outcome.ERROR

    def __len__(self) -> int:
        return sum(self._done)

    def __contains__(self, number: int) -> bool:
        return number < len(self._done) and bool(self._done[number])

    def flags(self) -> bytes:
        """For every row number from 0 whether it is done: 1 or 0."""
        return bytes(self._done)

    def of(self, rows: Iterable[ComparisonRow]) -> Iterator[tuple[ComparisonRow, ScoreRecord]]:
        """The rows with their records.

        Raises:
            DataError: A row has none.
        """
        mine, theirs = tee(rows)
        return zip(mine, self._log.at(map(self._offset, theirs)), strict=True)

    def _offset(self, row: ComparisonRow) -> int:
        if row.number >= len(self._offsets) or self._offsets[row.number] < 0:
            raise DataError(
                f"{row.place}: has not been scored, for the data has changed meanwhile; run the same command again"
            )
        return self._offsets[row.number]
