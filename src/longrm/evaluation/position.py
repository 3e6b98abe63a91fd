"""What the presented order did to the verdicts."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from longrm.evaluation.intervals import FloatArray
from longrm.evaluation.metrics import ratio
from longrm.evaluation.table import ScoreTable
from longrm.reward_models.trials import best, by_order, together
from longrm.runs.records import JudgmentRecord


def position(
    scored: Sequence[JudgmentRecord], table: ScoreTable, *, seed: int, resamples: int
) -> dict[str, Any] | None:
    """Consistency and position bias over the comparisons that were asked in more than one order.

    Args:
        scored: The records of the table's rows.
        table: Their scores.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.

    Returns:
        None where no comparison was asked in two orders. `consistency`: the share of comparisons, answered in
        every order, whose best response is the same in all of them. `first_wins`: of the askings about a pair
        that decided, the share that preferred the response shown first; 0.5 is no bias. `by_place`: by
        number of responses and place from 0, the share of askings whose best response stood there.
        `single_order`: the accuracy of one asking.
        `order_cancelled`: the accuracy of all orders together, on the same comparisons.
    """
    rows = [row for row, record in enumerate(scored) if len({t.order for t in record.trials}) > 1]
    if not rows:
        return None
    several = [scored[row] for row in rows]
    group, right = table.group[rows], table.order["top1"][rows]
    consistent = np.array([_consistent(record) for record in several])
    first = np.array([_first_wins(record) for record in several], np.float64)
    alone = np.array([_single_order(record) for record in several])
    every = np.ones_like(right)

    def metric(total: Any, weight: Any) -> dict[str, Any]:
        return asdict(ratio(total, weight, group, seed=seed, resamples=resamples))

    return {
        "consistency": metric(np.nan_to_num(consistent), np.isfinite(consistent).astype(np.float64)),
        "first_wins": metric(first[:, 0], first[:, 1]),
        "by_place": {
            str(n): {str(place): metric(*_held(several, n, place)) for place in range(n)}
            for n in sorted({len(record.ranks or ()) for record in several})
        },
        "single_order": metric(alone, every),
        "order_cancelled": metric(right, every),
    }


def _consistent(record: JudgmentRecord) -> float:
    """1 or 0; not a number where some order has no answer."""
    verdicts = {best(together(votes)) for votes in by_order(record.trials)}
    return float("nan") if frozenset() in verdicts else float(len(verdicts) == 1)


def _first_wins(record: JudgmentRecord) -> tuple[int, int]:
    """Askings about a pair that preferred the first response, and those that preferred any."""
    decided = [(trial.order[0], found) for trial in record.trials if len(found := best(trial)) == 1]
    if len(record.trials[0].order) != 2:
        return 0, 0
    return sum(first in found for first, found in decided), len(decided)


def _held(records: Sequence[JudgmentRecord], n: int, place: int) -> FloatArray:
    """Askings about n responses that judged the one at a place best (ties share), and those answered, [2, rows]."""
    held = np.zeros((2, len(records)))
    for row, record in enumerate(records):
        for trial in record.trials if len(record.ranks or ()) == n else ():
            found = best(trial)
            if found:
                held[:, row] += (trial.order[place] in found) / len(found), 1
    return held


def _single_order(record: JudgmentRecord) -> float:
    """The mean over askings of the probability that the response judged best is a best one."""
    assert record.ranks is not None, "only comparisons with gold are scored"
    top = min(record.ranks)
    verdicts = [best(trial) for trial in record.trials]
    credit = [sum(record.ranks[i] == top for i in found) / len(found) for found in verdicts if found]
    return sum(credit) / len(record.trials)
