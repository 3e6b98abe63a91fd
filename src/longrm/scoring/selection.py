"""Rows that are ranked or filtered by the scores of their responses."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from longrm.data.fields import ranks_by_scores
from longrm.data.formats import to_native_row
from longrm.data.readers import ScoredRow, read_scored, written_columns
from longrm.errors import ConfigError
from longrm.rng import key_hash
from longrm.runs.progress import Progress, no_progress
from longrm.runs.workers import WorkerGroup
from longrm.scoring.scored_file import RowCounts, ScoreSettings, Select, check_out, score_file, write_selected
from longrm.types import margin, message_text


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

    With `best` only so many of the best responses are kept; with 1 the row becomes a demonstration, by a hash of its id
    if scores are equal. With `pairs` the best and the worst response become a preference pair. The rest is as in
    `score_file`.
    """
    if pairs and best is not None:
        raise ConfigError("--best and --pairs exclude each other")
    return _select_file(settings, lambda row: _ranked(row, best, pairs), out, workers, progress)


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
    bounds = {"--min-margin": min_margin, "--max-margin": max_margin, "--near-tie": near_tie}
    for name, bound in bounds.items():
        if bound is not None and (math.isnan(bound) or (name == "--near-tie" and bound < 0)):
            raise ConfigError(
                f"{name} {bound}: must be a number" + (" from 0 on" if name == "--near-tie" else "")
            )
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

    return _select_file(settings, select, out, workers, progress)


def _select_file(
    settings: ScoreSettings, select: Select, out: Path, workers: WorkerGroup | None, progress: Progress
) -> RowCounts | None:
    """Selects rows by the scores of the model or, without a model, by those in the file."""
    workers = workers or WorkerGroup()
    if settings.model is not None:
        return score_file(settings, out, select=select, workers=workers, progress=progress)
    check_out(out, settings.data)
    if not workers.is_main_process:
        return None
    reading = settings.open_rows()
    counts = RowCounts(reading.format)
    write_selected(out, read_scored(reading, settings.column), select, counts)
    reading.skipped.log()
    return counts


def _ranked(row: ScoredRow, best: int | None, pairs: bool) -> dict[str, Any] | str:
    comparison, scores = row.comparison, row.scores
    score_columns = written_columns(row.column)
    # Old scores in the metadata would have the order of the input.
    metadata = {name: value for name, value in comparison.metadata.items() if name not in score_columns}
    responses = comparison.responses
    distinct = [at for at, response in enumerate(responses) if response not in responses[:at]]
    # Ties keep the order of the input, but the one response of a demonstration is drawn: the first is often gold.
    order = sorted(distinct, key=lambda at: (-scores[at], key_hash(comparison.id, at) if best == 1 else b""))
    if pairs:
        order = [order[0], order[-1]]
        if scores[order[0]] == scores[order[1]]:
            return "tied"
    order = order[:best]
    if best != 1 and len(order) < 2:
        return "identical"
    kept = [[dict(message) for message in responses[at]] for at in order]

    # Demonstrations and pairs have TRL's columns.
    prompt = "chat_template" if comparison.role == "judgment" else "prompt"
    written: dict[str, Any] = {
        "id": comparison.id,
        "group": comparison.group,
        prompt: [dict(message) for message in comparison.prompt],
    }
    if metadata:
        written["metadata"] = metadata
    if pairs:
        written |= {"chosen": kept[0], "rejected": kept[1]}
        # As columns of text, which can name one span only.
        question = (comparison.question,) if comparison.question else ()
        for name, spans in (("context", comparison.context), ("question", question)):
            if len(spans) == 1 and spans[0].end > spans[0].start:
                text = message_text(comparison.prompt[spans[0].message])
                written[name] = text[spans[0].start : spans[0].end]
    elif best == 1:
        written["completion"] = kept[0]
    else:
        ranks = ranks_by_scores([scores[at] for at in order])
        ranked = tuple(responses[at] for at in order)
        written = to_native_row(replace(comparison, metadata=metadata, responses=ranked, ranks=ranks))
    written |= {name: row.columns[name] for name in score_columns if name in row.columns}
    written |= {row.column: [scores[at] for at in order], f"{row.column}_outcome": row.outcome}
    errors = row.columns.get(f"{row.column}_se")
    if isinstance(errors, list) and len(errors) == len(scores):
        written[f"{row.column}_se"] = [errors[at] for at in order]
    return {**written, "order": order}
