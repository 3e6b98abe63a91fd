"""Scores for the rows of a file: the same rows come out, each with its scores."""

import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from longrm import reward_models
from longrm.config import Config
from longrm.data import Reading, Row, check_writable, read, write_rows
from longrm.errors import DataError
from longrm.reward_models import Judge, RewardModel
from longrm.reward_models.trials import points
from longrm.runs.folder import RunFolder
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, silent
from longrm.types import Outcome, ask

_logger = logging.getLogger(__name__)
# Rows between two writes to the log: a killed run loses no more.
_ROWS_PER_BATCH = 16


class Scoring(Config):
    """Settings of `longrm score`.

    Attributes:
        model: A folder or Hub id, or `baseline:NAME`.
        data: The file or folder of preference data.
        format: The rows' format; recognized from the columns when not given.
        on_bad_row: What a row that cannot be read does.
        column: Where the scores are written, and with `_outcome` behind its name the outcome. By default
            "scores", or "model_scores" where the rows have a column of that name already.
        judge: How a model is asked; one that writes is slow where `judge.max_tokens` is large.
    """

    model: str
    data: str
    format: str | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    column: str | None = None
    judge: Judge = Judge()


@dataclass(frozen=True, slots=True)
class ScoreRecord:
    """The scores of one row, in the row's own order of responses (`scores.jsonl`); none unless answered."""

    number: int
    outcome: Outcome
    scores: tuple[float, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """What came of scoring a file.

    Attributes:
        rows: Rows written.
        outcomes: How many rows had each outcome; only answered ones have scores.
        skipped: Rows that could not be read and were left out.
        format: The rows' format.
        first_without: Number and reason of the first row without scores; empty if all have some.
    """

    rows: int
    outcomes: Mapping[str, int]
    skipped: int
    format: str
    first_without: str


def score_file(settings: Scoring, out: Path, *, progress: Progress = silent) -> Scored:
    """Writes the rows of a file with their scores, in one step at the end.

    What is scored so far lies in `OUT.partial`, so that a killed run continues.

    Args:
        settings: Which model, which data.
        out: The JSONL or Parquet file to write.
        progress: Called after every batch; the total is not known.

    Raises:
        DataError: A row that cannot be read, or that has a column of the scores' name already.
    """
    if out.resolve() == Path(settings.data).resolve():
        raise DataError(f"{out} is the data itself, which would be overwritten; take another --out")
    check_writable(out)
    reading = read(settings.data, format=settings.format, on_bad_row=settings.on_bad_row)
    column = _free_column(reading, settings.column)
    partial = out.with_name(out.name + ".partial")
    with RunFolder(partial, "scoring", settings) as folder:
        model = reward_models.load(settings.model, judge=settings.judge)
        with Log(folder.path / "scores.jsonl", ScoreRecord) as log:
            done = {record.number: record for record in log}
            for batch in _batches(reading):
                if any(row.number not in done for row in batch):
                    fresh = [record for record in _score(batch, model) if record.number not in done]
                    log.append(*fresh)
                    done |= {record.number: record for record in fresh}
                progress("scoring", len(done), 0)
        outcomes = Counter(str(record.outcome) for record in done.values())
        without = [record for record in done.values() if record.outcome is not Outcome.ANSWERED]
        reason = f"row {without[0].number}: {without[0].detail}" if without else ""
        result = Scored(len(done), outcomes, reading.skipped.count, reading.format, reason)
        reading.tell_skipped()
        write_rows(out, _rows(reading, done, column))
    shutil.rmtree(partial)
    return result


def _batches(reading: Reading) -> Iterator[list[Row]]:
    rows = iter(reading)
    while batch := list(islice(rows, _ROWS_PER_BATCH)):
        yield batch


def _score(batch: list[Row], model: RewardModel) -> list[ScoreRecord]:
    """Asks about every row, in several orders where the model sees the order."""
    queries = [ask(row.comparison, range(len(row.comparison.responses))) for row in batch]
    return [
        ScoreRecord(row.number, whole.outcome, points(whole), whole.detail)
        for row, whole in zip(batch, model.judge_in_all_orders(queries), strict=True)
    ]


def _rows(reading: Reading, records: dict[int, ScoreRecord], column: str) -> Iterator[dict[str, Any]]:
    for row in reading:
        record = records[row.number]
        scores = list(record.scores) if record.outcome is Outcome.ANSWERED else None
        yield {**row.source, column: scores, f"{column}_outcome": str(record.outcome)}


def _free_column(reading: Reading, wanted: str | None) -> str:
    """A column that no row would lose; rows of one file have the same columns."""
    taken = next(iter(reading)).source.keys()
    choices = [wanted] if wanted else ["scores", "model_scores"]
    free = next((name for name in choices if name not in taken and f"{name}_outcome" not in taken), None)
    if free is None:
        names = "' and '".join(choices)
        raise DataError(
            f"{reading.path} has columns named '{names}' already, which would be lost; name another with --column"
        )
    if free != choices[0]:
        _logger.info("the rows have a column '%s' already; the scores go to '%s'", choices[0], free)
    return free
