"""Scores for the rows of a file: the same rows come out, each with its scores."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from longrm import reward_models
from longrm.clients.remote_settings import ModelName, refuse_server
from longrm.column_names import ColumnNames
from longrm.config import OPERATIONAL, Config
from longrm.data import ComparisonReader, check_writable, read, write_rows
from longrm.data.files import raw_rows
from longrm.data.scored_rows import SCORES, ScoredRow, written_columns
from longrm.errors import ConfigError, DataError
from longrm.reading import short
from longrm.reward_models import JudgeSettings
from longrm.runs.folder import RunFolder, claimed_once
from longrm.runs.logs import Log, join_parts, part_of
from longrm.runs.progress import Progress, no_progress
from longrm.runs.scratch import discard
from longrm.runs.workers import WorkerGroup, check_seen
from longrm.scoring.row_scores import RowScores, ScoreRecord, batches, score
from longrm.types import Outcome

_logger = logging.getLogger(__name__)


class RowSettings(Config):
    """What is scored, and how.

    Attributes:
        data: The file or folder of preference data.
        format: The rows' format; recognized from the columns when not given.
        columns: What the file calls columns that longrm knows by another name, as `prompt = "question"`; rows are
            written under the names of longrm.
        on_bad_row: What an unreadable row does.
        column: The column of the scores; `COLUMN_outcome` is that of the outcomes, `COLUMN_by` that of the
            model's name. By default "scores", or "model_scores" where the rows have a column of that name already.
        judge: How queries are put to the model; a generative one is slow where `judge.max_tokens` is large.
        engine: "ray" scores on the workers of a Ray cluster; by default this process scores, or those of torchrun.
        force: Whether a file that holds another model's scores is written over.
        workers: Number of Ray workers; by default one per GPU, or one per CPU where there is no GPU.
    """

    data: str
    format: str | None = None
    columns: ColumnNames | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    column: str | None = None
    judge: JudgeSettings = JudgeSettings()
    engine: Annotated[Literal["ray"] | None, OPERATIONAL] = None
    force: Annotated[bool, OPERATIONAL] = False
    workers: Annotated[int | None, OPERATIONAL] = Field(None, ge=1)


class ScoreSettings(RowSettings):
    """Settings of `longrm score`.

    Attributes:
        model: A folder or Hub id, or a name of another kind, as `longrm evaluate` takes it.
    """

    model: ModelName


Arrange = Callable[[Iterator[ScoredRow]], Iterator[dict[str, Any]]]
"""Makes the rows of a file to be written of those that were scored."""


@dataclass(slots=True)
class ScoreCounts:
    """Counts of a file that was scored.

    Attributes:
        rows: Rows read.
        outcomes: How many rows had each outcome; only answered ones have scores.
        skipped: Rows that could not be read and were left out.
        first_unscored: For every outcome but "answered" that some row had, number and reason of the first such row.
    """

    format: str
    rows: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    first_unscored: dict[str, str] = field(default_factory=dict)


def _all_columns(rows: Iterator[ScoredRow]) -> Iterator[dict[str, Any]]:
    return (row.columns for row in rows)


def score_file(
    settings: ScoreSettings,
    out: Path,
    *,
    arrange: Arrange = _all_columns,
    workers: WorkerGroup | None = None,
    progress: Progress = no_progress,
) -> ScoreCounts | None:
    """Writes the rows of a file with their scores to a JSONL or Parquet file, in one step at the end.

    What is written is what `arrange` makes of the rows: by default each of them, with columns for scores and outcome.

    Scores are logged in `OUT.partial`, from which a killed run continues: with this engine or another, as one process
    or as several. The folder is kept where rows ended in errors, which the same settings then try again.

    Returns:
        The counts; None for a process that does not write the file.

    Raises:
        ConfigError: An engine or a model that several processes cannot use.
        DataError: A row that cannot be read, or that has a column of the scores' name already; or the file to write
            holds another model's scores, and the settings force nothing.
    """
    workers = workers or WorkerGroup()
    _check_engine(settings, workers)
    check_out(out, settings.data)
    reading = open_rows(settings)
    if out.exists() and not settings.force:
        _check_replaced(out, settings, reading)
    column = _free_column(reading, settings.column)
    partial = out.with_name(out.name + ".partial")
    with claimed_once(RunFolder(partial, "scoring", settings), workers) as folder:
        path = folder.path / "scores.jsonl"
        _score_rows(settings, reading, path, folder, workers, progress)
        if not workers.is_main_process:
            return None
        join_parts(path, ScoreRecord)
        result = ScoreCounts(reading.format)
        write_rows(out, arrange(_rows(reading, RowScores(path), column, _asked(settings), result)))
        result.skipped = reading.skipped.count
        reading.log_skipped()
    if not result.outcomes[Outcome.ERROR]:
        discard(partial)
    return result


def open_rows(settings: RowSettings) -> ComparisonReader:
    """Opens the rows as the settings say; see `longrm.data.read` for the errors."""
    return read(
        settings.data, format=settings.format, on_bad_row=settings.on_bad_row, columns=settings.columns
    )


def check_out(out: Path, data: str) -> None:
    """Refuses, before any work is done for it, to write over the data or what cannot be written."""
    if os.path.realpath(out) == os.path.realpath(data):
        raise DataError(f"{out} is the data itself, which would be overwritten; take another --out")
    check_writable(out)


def _check_replaced(out: Path, settings: ScoreSettings, reading: ComparisonReader) -> None:
    """Refuses to write over the scores of another model, which the data does not hold: they may have cost hours."""
    kept = next(iter(reading)).source.keys()
    columns = {*SCORES, settings.column or SCORES[0]}
    names = [name for name in (written_columns(column)[2] for column in columns) if name not in kept]
    held = Counter(
        str(raw.value[name])
        for raw in raw_rows([out])
        for name in names
        if raw.value is not None and raw.value.get(name) not in (None, _asked(settings))
    )
    if held:
        (model, rows), *_ = held.most_common(1)
        raise DataError(
            f"{out} holds scores by {short(model)} in {rows:,} rows, which would be lost; take another --out, or "
            "overwrite it with --force"
        )


def _check_engine(settings: ScoreSettings, workers: WorkerGroup) -> None:
    if settings.workers is not None and settings.engine != "ray":
        raise ConfigError(
            "--workers is of --engine ray; without it: torchrun --nproc-per-node N -m longrm score"
        )
    if settings.engine and workers.count > 1:
        raise ConfigError("--engine ray starts workers of its own; leave torchrun away")
    if settings.engine or workers.count > 1:
        refuse_server(settings.model, "--engine ray" if settings.engine else "torchrun")


def _score_rows(
    settings: ScoreSettings,
    reading: ComparisonReader,
    path: Path,
    folder: RunFolder,
    workers: WorkerGroup,
    progress: Progress,
) -> None:
    """Has every row scored that the log does not hold."""
    if workers.is_main_process:
        join_parts(path, ScoreRecord)
    workers.wait()  # for the folder to be claimed and for the parts of the log to be joined
    check_seen(path.parent)
    done = RowScores(path)
    before = len(done)
    if settings.engine == "ray":
        from longrm.scoring.ray_engine import scored_by_ray

        model = reward_models.pinned(settings.model)
        if model != settings.model:
            folder.record(model={"commit": model.rpartition("@")[2]})
        fresh = scored_by_ray(model, settings.judge, settings.workers, reading, done)
    else:
        fresh = _scored_here(settings, reading, done, folder, workers)
    with closing(fresh), Log(part_of(path, workers.rank), ScoreRecord) as log:
        for records in fresh:
            log.append(*records)
            progress("scoring", before + workers.add_done(len(records)), 0)
    workers.wait()
    if workers.is_main_process:
        done_by_all = before + workers.add_done(0)
        progress("scoring", done_by_all, done_by_all)


def _scored_here(
    settings: ScoreSettings,
    reading: ComparisonReader,
    done: RowScores,
    folder: RunFolder,
    workers: WorkerGroup,
) -> Generator[list[ScoreRecord]]:
    model = reward_models.load(settings.model, judge=settings.judge)
    if workers.is_main_process:
        folder.record(model=model.provenance)
    for piece, batch in enumerate(batches(reading)):
        if not workers.takes(piece):
            continue
        fresh = {number for number, _ in batch if number not in done}
        yield [record for record in score(batch, model) if record.number in fresh] if fresh else []


def _rows(
    reading: ComparisonReader, scores: RowScores, column: str, model: str, result: ScoreCounts
) -> Iterator[ScoredRow]:
    for row, record in scores.of(reading):
        outcome, values = str(record.outcome), None
        result.rows += 1
        result.outcomes[outcome] += 1
        if record.outcome is Outcome.ANSWERED:
            values = list(record.scores)
        else:
            result.first_unscored.setdefault(outcome, f"row {record.number}: {record.detail}")
        said = {column: values, f"{column}_outcome": outcome, f"{column}_by": model}
        yield ScoredRow(row.comparison, {**row.source, **said}, column, tuple(values or ()), outcome)


def _asked(settings: ScoreSettings) -> str:
    """The model that is asked, with the weights of its labels and its dtype, where these are given."""
    judge = settings.judge
    named = [f"{label}={weight:g}" for label, weight in (judge.weights or {}).items()]
    if judge.dtype != "auto":
        named.append(f"dtype={judge.dtype}")
    return f"{settings.model} ({', '.join(named)})" if named else settings.model


def _free_column(reading: ComparisonReader, wanted: str | None) -> str:
    """A column that no row would lose; rows of one file have the same columns."""
    taken = next(iter(reading)).source.keys()
    choices = [wanted] if wanted else ["scores", "model_scores"]
    free = next((name for name in choices if taken.isdisjoint(written_columns(name))), None)
    if free is None:
        names = "' and '".join(choices)
        raise DataError(
            f"{reading.path} has columns named '{names}' already, which would be lost; name another with --column"
        )
    if free != choices[0]:
        _logger.info("the rows have a column '%s' already; the scores go to '%s'", choices[0], free)
    return free
