"""JudgeBench's own accuracy (Tan et al. 2024, arXiv 2410.12784)."""

from collections.abc import Sequence
from typing import Any

from longrm.reward_models.trials import points
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome, Scale, Trial


def judgebench(records: Sequence[JudgmentRecord], scale: Scale) -> dict[str, Any]:
    """A pair is correct if more of its trials agree with the gold order than contradict it.

    Each trial of a pair, one in either order, adds 1 if it agrees, takes 1 if it contradicts, and adds
    nothing if it ties or has no answer. Pairs whose sum is 0 count as not correct; `undecided` says how many.
    Two identical responses, whose gold ties here, can be no judge's correct pair. An error is never scored:
    `left_out` says how many pairs ended in one.
    """
    known = [record for record in records if record.ranks is not None]
    pairs = [record for record in known if record.outcome is not Outcome.ERROR]
    sums = [sum(_agreement(trial, record) for trial in record.trials) for record in pairs]
    categories: dict[str, list[int]] = {}
    for record, found in zip(pairs, sums, strict=True):
        categories.setdefault(record.task, []).append(found)
    return {
        "overall_percent": _percent(sums),
        "by_category_percent": {name: _percent(found) for name, found in sorted(categories.items())},
        "pairs": len(pairs),
        "correct": sum(found > 0 for found in sums),
        "undecided": sum(found == 0 for found in sums),
        "left_out": len(known) - len(pairs),
    }


# The counter of compute_final_metrics in utils/metrics.py, github.com/ScalerLab/JudgeBench at e2c52c2.
def _agreement(trial: Trial, record: JudgmentRecord) -> int:
    values, ranks = points(trial), record.ranks
    if not values or ranks is None or ranks[0] == ranks[1]:
        return 0
    margin = values[0] - values[1] if ranks[0] < ranks[1] else values[1] - values[0]
    return int(margin > 0) - int(margin < 0)


def _percent(sums: Sequence[int]) -> float | None:
    return 100 * sum(found > 0 for found in sums) / len(sums) if sums else None
