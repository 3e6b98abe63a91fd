"""How a judge behaves beyond its accuracy: outcomes, failures, biases, votes, and comparisons with baselines."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Unpack

import numpy as np
from scipy.special import ndtri

from longrm.evaluation.estimates import LEVEL, bootstrap_interval, ratio
from longrm.evaluation.metrics import TOP1
from longrm.evaluation.metrics.standard import top1_credit
from longrm.evaluation.summaries import (
    AccuracyReadings,
    BaselineComparison,
    FailureRates,
    LengthBias,
    PositionBias,
    RecommendedSize,
    VoteCurve,
)
from longrm.evaluation.table import Bootstrap, FloatArray, GoldPairs, ScoreTable, codes_of, ratio_replicates
from longrm.reward_models.baselines import BASELINES
from longrm.reward_models.trials import best, by_order, points, together
from longrm.runs.records import UNDEFINED, Estimate, JudgmentRecord
from longrm.types import Outcome

DIFFERENCE, POWER = 0.1, 0.95
"""The accuracy difference between two judges that `recommended` comparisons detect, and with which power."""

SUBSETS = 32
"""Maximum number of subsets of votes in the mean of a point of the vote curve."""

_WITH_TEXT = (Outcome.ANSWERED, Outcome.UNPARSED, Outcome.TRUNCATED)
# Sizes are raised by this: the accuracy is itself an estimate, and bootstrap intervals are wider than normal theory's.
_ALLOWANCE = 1.1


def accuracy(
    scored: Sequence[JudgmentRecord], table: ScoreTable, **drawn: Unpack[Bootstrap]
) -> AccuracyReadings:
    """Accuracy with unanswered comparisons counted as wrong, as chance, or left out; undefined without any answer."""
    answered = np.array([record.outcome is Outcome.ANSWERED for record in scored], np.float64)
    if not answered.any():
        return AccuracyReadings(strict=UNDEFINED, chance_credit=UNDEFINED, answered=UNDEFINED)
    right, every = TOP1.earned(table), np.ones_like(answered)
    lucky = right + (1 - answered) * TOP1.earned(table, by_chance=True)
    return AccuracyReadings(
        strict=ratio(right, every, table.group, **drawn),
        chance_credit=ratio(lucky, every, table.group, **drawn),
        answered=ratio(right, answered, table.group, **drawn),
    )


def outcome_rates(records: Sequence[JudgmentRecord], **drawn: Unpack[Bootstrap]) -> dict[Outcome, Estimate]:
    """The share of comparisons with each outcome."""
    group, every = codes_of(record.group for record in records), np.ones(len(records))
    occurred = {o: np.array([record.outcome is o for record in records], np.float64) for o in Outcome}
    return {outcome: ratio(total, every, group, **drawn) for outcome, total in occurred.items()}


def failures(records: Sequence[JudgmentRecord], **drawn: Unpack[Bootstrap]) -> FailureRates:
    """Rates of missed formats, ignored contexts and contradicted verdicts (LongRM, section 3)."""
    group = codes_of(record.group for record in records)
    trials = [record.trials for record in records]

    def rate(counts: Sequence[tuple[int, int]]) -> Estimate | None:
        above, below = np.array(counts, np.float64).reshape(-1, 2).T
        estimate = ratio(above, below, group, **drawn)
        return estimate if estimate.n else None

    writes = any(trial.explanation for of_record in trials for trial in of_record)
    ended = [[t.outcome for t in of_record if t.outcome in _WITH_TEXT and writes] for of_record in trials]
    checked = [(r.context_check == "same", r.context_check in ("same", "changed")) for r in records]
    criteria = [_against(record) for record in records]
    compared = [[t.contradicted for t in of_record if t.contradicted is not None] for of_record in trials]
    return FailureRates(
        format_missed=rate([(len(found) - found.count(Outcome.ANSWERED), len(found)) for found in ended]),
        context_ignored=rate(checked),
        contradicted=rate([(sum(found), len(found)) for found in compared]),
        criteria_against=rate([(sum(found), len(found)) for found in criteria]),
    )


def _against(record: JudgmentRecord) -> list[bool]:
    """For each criterion that discriminates between responses, whether it prefers others than those judged best."""
    discriminating = [row for row in record.criteria if max(row) > min(row)]
    judged = best(record)
    return [all(row[index] < max(row) for index in judged) for row in discriminating]


def position_bias(
    scored: Sequence[JudgmentRecord], table: ScoreTable, **drawn: Unpack[Bootstrap]
) -> PositionBias | None:
    """Consistency and position bias over the comparisons judged in several orders; None if there are none."""
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
    """The number of trials of n responses that prefer the one shown at a place (ties share), and of answered ones."""
    verdicts = [(trial.order[place], best(trial)) for trial in record.trials if len(record.ranks or ()) == n]
    shares = [(at in found) / len(found) for at, found in verdicts if found]
    return sum(shares), len(shares)


def _single_order(record: JudgmentRecord) -> float:
    """The mean over trials of the top-1 credit: the accuracy of a judge that is asked once."""
    assert record.ranks is not None, "only comparisons with gold are scored"
    top = min(record.ranks)
    verdicts = [best(trial) for trial in record.trials]
    credit = [sum(record.ranks[i] == top for i in found) / len(found) for found in verdicts if found]
    return sum(credit) / len(record.trials)


def length_bias(pairs: GoldPairs, **drawn: Unpack[Bootstrap]) -> LengthBias | None:
    """Accuracy on gold pairs whose better response is longer, on those where it is shorter, and the difference.

    A judge that favors length gains on the first what it loses on the second. Pairs of equal length are left out;
    unanswered ones are wrong. None if the lengths of responses are unknown.
    """
    if not np.isfinite(pairs.longer).any():
        return None
    sides = np.stack([pairs.longer > 0, pairs.longer < 0], axis=1).astype(np.float64)
    longer, shorter = (ratio(pairs.right * side, side, pairs.group, **drawn) for side in sides.T)
    if longer.value is None or shorter.value is None:
        return LengthBias(better_longer=longer, better_shorter=shorter, difference=UNDEFINED)
    # Both sides are resampled together, because a group can have pairs on both; resamples without one are left out.
    kept = sides.any(axis=1)
    groups, group = np.unique(pairs.group[kept], return_inverse=True)
    both = ratio_replicates(pairs.right[kept, None] * sides[kept], sides[kept], group, **drawn)
    value, replicates = longer.value - shorter.value, both[:, 0] - both[:, 1]
    limits = bootstrap_interval(value, replicates[np.isfinite(replicates)], groups.size, (-1.0, 1.0))
    difference = Estimate(value, *limits, longer.n + shorter.n, groups.size)
    return LengthBias(better_longer=longer, better_shorter=shorter, difference=difference)


def vote_curve(
    scored: Sequence[JudgmentRecord], table: ScoreTable, **drawn: Unpack[Bootstrap]
) -> VoteCurve | None:
    """The accuracy that k of the K votes would have had, for every k.

    The same k votes of every order are averaged as all votes are. The value is the mean over all subsets of k votes, or
    over `SUBSETS` random ones if there are more; it is exact for k = 1 and k = K. Comparisons with fewer than K votes
    in some order are left out. None if no order was judged twice.
    """
    asked = [by_order(record.trials) for record in scored]
    most = max((len(found) for orders in asked for found in orders), default=0)
    if most < 2:
        return None
    rows = [row for row, orders in enumerate(asked) if all(len(found) == most for found in orders)]
    shapes = {row: (len(asked[row]), len(scored[row].ranks or ())) for row in rows}
    curve = np.zeros((len(scored), most))
    for shape in set(shapes.values()):
        alike = [row for row in rows if shapes[row] == shape]
        silent = (np.nan,) * shape[1]
        votes_of = np.array([[[points(t) or silent for t in votes] for votes in asked[row]] for row in alike])
        ranks = np.array([scored[row].ranks for row in alike])
        best = ranks == ranks.min(axis=1, keepdims=True)
        for k in range(1, most + 1):
            subsets = _subsets(most, k, drawn["seed"])
            curve[alike, k - 1] = np.mean([_top1(votes_of[:, :, votes], best) for votes in subsets], axis=0)
    used = np.zeros(len(scored))
    used[rows] = 1
    return VoteCurve(at={str(k + 1): ratio(curve[:, k], used, table.group, **drawn) for k in range(most)})


def _subsets(votes: int, k: int, seed: int) -> Iterator[list[int]]:
    if math.comb(votes, k) <= SUBSETS:
        yield from map(list, combinations(range(votes), k))
        return
    rng = np.random.default_rng((seed, k))
    for _ in range(SUBSETS):
        yield rng.permutation(votes)[:k].tolist()


def _top1(votes_of: FloatArray, best: Any) -> FloatArray:
    """Top-1 credit of the mean over orders of the mean over answered votes, [rows]; 0 if an order has no answer.

    Args:
        votes_of: Points of each response, NaN if unanswered, [rows, orders, votes, responses].
        best: Which responses are best by gold, [rows, responses].
    """
    answered = np.isfinite(votes_of[..., 0]).sum(axis=2, keepdims=True)
    means = np.nan_to_num(votes_of).sum(axis=2) / np.maximum(answered, 1)
    # Rounded, so that equal shares tie whatever the order of their sums.
    values = means.mean(axis=1).round(12)
    top = values == values.max(axis=1, keepdims=True)
    complete = (answered > 0).all(axis=(1, 2))
    credit: FloatArray = complete * (top & best).sum(axis=1) / top.sum(axis=1)
    return credit


def against_baselines(
    scored: Sequence[JudgmentRecord], table: ScoreTable, **drawn: Unpack[Bootstrap]
) -> dict[str, BaselineComparison]:
    """Each baseline's accuracy, and the model's minus it on the same comparisons, with a paired interval."""
    earned = TOP1.earned(table)
    compared = {}
    for name in sorted({name for record in scored for name in record.baselines}):
        run = np.array([name in record.baselines for record in scored], np.float64)
        scores = [record.baselines.get(name, ()) for record in scored]
        right = np.array(
            [top1_credit(*row) if row[0] else 0.0 for row in zip(scores, table.ranks, strict=True)]
        )
        value = ratio(right, run, table.group, **drawn)
        difference = ratio(earned - right, run, table.group, span=(-1.0, 1.0), **drawn)
        beaten = difference.low is not None and difference.low > 0
        reads = name in BASELINES and BASELINES[name].reads_context
        compared[name] = BaselineComparison(
            value=value, difference=difference, beaten=beaten, reads_context=reads
        )
    return compared


def recommended(table: ScoreTable, **drawn: Unpack[Bootstrap]) -> RecommendedSize | None:
    """How many comparisons, clustered like these, a paired comparison with another judge needs."""
    if not table.size.size:
        return None
    right, n = TOP1.earned(table), table.size.size
    accuracy = float(right.mean())
    independent = accuracy * (1 - accuracy) / n
    if table.groups == n:
        design = 1.0
    elif independent > 1e-12 and table.groups > 1:
        replicates = ratio_replicates(right, np.ones_like(right), table.group, **drawn)
        design = float(replicates.var()) * table.groups / (table.groups - 1) / independent
    else:  # without any variance, or in one group, each group counts once
        design = n / table.groups
    return RecommendedSize(
        difference=DIFFERENCE, power=POWER, comparisons=comparisons_needed(accuracy, max(1.0, design))
    )


def comparisons_needed(accuracy: float, design: float = 1.0) -> int:
    """Number of comparisons at which the paired interval excludes 0 with probability `POWER`.

    n = design (z_level + z_power)^2 [p (1 - p) + q (1 - q)] / (p - q)^2, with p the accuracy of this judge and q the
    worse of p - 0.1 and p + 0.1. The judges are assumed to be independent: if they err on the same comparisons, as most
    do, fewer are enough. `design` is the design effect, the variance relative to that of independent comparisons.
    """
    rivals = [q for q in (accuracy - DIFFERENCE, accuracy + DIFFERENCE) if 0 <= q <= 1]
    spread = accuracy * (1 - accuracy) + max(q * (1 - q) for q in rivals)
    reach = float(ndtri(0.5 + LEVEL / 2) + ndtri(POWER))
    return math.ceil(_ALLOWANCE * design * reach**2 * spread / DIFFERENCE**2)
