"""What should not move a verdict and may: the presented order, and the length of the responses."""

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from longrm.evaluation.estimates import bootstrap_interval, ratio
from longrm.evaluation.metrics import TOP1
from longrm.evaluation.samples import Bootstrap, ratio_replicates
from longrm.evaluation.summaries import LengthBias, PositionBias
from longrm.evaluation.table import GoldPairs, ScoreTable
from longrm.reward_models.trials import best, by_order, together
from longrm.runs.records import UNDEFINED, Estimate, JudgmentRecord


def position_bias(
    scored: Sequence[JudgmentRecord], table: ScoreTable, **drawn: Unpack[Bootstrap]
) -> PositionBias | None:
    """Consistency and position bias of the records that a table is made of, where some were asked in two orders."""
    rows = [row for row, record in enumerate(scored) if len({t.order for t in record.trials}) > 1]
    if not rows:
        return None
    several = [scored[row] for row in rows]
    group, right = table.group[rows], TOP1.earned(table)[rows]
    every = np.ones_like(right)

    def share(counts: Sequence[tuple[float, float]]) -> Estimate:
        above, below = np.array(counts, np.float64).T
        return ratio(above, below, group, **drawn)

    consistent, first, alone = [], [], []
    for record in several:
        verdicts = {best(together(votes)) for votes in by_order(record.trials)}
        answered = frozenset() not in verdicts
        consistent.append((answered and len(verdicts) == 1, answered))
        is_pair = len(record.trials[0].order) == 2
        decided = [t.order[0] in found for t in record.trials if len(found := best(t)) == 1 and is_pair]
        first.append((sum(decided), len(decided)))
        alone.append((_single_order(record), 1))
    return PositionBias(
        consistency=share(consistent),
        first_wins=share(first),
        by_place={
            str(n): {
                str(place): share([_best_at(record, n, place) for record in several]) for place in range(n)
            }
            for n in sorted({len(record.ranks or ()) for record in several})
        },
        single_order=share(alone),
        order_cancelled=ratio(right, every, group, **drawn),
    )


def _best_at(record: JudgmentRecord, n: int, place: int) -> tuple[float, int]:
    """Trials of n responses that judged the one at a place best (ties share), and those that were answered."""
    verdicts = [(trial.order[place], best(trial)) for trial in record.trials if len(record.ranks or ()) == n]
    shares = [(at in found) / len(found) for at, found in verdicts if found]
    return sum(shares), len(shares)


def _single_order(record: JudgmentRecord) -> float:
    """The mean over trials of the probability that the response judged best is a best one."""
    assert record.ranks is not None, "only comparisons with gold are scored"
    top = min(record.ranks)
    verdicts = [best(trial) for trial in record.trials]
    credit = [sum(record.ranks[i] == top for i in found) / len(found) for found in verdicts if found]
    return sum(credit) / len(record.trials)


def length_bias(pairs: GoldPairs, **drawn: Unpack[Bootstrap]) -> LengthBias | None:
    """Accuracy on gold pairs whose better response is the longer one, the shorter one, and the difference.

    A judge that favors length gains on the first what it loses on the second. Pairs of equal length are left
    out, and what is not answered is wrong.

    Returns:
        None where the length of no response is known.
    """
    if not np.isfinite(pairs.longer).any():
        return None
    sides = np.stack([pairs.longer > 0, pairs.longer < 0], axis=1).astype(np.float64)
    longer, shorter = (ratio(pairs.right * side, side, pairs.group, **drawn) for side in sides.T)
    if longer.value is None or shorter.value is None:
        return LengthBias(better_longer=longer, better_shorter=shorter, difference=UNDEFINED)
    # Both are resampled together; resamples that missed a side are left out.
    kept = sides.any(axis=1)
    groups, group = np.unique(pairs.group[kept], return_inverse=True)
    both = ratio_replicates(pairs.right[kept, None] * sides[kept], sides[kept], group, **drawn)
    value, replicates = longer.value - shorter.value, both[:, 0] - both[:, 1]
    limits = bootstrap_interval(value, replicates[np.isfinite(replicates)], groups.size, (-1.0, 1.0))
    difference = Estimate(value, *limits, longer.n + shorter.n, groups.size)
    return LengthBias(better_longer=longer, better_shorter=shorter, difference=difference)
