"""The scoring code of the LongRM release, including its mistakes, for comparison with its published numbers."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

from longrm.evaluation.metrics import position_match_credit
from longrm.evaluation.rules.benchmark_rules import percent, percents
from longrm.evaluation.table import BEST_OF
from longrm.reward_models.trials import points
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome, Scale, are_ratings

Why = Literal["first_match", "partial", "tie", "gold_tie", "unparsed", "no_verdict"]

# Pattern, bound and marks are those of extract_judgement in evaluate/evaluating/longreward_bench/utils/prompt.py,
# github.com/LCM-Lab/LongRM at bbc90f5.
_RANKING = re.compile(r"\[([\w\s]+(?:>[\w\s]+)+)\]")
_MOST_ARROWS = 9  # no ranking is read in a text with more of them
_REMOVED = ("assistant", "Assistant", ":", " ")  # from each name, in this order


def release(records: Sequence[JudgmentRecord], scale: Scale) -> dict[str, Any]:
    """Scores the first trial of each comparison as the release does, and lists where that is wrong.

    A pair is scored A if the text holds [[A]] anywhere, else B if it holds [[B]]; a ranking is the first one in
    brackets, complete or not. Each earns its position-wise match; a text without a verdict earns 0, and equal scalar
    scores keep the presented order. Subtypes "2", "3" and "4" are rankings, all others pairs.

    Args:
        records: The run's judgments; their explanation is the raw output.
        scale: "verdict" reads the text; any other scale ranks the scores.

    Returns:
        `overall_percent`, `by_task_percent` of the pairs and `by_rank_percent` of the rankings, as in the paper's
        table, and `errs`: ids of comparisons with a result other than the verdict's own position-wise match, and why:
        "no_verdict" (credit for a text without a verdict), "partial" (credit for an incomplete ranking), "tie" (in the
        verdict), "unparsed" (a verdict was overlooked), "gold_tie" (responses with equal gold are distinguished) or
        "first_match" (another mark than the verdict was read).
    """
    # Items whose gold ties all candidates count too: evaluate() in longreward_bench/evaluator.py compares every answer,
    # github.com/LCM-Lab/LongRM at bbc90f5.
    known = [record for record in records if record.ranks is not None]
    scored = [record for record in known if record.outcome is not Outcome.ERROR]
    matches = [_match(record, scale) for record in scored]
    by_task, by_rank = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for record, match in zip(scored, matches, strict=True):
        part = by_rank[record.subtype] if record.subtype in BEST_OF else by_task[record.task]
        part.append(match)
    return {
        "overall_percent": percent(matches),
        "by_task_percent": percents(by_task),
        "by_rank_percent": percents(by_rank),
        "errs": [
            {"id": record.id, "why": why}
            for record, match in zip(scored, matches, strict=True)
            if (why := _why(record, match, scale))
        ],
        "left_out": len(known) - len(scored),
    }


def _match(record: JudgmentRecord, scale: Scale) -> float:
    """The share of presented positions whose rank the release gets right."""
    order, ranks = record.trials[0].order, record.ranks or ()
    best_first = sorted(range(len(ranks)), key=lambda index: ranks[index])
    gold = [best_first.index(index) for index in order]
    read = _read(record, scale)  # empty or shorter if the verdict is missing or partial
    return sum(one == two for one, two in zip(gold, read, strict=False)) / len(gold)


def _read(record: JudgmentRecord, scale: Scale) -> list[int]:
    """The rank that the release reads for each presented position, from 0; empty if it finds none."""
    trial = record.trials[0]
    if are_ratings(scale):
        return _by_score([trial.scores[index] for index in trial.order]) if trial.scores else []
    if record.subtype in BEST_OF:
        return _first_ranking(trial.explanation)
    if "[[A]]" in trial.explanation:
        return [0, 1]
    return [1, 0] if "[[B]]" in trial.explanation else []


def _by_score(presented: Sequence[float]) -> list[int]:
    best_first = sorted(range(len(presented)), key=lambda place: -presented[place])
    return [best_first.index(place) for place in range(len(presented))]


def _first_ranking(text: str) -> list[int]:
    found = _RANKING.search(text)
    if found is None or text.count(">") > _MOST_ARROWS:
        return []
    names = found[1].split(">")
    for mark in _REMOVED:
        names = [name.replace(mark, "") for name in names]
    places = [ord(name) - ord("A") if len(name) == 1 else -1 for name in names]
    # Letters that are not the first ones of the alphabet, each once, leave a place unfilled.
    return [places.index(k) for k in range(len(places))] if set(places) == set(range(len(places))) else []


def _why(record: JudgmentRecord, match: float, scale: Scale) -> Why | None:
    trial, ranks = record.trials[0], record.ranks or ()
    values = points(trial)
    if match == (position_match_credit(values, ranks) if values else 0.0):
        return None
    read = _read(record, scale)
    if not values:
        return "partial" if len(read) < len(ranks) else "no_verdict"
    if len(set(values)) < len(values):
        return "tie"
    if len(read) < len(ranks):
        return "partial" if read else "unparsed"
    return "gold_tie" if read == _by_score([values[index] for index in trial.order]) else "first_match"
