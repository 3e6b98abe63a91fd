"""Scores for the rows of a file, by one process, several, or Ray; a killed run continues."""

import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from longrm import reward_models
from longrm.clients.remote_settings import ModelName, Remote, refuse_server
from longrm.column_names import ColumnNames, Columns
from longrm.config import OPERATIONAL, Config, IdentifiedBy
from longrm.data import ComparisonReader, ComparisonRow, check_writable, read, write_rows
from longrm.data.files import raw_rows
from longrm.data.memory import Data, named
from longrm.data.readers import SCORES, ScoredRow, written_columns
from longrm.errors import ConfigError, DataError
from longrm.reading import STDIN_COPY, short
from longrm.reward_models import JudgeSettings, Model, ModelSettings, RewardModel, loaded, name_of
from longrm.reward_models.kinds import writes_verdicts
from longrm.reward_models.trials import to_scores
from longrm.runs.folder import CACHE, RunFolder, claimed_once
from longrm.runs.progress import Progress, no_progress, progress_bars
from longrm.runs.resumable import ResumableRun, Written
from longrm.runs.scratch import discard
from longrm.runs.workers import WorkerGroup
from longrm.types import Outcome, Query, query_of

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase

_log = logging.getLogger(__name__)
SCORES_LOG = "scores.jsonl"

# Rows between two writes to the log: a killed run loses no more.
_ROWS_PER_BATCH = 16


def _without_folder(data: str) -> str:
    """A copy of standard input by its name, as its folder is another one in every process."""
    name = Path(data).name
    return name if name.startswith(STDIN_COPY) else data


class ScoreSettings(Config):
    """Settings of `longrm score`, `rank` and `filter`.

    Attributes:
        data: The file or folder of preference data; the format is recognized from its columns.
        model: A folder or Hub id, or a name of another kind, as for `longrm evaluate`. Without a model, rank and filter
            read the scores that `longrm score` wrote.
        columns: Names of the columns in `data`, by longrm's names, as `prompt = "question"`; the output has longrm's.
        on_bad_row: Whether an unreadable row stops the run or is skipped.
        column: The column of the scores; `COLUMN_outcome` has the outcomes, `COLUMN_by` the model's name. By default
            "scores", or "model_scores" if the rows already have a column of that name.
        model_args: How the model is loaded, and what it reads.
        judge: How the model is asked; a generative one is slow if `judge.max_tokens` is large.
        remote: How to reach a model behind HTTP.
        engine: "ray" scores on the workers of a Ray cluster; by default this process scores, or those of torchrun.
        force: Whether a file with another model's scores is overwritten.
        workers: Number of Ray workers; by default one per GPU, or one per CPU where there is no GPU.
    """

    data: Annotated[str, IdentifiedBy(_without_folder)]
    model: ModelName | None = None
    columns: ColumnNames | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    column: str | None = None
    model_args: ModelSettings = ModelSettings()
    judge: JudgeSettings = JudgeSettings()
    remote: Remote = Remote()
    engine: Annotated[Literal["ray"] | None, OPERATIONAL] = None
    force: Annotated[bool, OPERATIONAL] = False
    workers: Annotated[int | None, OPERATIONAL] = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.workers is not None and self.engine is None:
            raise ConfigError(
                "--workers requires --engine ray; otherwise use torchrun --nproc-per-node N -m longrm score"
            )
        of_a_model = self.model_args, self.judge, self.remote
        if self.model is None and (self.engine or of_a_model != (ModelSettings(), JudgeSettings(), Remote())):
            raise ConfigError(
                "--engine and the settings of a model (--device, --set model_args.*, ...) require --model"
            )
        return self

    def open_rows(self) -> ComparisonReader:
        """Opens the rows; see `longrm.data.read` for the errors."""
        return read(self.data, on_bad_row=self.on_bad_row, columns=self.columns)


@dataclass(slots=True)
class RowCounts:
    """Counts of a file that was scored, ranked or filtered."""

    format: str
    rows: int = 0  # read
    written: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)  # rows by outcome; only answered ones have scores
    # Rows that were not written, by outcome or by the reason of rank and filter.
    dropped: Counter[str] = field(default_factory=Counter)
    incomplete: int = 0  # rows with scores in which verdicts are missing
    # For each outcome but "answered": number and reason of the first row that the model did not score.
    first_unscored: dict[str, str] = field(default_factory=dict)


Select = Callable[[ScoredRow], dict[str, Any] | str]
"""Makes the row to write from a row with scores; a text is the reason to drop it."""


def score(
    model: Model,
    data: Data,
    out: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    *,
    tokenizer: "PreTrainedTokenizerBase | str | None" = None,
    columns: Columns | None = None,
) -> "pd.DataFrame":
    """Scores every response of a data set, as `longrm score` does.

    Args:
        model: A name as for `longrm score --model`, a loaded model, or a transformers model.
        data: A path, or rows in memory, in any format that `longrm.data.read` knows.
        out: The JSONL or Parquet file to write: the same rows, with the scores as further columns. By default none.
        settings: Settings of `longrm score` by dotted key, such as {"judge.format": "pointwise"}.
        tokenizer: Of a transformers model; see `longrm.load`.
        columns: Names of columns in the data, as for `longrm.data.read`.

    Returns:
        The new columns, a row for each row of the data that could be read, in its order: `scores` (a list with one per
        response in the row's own order, higher is better; None unless answered), their outcomes and the model's name.

    Raises:
        LongRMError: With the message that `longrm score` prints.
    """
    import pandas as pd

    rows = named(data)  # kept until the scores are written
    given = {"model": name_of(model), "data": str(rows), **({"columns": columns} if columns else {})}
    resolved, judge = loaded(model, tokenizer, ScoreSettings.resolve(overrides={**given, **(settings or {})}))
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="longrm-") as folder, progress_bars() as progress:
        target = Path(folder) / "scored.jsonl" if out is None else Path(out)

        def note(row: ScoredRow) -> None:
            names = [name for name in written_columns(row.column) if name in row.columns]
            found[len(found)] = {name: row.columns[name] for name in names}

        counts = score_file(resolved, target, model=judge, on_row=note, progress=progress)
    unscored = {} if counts is None else counts.first_unscored
    advice = ""
    if unscored and (judge.writes if judge else writes_verdicts(name_of(model))):
        advice = '; likelihood:NAME, or longrm.load(model, kind="likelihood"), needs no verdicts'
    for outcome, first in unscored.items():
        _log.warning("no scores: %s, first %s%s", outcome, first, advice)
    return pd.DataFrame.from_dict(found, orient="index")


def score_file(
    settings: ScoreSettings,
    out: Path,
    *,
    model: RewardModel | None = None,
    on_row: Callable[[ScoredRow], None] = lambda row: None,
    select: Select | None = None,
    workers: WorkerGroup | None = None,
    progress: Progress = no_progress,
) -> RowCounts | None:
    """Scores the rows of a file and writes them to a JSONL or Parquet file, in one step at the end.

    Scores are logged in `OUT.partial`, from which a killed run continues, with this engine or another, as one process
    or as several. The folder is kept if rows ended in errors; the same settings then try these again.

    `select` selects and changes the rows to write; by default all are written, also those without scores. Returns the
    counts; None in a process that does not write the file. `model` is the reward model, if the caller has it in memory;
    `on_row` is called with every row and its scores.
    """
    workers = workers or WorkerGroup()
    if settings.model is None:
        raise ConfigError("model: required")
    if settings.engine and workers.count > 1:
        raise ConfigError("--engine ray does not support torchrun: it starts its own workers")
    if settings.engine or workers.count > 1:
        refuse_server(settings.model, "--engine ray" if settings.engine else "torchrun")
    check_out(out, settings.data)
    reading = settings.open_rows()
    by, grouped = (
        _model_name(settings.model, settings.model_args, settings.judge),
        settings.judge.group != "listwise",
    )
    input_columns = next(iter(reading)).source.keys()  # all rows of a file have the same
    if out.exists() and not settings.force:
        _check_overwritten(out, settings.column, by, input_columns)
    column = _free_column(reading, settings.column, input_columns)
    partial = out.with_name(out.name + ".partial")
    with claimed_once(RunFolder(partial, "scoring", settings), workers) as folder:
        run = ResumableRun(folder.path, {SCORES_LOG: ScoreRecord}, workers, key="number")
        # A row that ended in an error is scored again.
        done = {record.number for record in run.read(SCORES_LOG) if record.outcome is not Outcome.ERROR}
        if grouped and workers.is_main_process:
            _log_budget(settings.judge.group, reading, done)
        some, work = _scoring(model, settings, reading, done, folder, workers, run)
        with closing(some):
            new = run.run(
                some, work, {SCORES_LOG: done}, progress=lambda rows: progress("scoring", len(done) + rows, 0)
            )
        if not workers.is_main_process:
            return None
        progress("scoring", len(done) + new, len(done) + new)
        run.arrange(SCORES_LOG)
        counts = RowCounts(reading.format)
        write_selected(
            out,
            _noted(_scored_rows(reading, iter(run.read(SCORES_LOG)), column, by, grouped, counts), on_row),
            select,
            counts,
        )
        reading.skipped.log()
    if not counts.outcomes[Outcome.ERROR]:
        discard(partial)
    return counts


def _noted(rows: Iterable[ScoredRow], on_row: Callable[[ScoredRow], None]) -> Iterator[ScoredRow]:
    for row in rows:
        on_row(row)
        yield row


def check_out(out: Path, data: str) -> None:
    """Refuses to overwrite the data, and files that cannot be written, before any work is done."""
    if os.path.realpath(out) == os.path.realpath(data):
        raise DataError(f"{out}: --out must not be the input file")
    check_writable(out)


def write_selected(out: Path, rows: Iterable[ScoredRow], select: Select | None, counts: RowCounts) -> None:
    """Writes all rows, or with `select` those rows with scores that it selects, and counts them."""

    def selected() -> Iterator[dict[str, Any]]:
        for row in rows:
            counts.rows += 1
            if select is None:
                chosen: dict[str, Any] | str = row.columns
            else:
                chosen = select(row) if row.outcome == Outcome.ANSWERED else row.outcome
            if isinstance(chosen, str):
                counts.dropped[chosen] += 1
            else:
                counts.written += 1
                yield chosen

    write_rows(out, selected())


# ---- Scoring ----


@dataclass(frozen=True, slots=True)
class ScoreRecord:
    """A line of `scores.jsonl`: the scores of one row in its own order of responses; none unless answered."""

    number: int
    outcome: Outcome
    scores: tuple[float, ...] = ()
    detail: str = ""
    standard_errors: tuple[float, ...] = ()  # of the scores; with `judge.group` only


class NumberedQuery(NamedTuple):
    """A row to score."""

    number: int
    query: Query


ScoreBatch = list[NumberedQuery]
"""Rows that are always scored together: rounding may depend on the batch."""


def batches(rows: Iterable[ComparisonRow]) -> Generator[ScoreBatch]:
    """Cuts rows into batches, in the same way whatever has been scored already: a resumed run gives the same bytes."""
    stream = iter(rows)
    while some := list(islice(stream, _ROWS_PER_BATCH)):
        yield [
            NumberedQuery(row.number, query_of(row.comparison, range(len(row.comparison.responses))))
            for row in some
        ]


def score_batch(batch: Sequence[NumberedQuery], model: RewardModel) -> list[ScoreRecord]:
    """Scores every row, in several orders where the model sees the order."""
    numbers, queries = zip(*batch, strict=True)
    return [
        ScoreRecord(number, trial.outcome, to_scores(trial), trial.detail, trial.standard_errors)
        for number, trial in zip(numbers, model.judge_in_all_orders(queries), strict=True)
    ]


def _scoring(
    model: RewardModel | None,
    settings: ScoreSettings,
    reading: ComparisonReader,
    done: Set[int],
    folder: RunFolder,
    workers: WorkerGroup,
    run: ResumableRun,
) -> tuple[Generator[Sequence[Any]], Callable[[Sequence[Any]], Written]]:
    """The batches, and what scores one of them. Ray schedules batches itself, so its batches come as records."""
    assert settings.model is not None, "score_file checks it"
    if settings.engine == "ray":
        if model is not None:
            raise ConfigError(
                "--engine ray loads the model by name on every worker; it cannot take one in memory"
            )
        from longrm.scoring.ray_engine import scored_by_ray

        pinned = reward_models.pinned(settings.model)
        if pinned != settings.model:
            folder.record(model={"commit": pinned.rpartition("@")[2]})
        scored = scored_by_ray(pinned, settings, reading, done, batches, score_batch, ScoreRecord)
        return scored, lambda records: {SCORES_LOG: records}
    remote = settings.remote.cached_in(folder.path / CACHE)  # a continued run does not pay twice
    judge = model or reward_models.load(
        settings.model, model_args=settings.model_args, judge=settings.judge, remote=remote
    )
    if workers.is_main_process:
        folder.record(model=judge.provenance)
    judge.on_progress = run.report
    return batches(reading), lambda batch: {SCORES_LOG: score_batch(batch, judge)}


def _log_budget(group: str, reading: ComparisonReader, done: Set[int]) -> None:
    """Logs how many verdicts the rows that are not done cost."""
    from longrm.reward_models.groups import verdicts_asked

    sizes = [
        len(query.responses)
        for batch in batches(reading)
        if any(number not in done for number, _ in batch)  # all rows of such a batch are scored again
        for _, query in batch
    ]
    verdicts = sum(verdicts_asked(group, size) for size in sizes)
    _log.info(
        "judge.group = '%s': %s verdicts for %s rows, not counting retries",
        group,
        f"{verdicts:,}",
        f"{len(sizes):,}",
    )


# ---- Columns of the output ----


def _scored_rows(
    reading: ComparisonReader,
    records: Iterator[ScoreRecord],
    column: str,
    by: str,
    grouped: bool,
    counts: RowCounts,
) -> Iterator[ScoredRow]:
    """The rows with columns for scores, outcome and model and, with `judge.group`, for standard errors."""
    for row in reading:
        # Records of rows that are gone are passed over.
        record = next((one for one in records if one.number >= row.number), None)
        if record is None or record.number != row.number:
            raise DataError(
                f"{row.place}: no score, because the data has changed since; rerun the same command"
            )
        outcome, values = str(record.outcome), None
        counts.outcomes[outcome] += 1
        if record.outcome is Outcome.ANSWERED:
            values = list(record.scores)
            counts.incomplete += bool(record.detail)
        else:
            counts.first_unscored.setdefault(outcome, f"row {record.number}: {record.detail}")
        entries = (values, outcome, by, list(record.standard_errors) or None)
        added = dict(zip(written_columns(column), entries, strict=True))
        if not grouped:
            added.popitem()
        columns = row.source | added
        yield ScoredRow(row.comparison, columns, column, tuple(values or ()), outcome)


def _model_name(model: str, settings: ModelSettings, judge: JudgeSettings) -> str:
    """The model, with the weights of its labels, its dtype and how it scores groups, if given."""
    options = [f"{label}={weight:g}" for label, weight in (settings.label_weights or {}).items()]
    if settings.dtype != "auto":
        options.append(f"dtype={settings.dtype}")
    if judge.group != "listwise":
        options.append(f"group={judge.group}")
    return f"{model} ({', '.join(options)})" if options else model


def _check_overwritten(out: Path, column: str | None, by: str, kept: Iterable[str]) -> None:
    """Refuses to overwrite scores of another model that the data does not have: they may have cost hours."""
    names = {written_columns(name)[2] for name in {*SCORES, column or SCORES[0]}}.difference(kept)
    for raw in raw_rows([out]):
        for name in names:
            if raw.value is not None and raw.value.get(name) not in (None, by):
                model = short(str(raw.value[name]))
                raise DataError(
                    f"{out} has scores by {model}; choose another --out, or overwrite them with --force"
                )


def _free_column(reading: ComparisonReader, wanted: str | None, taken: Iterable[str]) -> str:
    """A column that overwrites no column of the input."""
    choices = (wanted,) if wanted else SCORES
    free = [name for name in choices if not set(written_columns(name)).intersection(taken)]
    if not free:
        names = "' and '".join(choices)
        raise DataError(f"{reading.path} has columns '{names}' already; choose another --column")
    if free[0] != choices[0]:
        _log.info("the rows have a column '%s' already; the scores go to '%s'", choices[0], free[0])
    return free[0]
