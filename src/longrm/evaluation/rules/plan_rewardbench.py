"""Plan-RewardBench's own accuracy (arXiv 2604.08178)."""

from collections.abc import Sequence
from typing import Any

from longrm.evaluation.table import is_scored, left_out
from longrm.reward_models.trials import points
from longrm.runs.records import JudgmentRecord
from longrm.types import Scale, Trial

_TIE = 1e-4  # tie_eps in eval/evaluate_benchmark_final.py, github.com/wyy-1112/Plan-RewardBench at ffe6fbe


def plan_rewardbench(records: Sequence[JudgmentRecord], scale: Scale) -> dict[str, Any]:
    """The accuracy of every split over all trials of its pairs, and the unweighted mean over splits.

    A trial earns 1 if the better trajectory has the higher score, one half if the scores differ by 0.0001 or less, and
    nothing without a verdict. `left_out` counts the pairs that ended in an error, which are never scored.
    """
    splits: dict[str, list[float]] = {}
    for record in records:
        if is_scored(record):
            splits.setdefault(record.task, []).extend(_credit(trial, record) for trial in record.trials)
    percents = {name: 100 * sum(found) / len(found) for name, found in sorted(splits.items())}
    return {
        "overall_percent": sum(percents.values()) / len(percents) if percents else None,
        "by_split_percent": percents,
        "left_out": left_out(records),
    }


def _credit(trial: Trial, record: JudgmentRecord) -> float:
    values, ranks = points(trial), record.ranks or ()
    if not values:
        return 0.0
    lead = values[0] - values[1] if ranks[0] < ranks[1] else values[1] - values[0]
    # One half for "Tie" and nothing for an unread verdict, as there.
    return 0.5 if abs(lead) <= _TIE else float(lead > 0)
