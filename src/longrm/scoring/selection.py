"""Rows that are ranked or filtered by the scores of their responses."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from longrm.data import write_rows
from longrm.data.fields import ranks_by_scores
from longrm.data.formats import to_native_row
from longrm.data.readers import ScoredRow, read_scored, written_columns
from longrm.errors import ConfigError
from longrm.reward_models import JudgeSettings
from longrm.runs.progress import Progress, no_progress
from longrm.runs.workers import WorkerGroup
from longrm.scoring.scored_file import RowCounts, ScoreSettings, check_out, open_rows, score_file
from longrm.types import Comparison, Outcome, Span, margin, message_text


def rank_file(
    settings: ScoreSettings,
    out: Path,
    *,
    best: int | None = None,
    pairs: bool = False,
    workers: WorkerGroup | None = None,
    progress: Progress = no_progress,
) -> RowCounts | None:
    """Writes the rows of a file with their responses sorted by score, best first.

    Equal scores keep the order of the input and tie in `ranks`; of identical responses the first is kept. The column of
    the scores moves with the responses, and `order` has each response's index in the input row, from 0. Rows with too
    few different responses are dropped, and with `pairs` also rows whose scores are all equal.

    With `best` only so many of the best responses are kept; with 1 the row becomes a demonstration. With `pairs` the
    best and the worst response become a preference pair. The rest is as in `score_file`.
    """
    if pairs and best is not None:
        raise ConfigError("--best and --pairs exclude each other")
    return _select(settings, lambda row: _ranked(row, best, pairs), out, workers, progress)


def filter_file(
    settings: ScoreSettings,
    out: Path,
    *,
    min_margin: float | None = None,
    max_margin: float | None = None,
    near_tie: float | None = None,
    workers: WorkerGroup | None = None,
    progress: Progress = no_progress,
) -> RowCounts | None:
    """Writes those rows of a file whose margin is in range, unchanged, with their scores.

    The margin is the score of the chosen response minus that of the rejected one. Without a gold order the response
    with the best score counts as chosen.

    A negative `min_margin` keeps rows whose gold order the scores contradict a little; rows whose absolute margin is
    smaller than `near_tie` are dropped. The rest is as in `score_file`.
    """
    if min_margin is None and max_margin is None and near_tie is None:
        raise ConfigError("specify --min-margin, --max-margin or --near-tie")
    if min_margin is not None and max_margin is not None and min_margin > max_margin:
        raise ConfigError(f"--min-margin {min_margin} is larger than --max-margin {max_margin}")

    def select(row: ScoredRow) -> dict[str, Any] | str:
        scores = row.scores
        ranks = row.comparison.ranks or [1 + (at != scores.index(max(scores))) for at in range(len(scores))]
        lead = margin(scores, ranks)
        if lead is None:
            return "tied gold"
        if near_tie is not None and abs(lead) < near_tie:
            return "near tie"
        if min_margin is not None and lead < min_margin:
            return "margin too small"
        if max_margin is not None and lead > max_margin:
            return "margin too large"
        return row.columns

    return _select(settings, select, out, workers, progress)


def _select(
    settings: ScoreSettings,
    select: Callable[[ScoredRow], dict[str, Any] | str],
    out: Path,
    workers: WorkerGroup | None,
    progress: Progress,
) -> RowCounts | None:
    """Writes what `select` makes of rows with scores; a text is the reason to drop a row."""

    def arrange(rows: Iterator[ScoredRow], counts: RowCounts) -> Iterator[dict[str, Any]]:
        for row in rows:
            counts.rows += 1
            selected = select(row) if row.outcome == Outcome.ANSWERED else row.outcome
            if isinstance(selected, str):
                counts.dropped[selected] += 1
            else:
                counts.written += 1
                yield selected

    workers = workers or WorkerGroup()
    if settings.model is not None:
        return score_file(settings, out, arrange=arrange, workers=workers, progress=progress)
    needs_model = {
        "--force": settings.force,
        "--engine": settings.engine is not None,
        "--workers": settings.workers is not None,
        "--device, --dtype or --set judge": settings.judge != JudgeSettings(),
    }
    for name, given in needs_model.items():
        if given:
            raise ConfigError(f"{name} requires --model")
    check_out(out, settings.data)
    if not workers.is_main_process:
        return None
    reading = open_rows(settings)
    counts = RowCounts(reading.format)
    write_rows(out, arrange(read_scored(reading, settings.column), counts))
    reading.log_skipped()
    return counts


def _ranked(row: ScoredRow, best: int | None, pairs: bool) -> dict[str, Any] | str:
    own = written_columns(row.column)  # these are in the input's order
    metadata = {name: value for name, value in row.comparison.metadata.items() if name not in own}
    comparison, scores = replace(row.comparison, metadata=metadata), row.scores
    responses = comparison.responses
    distinct = [at for at, response in enumerate(responses) if response not in responses[:at]]
    order = sorted(distinct, key=lambda at: -scores[at])
    if pairs:
        order = [order[0], order[-1]]
        if scores[order[0]] == scores[order[1]]:
            return "tied"
    order = order[:best]
    if best != 1 and len(order) < 2:
        return "identical"
    kept = [responses[at] for at in order]
    if pairs:
        chosen, rejected = ([dict(message) for message in response] for response in kept)
        form = {**_identity(comparison), "chosen": chosen, "rejected": rejected, **_texts(comparison)}
    elif best == 1:
        form = {**_identity(comparison), "completion": [dict(message) for message in kept[0]]}
    else:
        ranks = ranks_by_scores([scores[at] for at in order])
        form = to_native_row(replace(comparison, responses=tuple(kept), ranks=ranks))
    columns = {name: row.columns[name] for name in own if name in row.columns}
    columns |= {row.column: [scores[at] for at in order], f"{row.column}_outcome": row.outcome}
    return {**form, **columns, "order": order}


def _identity(comparison: Comparison) -> dict[str, Any]:
    """Id, group, prompt and metadata, in TRL's columns, or for judgments in those of LongRM."""
    prompt = "chat_template" if comparison.role == "judgment" else "prompt"
    metadata = {"metadata": dict(comparison.metadata)} if comparison.metadata else {}
    messages = [dict(message) for message in comparison.prompt]
    return {"id": comparison.id, "group": comparison.group, prompt: messages, **metadata}


def _texts(comparison: Comparison) -> dict[str, str]:
    """Context and question as columns of text, which can name one span only."""

    def text(spans: tuple[Span, ...]) -> str:
        if len(spans) != 1:
            return ""
        return message_text(comparison.prompt[spans[0].message])[spans[0].start : spans[0].end]

    question = (comparison.question,) if comparison.question else ()
    texts = {"context": text(comparison.context), "question": text(question)}
    return {name: value for name, value in texts.items() if value}
