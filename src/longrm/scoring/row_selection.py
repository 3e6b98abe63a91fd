"""What `longrm rank` and `longrm filter` share: scores from the file or from a model, and counts of what is dropped."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longrm.clients.remote_settings import ModelName
from longrm.data import write_rows
from longrm.data.scored_rows import ScoredRow, read_scored
from longrm.errors import ConfigError
from longrm.reward_models import JudgeSettings
from longrm.runs.progress import Progress, no_progress
from longrm.runs.workers import WorkerGroup
from longrm.scoring.scored_file import RowSettings, ScoreSettings, check_out, open_rows, score_file
from longrm.types import Outcome


class SelectionSettings(RowSettings):
    """Where the scores come from.

    Attributes:
        model: What scores the rows first, as `longrm score` does; by default the scores that it has written are read.
    """

    model: ModelName | None = None


@dataclass(slots=True)
class SelectionCounts:
    """Counts of a file from which rows were selected.

    Attributes:
        format: The format of the rows.
        read: Rows read.
        written: Rows written.
        dropped: How many rows were not, by reason: an outcome, or what a command drops.
        first_unscored: As `ScoreCounts` has it; empty where scores were read.
    """

    format: str = ""
    read: int = 0
    written: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first_unscored: dict[str, str] = field(default_factory=dict)


Select = Callable[[ScoredRow], dict[str, Any] | str]
"""The row to be written of one with scores, or why there is none."""


def select_rows(
    settings: SelectionSettings,
    select: Select,
    out: Path,
    *,
    workers: WorkerGroup | None = None,
    progress: Progress = no_progress,
) -> SelectionCounts | None:
    """Writes what is selected of a file's rows to a JSONL or Parquet file, in one step at the end.

    With a model the rows are scored first, as `score_file` does, which continues a killed run; a row without scores is
    dropped.

    Returns:
        The counts; None for a process that does not write the file.

    Raises:
        ConfigError: A setting of scoring without a model.
        DataError: A row that cannot be read, or scores that cannot be.
    """
    workers = workers or WorkerGroup()
    counts = SelectionCounts()

    def arrange(rows: Iterator[ScoredRow]) -> Iterator[dict[str, Any]]:
        for row in rows:
            counts.read += 1
            selected = select(row) if row.outcome == Outcome.ANSWERED else row.outcome
            if isinstance(selected, str):
                counts.dropped[selected] += 1
                continue
            counts.written += 1
            yield selected

    if settings.model is not None:
        scoring = {name: getattr(settings, name) for name in ScoreSettings.model_fields}
        scored = score_file(
            ScoreSettings(**scoring), out, arrange=arrange, workers=workers, progress=progress
        )
        if scored is None:
            return None
        counts.format, counts.first_unscored = scored.format, scored.first_unscored
        return counts
    _check_unscored(settings)
    check_out(out, settings.data)
    if not workers.is_main_process:
        return None
    reading = open_rows(settings)
    write_rows(out, arrange(read_scored(reading, settings.column)))
    reading.log_skipped()
    counts.format = reading.format
    return counts


def _check_unscored(settings: SelectionSettings) -> None:
    """Refuses settings of scoring where nothing is scored."""
    given = {
        "--force": settings.force,
        "--engine": settings.engine is not None,
        "--workers": settings.workers is not None,
        "--device, --dtype or --set judge": settings.judge != JudgeSettings(),
    }
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(f"{name} is of scoring, and the scores are read from the data; name a --model")
