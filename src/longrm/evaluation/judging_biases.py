"""What should not move a verdict and may: the presented order, and the length of the responses."""

from collections.abc import Sequence

import numpy as np

from longrm.evaluation.estimates import ratio
from longrm.evaluation.intervals import bootstrap_interval
from longrm.evaluation.metrics import TOP1
from longrm.evaluation.samples import FloatArray, ratio_replicates
from longrm.evaluation.summaries import LengthBias, PositionBias
from longrm.evaluation.table import GoldPairs, ScoreTable
from longrm.reward_models.trials import best, by_order, together
from longrm.runs.records import UNDEFINED, Estimate, JudgmentRecord


def position_bias(
    scored: Sequence[JudgmentRecord], table: ScoreTable, *, seed: int, resamples: int
) -> PositionBias | None:
    """Consistency and position bias over the comparisons that were asked in more than one order.

    Args:
        scored: The records of the table's rows.
        table: Their scores.
        seed: Seed of the bootstrap.
        resamples: Number of bootstrap resamples.

    Returns:
        None where no comparison was asked in two orders.
    """
    rows = [row for row, record in enumerate(scored) if len({t.order for t in record.trials}) > 1]
    if not rows:
        return None
    several = [scored[row] for row in rows]
    group, right = table.group[rows], TOP1.earned(table)[rows]
    consistent = np.array([_consistent(record) for record in several])
    first = np.array([_first_wins(record) for record in several], np.float64)
    alone = np.array([_single_order(record) for record in several])
    every = np.ones_like(right)

    def estimate(total: FloatArray, weight: FloatArray) -> Estimate:
        return ratio(total, weight, group, seed=seed, resamples=resamples)

    return PositionBias(
        consistency=estimate(np.nan_to_num(consistent), np.isfinite(consistent).astype(np.float64)),
        first_wins=estimate(first[:, 0], first[:, 1]),
        by_place={
            str(n): {str(place): estimate(*_best_at(several, n, place)) for place in range(n)}
            for n in sorted({len(record.ranks or ()) for record in several})
        },
        single_order=estimate(alone, every),
        order_cancelled=estimate(right, every),
    )


def _consistent(record: JudgmentRecord) -> float:
    """1 or 0; NaN where some order has no answer."""
    verdicts = {best(together(votes)) for votes in by_order(record.trials)}
    return float("nan") if frozenset() in verdicts else float(len(verdicts) == 1)


def _first_wins(record: JudgmentRecord) -> tuple[int, int]:
    """Trials of a pair that preferred the first response, and those that preferred any."""
    decided = [(trial.order[0], found) for trial in record.trials if len(found := best(trial)) == 1]
    if len(record.trials[0].order) != 2:
        return 0, 0
    return sum(first in found for first, found in decided), len(decided)


def _best_at(records: Sequence[JudgmentRecord], n: int, place: int) -> FloatArray:
    """Trials of n responses that judged the one at a place best (ties share), and those answered, [2, rows]."""
    counts = np.zeros((2, len(records)))
    for row, record in enumerate(records):
        for trial in record.trials if len(record.ranks or ()) == n else ():
            found = best(trial)
            if found:
                counts[:, row] += (trial.order[place] in found) / len(found), 1
    return counts


def _single_order(record: JudgmentRecord) -> float:
    """The mean over trials of the probability that the response judged best is a best one."""
    assert record.ranks is not None, "only comparisons with gold are scored"
    top = min(record.ranks)
    verdicts = [best(trial) for trial in record.trials]
    credit = [sum(record.ranks[i] == top for i in found) / len(found) for found in verdicts if found]
    return sum(credit) / len(record.trials)


def length_bias(pairs: GoldPairs, *, seed: int, resamples: int) -> LengthBias | None:
    """Accuracy on gold pairs whose better response is the longer one, the shorter one, and the difference.

    A judge that favors length gains on the first what it loses on the second. Pairs of equal length are left
    out, and what is not answered is wrong.

    Returns:
        None where the length of no response is known.
    """
    if not np.isfinite(pairs.longer).any():
        return None
    sides = np.stack([pairs.longer > 0, pairs.longer < 0], axis=1).astype(np.float64)
    longer, shorter = (
        ratio(pairs.right * side, side, pairs.group, seed=seed, resamples=resamples) for side in sides.T
    )
    difference = _difference(pairs, sides, longer, shorter, seed, resamples)
    return LengthBias(better_longer=longer, better_shorter=shorter, difference=difference)


def _difference(
    pairs: GoldPairs, sides: FloatArray, longer: Estimate, shorter: Estimate, seed: int, resamples: int
) -> Estimate:
    """The first minus the second, with both resampled together; resamples that missed a side are left out."""
    if longer.value is None or shorter.value is None:
        return UNDEFINED
    kept = sides.any(axis=1)
    groups, group = np.unique(pairs.group[kept], return_inverse=True)
    drawn = ratio_replicates(
        pairs.right[kept, None] * sides[kept], sides[kept], group, seed=seed, resamples=resamples
    )
    value, replicates = longer.value - shorter.value, drawn[:, 0] - drawn[:, 1]
    limits = bootstrap_interval(value, replicates[np.isfinite(replicates)], groups.size, (-1.0, 1.0))
    return Estimate(value, *limits, longer.n + shorter.n, groups.size)
