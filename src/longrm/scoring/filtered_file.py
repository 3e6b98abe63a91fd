"""Rows whose chosen response leads by a margin that was asked for."""

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from longrm.data.scored_rows import ScoredRow
from longrm.errors import ConfigError
from longrm.runs.progress import Progress, no_progress
from longrm.runs.workers import WorkerGroup
from longrm.scoring.row_selection import SelectionCounts, SelectionSettings, select_rows
from longrm.types import margin


class FilterSettings(SelectionSettings):
    """Settings of `longrm filter`.

    Attributes:
        min_margin: The smallest margin of a row that is kept; one below 0 keeps rows whose gold order the scores
            contradict a little.
        max_margin: The largest margin of a row that is kept.
        near_tie: Rows are dropped whose margin is nearer to 0 than this, on either side.
    """

    min_margin: float | None = None
    max_margin: float | None = None
    near_tie: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _check_bounds(self) -> "FilterSettings":
        low, high = self.min_margin, self.max_margin
        if low is None and high is None and self.near_tie is None:
            raise ConfigError("name what to keep: --min-margin, --max-margin or --near-tie")
        if low is not None and high is not None and low > high:
            raise ConfigError(f"no margin is at least {low} and at most {high}")
        return self


def filter_file(
    settings: FilterSettings,
    out: Path,
    *,
    workers: WorkerGroup | None = None,
    progress: Progress = no_progress,
) -> SelectionCounts | None:
    """Writes those rows of a file, as they are and with their scores, whose margin is as the settings ask.

    Returns:
        The counts; None for a process that does not write the file.

    Raises:
        ConfigError: As `select_rows`.
        DataError: As `select_rows`.
    """
    return select_rows(settings, lambda row: _kept(row, settings), out, workers=workers, progress=progress)


def _kept(row: ScoredRow, settings: FilterSettings) -> dict[str, Any] | str:
    scores = row.scores
    # Without a gold order the best by its score is the chosen one.
    ranks = row.comparison.ranks or [1 + (index != scores.index(max(scores))) for index in range(len(scores))]
    lead = margin(scores, ranks)
    if lead is None:
        return "tied gold"
    if settings.near_tie is not None and abs(lead) < settings.near_tie:
        return "near tie"
    if settings.min_margin is not None and lead < settings.min_margin:
        return "margin too small"
    if settings.max_margin is not None and lead > settings.max_margin:
        return "margin too large"
    return row.columns
