"""Responses in the order of their scores: all, the best of them, or the best against the worst."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from longrm.data.fields import ranks_by_scores
from longrm.data.native import to_native_row
from longrm.data.scored_rows import ScoredRow, written_columns
from longrm.errors import ConfigError
from longrm.runs.progress import Progress, no_progress
from longrm.runs.workers import WorkerGroup
from longrm.scoring.row_selection import SelectionCounts, SelectionSettings, select_rows
from longrm.types import Comparison, Span, message_text


class RankSettings(SelectionSettings):
    """Settings of `longrm rank`.

    Attributes:
        best: How many of the best responses are kept; by default all. One makes the row a demonstration.
        pairs: Whether the best and the worst response become a preference pair, in place of a ranking.
    """

    best: int | None = Field(None, ge=1)
    pairs: bool = False

    @model_validator(mode="after")
    def _check_one_form(self) -> "RankSettings":
        if self.pairs and self.best is not None:
            raise ConfigError("a pair is the best and the worst; take one of --best and --pairs")
        return self


def rank_file(
    settings: RankSettings,
    out: Path,
    *,
    workers: WorkerGroup | None = None,
    progress: Progress = no_progress,
) -> SelectionCounts | None:
    """Writes the rows of a file with their responses in the order of the scores, the best first.

    Equal scores keep the order of the input, and tie in `ranks`; of identical responses the first is kept. The column
    of the scores goes with the responses, and `order` tells which of the row's responses each was, from 0. A row is
    dropped that has too few different responses for its form, or whose scores all tie where a pair is made of it.

    Returns:
        The counts; None for a process that does not write the file.

    Raises:
        ConfigError: As `select_rows`.
        DataError: As `select_rows`.
    """
    return select_rows(settings, lambda row: _ranked(row, settings), out, workers=workers, progress=progress)


def _ranked(row: ScoredRow, settings: RankSettings) -> dict[str, Any] | str:
    own = written_columns(row.column)  # in the input's order
    metadata = {name: value for name, value in row.comparison.metadata.items() if name not in own}
    comparison, scores = replace(row.comparison, metadata=metadata), row.scores
    order = sorted(_distinct(comparison), key=lambda index: -scores[index])
    if settings.pairs:
        order = [order[0], order[-1]]
        if scores[order[0]] == scores[order[1]]:
            return "tied"
    order = order[: settings.best]
    if settings.best != 1 and len(order) < 2:
        return "identical"
    if settings.pairs:
        form = _pair(comparison, order)
    elif settings.best == 1:
        form = _demonstration(comparison, order[0])
    else:
        kept = tuple(comparison.responses[index] for index in order)
        ranks = ranks_by_scores([scores[index] for index in order])
        form = to_native_row(replace(comparison, responses=kept, ranks=ranks))
    held = {name: row.columns[name] for name in own if name in row.columns}
    said = {row.column: [scores[index] for index in order], f"{row.column}_outcome": row.outcome}
    return {**form, **held, **said, "order": order}


def _distinct(comparison: Comparison) -> list[int]:
    """The places of the responses, without those that repeat an earlier one."""
    responses = comparison.responses
    return [index for index, response in enumerate(responses) if response not in responses[:index]]


def _pair(comparison: Comparison, order: list[int]) -> dict[str, Any]:
    """A row in TRL's columns, or for judgments in LongRM's."""
    chosen, rejected = ([dict(message) for message in comparison.responses[index]] for index in order)
    texts = {
        "context": _text(comparison, comparison.context),
        "question": _text(comparison, (comparison.question,) if comparison.question else ()),
    }
    known = {name: text for name, text in texts.items() if text}
    return {**_identity(comparison), "chosen": chosen, "rejected": rejected, **known}


def _demonstration(comparison: Comparison, best: int) -> dict[str, Any]:
    """A row of a prompt and the completion to imitate."""
    return {**_identity(comparison), "completion": [dict(message) for message in comparison.responses[best]]}


def _identity(comparison: Comparison) -> dict[str, Any]:
    prompt = "chat_template" if comparison.role == "judgment" else "prompt"
    metadata: Mapping[str, Any] = {"metadata": dict(comparison.metadata)} if comparison.metadata else {}
    return {
        "id": comparison.id,
        "group": comparison.group,
        prompt: [dict(message) for message in comparison.prompt],
        **metadata,
    }


def _text(comparison: Comparison, spans: tuple[Span, ...]) -> str:
    """What one span covers; a column of text can name no more than one."""
    if len(spans) != 1:
        return ""
    (span,) = spans
    return message_text(comparison.prompt[span.message])[span.start : span.end]
