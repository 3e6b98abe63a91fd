"""The context boundary: the length at which accuracy falls through a threshold, (1 + chance) / 2 unless set."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Unpack

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit, ndtri

from longrm.evaluation.estimates import Z, estimate_metric, expanded_levels
from longrm.evaluation.metrics import PAIR_ACCURACY, TOP1, EvaluationMetric
from longrm.evaluation.summaries import (
    AboveChanceReach,
    BoundaryStatus,
    ContextBoundary,
    Crossing,
    CrossingSide,
)
from longrm.evaluation.table import Bootstrap, FloatArray, IntArray, RatioSample, ScoreTable, cluster_weights
from longrm.runs.records import UNDEFINED, Estimate

EFFECTIVE_PAIRS = 300
"""Effective pairs a bucket below which the slope is the headline, not the boundary."""


# An accuracy from n outcomes near the threshold 3/4 has a 95% interval of 3/4 +- 1.96 sqrt(3/16 / n). Below n = 12 it
# reaches from chance (1/2) to 1: it excludes no accuracy that a judge can have, and a length interpolated from it is
# noise. (At the threshold 5/8 of best of 4 the same takes 7; one limit for all errs on the safe side.)
FEWEST_OUTCOMES = 12
RESOLVING_POWER = 0.8
"""How often as many comparisons as advised tell a length from the threshold, if its accuracy is as measured."""

NO_CROSSING = Crossing(
    value=None, low=None, high=None, value_place="undefined", low_place="undefined", high_place="undefined"
)


@dataclass(frozen=True, slots=True)
class _Bucket:
    length: int
    value: float
    low: float
    high: float
    n: int
    groups: int
    chance: float
    variance: float

    @property
    def binomial_variance(self) -> float:
        """The variance that n independent outcomes would have."""
        return self.value * (1 - self.value) / self.n

    @property
    def varies(self) -> bool:
        """Whether its groups differ, so that it tells how much the outcomes of one group depend."""
        return self.variance > 1e-12 and 0 < self.value < 1


def boundary_of(
    table: ScoreTable, *, threshold: float | None, **drawn: Unpack[Bootstrap]
) -> ContextBoundary | None:
    """Finds the context boundary; None where no answered comparison knows its length.

    A length without any answer plays no part: how well the model judges there is not known.

    Args:
        table: The judged comparisons.
        threshold: Accuracy that defines the boundary; (1 + chance) / 2 if None.
        drawn: How intervals are drawn.

    Raises:
        ValueError: If the accuracy threshold is no fraction above 0 and below 1.
    """
    if threshold is not None and not 0 < threshold < 1:
        raise ValueError(
            f"the accuracy threshold lies between 0 and 1, got {threshold}; 0.75 is usual for pairs"
        )
    measured = table.length[table.answered & (table.length > 0)]
    if not measured.size:
        return None
    table = table.subset(np.isin(table.length, measured))
    metric = TOP1 if bool((table.size > 2).all()) else PAIR_ACCURACY
    level = metric.chance_on(table)
    threshold = (1 + level) / 2 if threshold is None else threshold
    buckets = [_bucket(table, length, metric, drawn) for length in np.unique(table.length).tolist()]
    fit = monotone_fit(*_measured(buckets))
    sides = [_side(bucket, threshold) for bucket in buckets]
    fitted = all((at >= threshold) == (side > 0) for at, side in zip(fit, sides, strict=True) if side)
    effective = _effective_n(buckets)
    at_least, below = holds_and_fails([(one.length, one.low, one.high) for one in buckets], threshold)
    estimate = NO_CROSSING
    if fitted:
        estimate = _crossing(table, buckets, metric, threshold, drawn)
        around = [buckets[index].length for index in straddle(fit, threshold)]
        if estimate.value is not None and min(effective[length] for length in around) < FEWEST_OUTCOMES:
            estimate = _bounds(at_least, below)
    return ContextBoundary(
        metric="top1" if metric is TOP1 else "pair_accuracy",
        chance=level,
        tau=threshold,
        status=_status(sides, fitted),
        at_least=at_least,
        below=below,
        estimate=estimate,
        slope_per_doubling=_slope(table, metric),
        above_chance_reach=AboveChanceReach(
            tokens=_reach(buckets, [bucket.low > bucket.chance for bucket in buckets]),
            smallest_n=min(bucket.n for bucket in buckets),
            depends_on_n=True,
        ),
        effective_n={str(length): n for length, n in effective.items()},
        pairs_to_resolve=_pairs_to_resolve(buckets, sides, effective, threshold) if fitted else None,
        headline="slope" if np.median(list(effective.values())) < EFFECTIVE_PAIRS else "boundary",
        groups=min(bucket.groups for bucket in buckets),
    )


def holds_and_fails(
    intervals: Sequence[tuple[int, float, float]], threshold: float
) -> tuple[int | None, int | None]:
    """The longest length up to which every interval reaches a threshold, and the shortest at which one lies below it.

    Args:
        intervals: Lengths, shortest first, each with the limits of its interval.
        threshold: What the lower limit must reach, or the upper one miss.
    """
    unbroken = list(takewhile(lambda one: one[1] >= threshold, intervals))
    below = next((length for length, _, high in intervals if high < threshold), None)
    return unbroken[-1][0] if unbroken else None, below


def _bucket(table: ScoreTable, length: int, metric: EvaluationMetric, drawn: Bootstrap) -> _Bucket:
    part = table.subset(table.length == length)
    estimate = estimate_metric(part, metric, **drawn)
    assert estimate.value is not None, "every bucket has rows"
    assert estimate.low is not None, "every value has an interval"
    assert estimate.high is not None, "every value has an interval"
    return _Bucket(
        length=length,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        n=estimate.n,
        groups=estimate.groups,
        chance=metric.chance_on(part),
        variance=float(metric.sample(part).replicates(part.group, **drawn).var()),
    )


def _measured(buckets: Sequence[_Bucket]) -> tuple[FloatArray, FloatArray]:
    """The accuracy of every bucket, and how much it weighs in a fit."""
    return np.array([bucket.value for bucket in buckets]), np.array([float(b.n) for b in buckets])


def _reach(buckets: Sequence[_Bucket], holds: Sequence[bool]) -> int | None:
    """The longest length up to which a condition holds without a gap."""
    unbroken = list(takewhile(lambda pair: pair[1], zip(buckets, holds, strict=True)))
    return unbroken[-1][0].length if unbroken else None


def _side(bucket: _Bucket, threshold: float) -> int:
    """On which side of the threshold the interval of a bucket lies: 1 above, -1 below, 0 where it holds it."""
    return int(bucket.low >= threshold) - int(bucket.high < threshold)


def _status(sides: Sequence[int], fitted: bool) -> BoundaryStatus:
    """What the sides of all buckets say together; `fitted` tells whether the monotone fit lies on all of them."""
    clear = [side for side in sides if side]
    if clear != sorted(clear, reverse=True):
        return "rising" if clear == sorted(clear) else "not_monotone"
    if min(sides) > 0:
        return "beyond_range"
    if fitted and sides[0] < 0:
        return "below_range"
    above = list(takewhile(lambda side: side > 0, sides))
    return "resolved" if fitted and above and sides[len(above)] < 0 else "unresolved"


def _crossing(
    table: ScoreTable,
    buckets: Sequence[_Bucket],
    metric: EvaluationMetric,
    threshold: float,
    drawn: Bootstrap,
) -> Crossing:
    """The crossing on the data, and its percentiles over resamples of all groups at once.

    Groups are drawn over all lengths, so that a context that occurs at several lengths stays together.
    """
    log_lengths = np.log2([bucket.length for bucket in buckets])
    place = np.searchsorted([bucket.length for bucket in buckets], table.length)
    shape = table.groups, len(buckets)
    cells = table.group * shape[1] + place
    weights = cluster_weights(table.groups, drawn["resamples"], drawn["seed"]).astype(np.float64)
    right, n = (
        weights @ np.bincount(cells, column, math.prod(shape)).reshape(shape).astype(np.float64)
        for column in _columns(table, metric)
    )
    with np.errstate(invalid="ignore"):  # a bucket that a resample missed has n = 0 and is ignored
        accuracies = right / n
    crossings = [crossing(log_lengths, *resample, threshold) for resample in zip(accuracies, n, strict=True)]
    value = crossing(log_lengths, *_measured(buckets), threshold)
    # One group cannot be resampled: its interval is as wide as can be.
    low, high = (
        np.quantile(crossings, expanded_levels(table.groups), method="inverted_cdf")
        if table.groups > 1
        else (BELOW_RANGE, BEYOND_RANGE)
    )
    low, high = min(low, value), max(high, value)  # a percentile interval need not hold its value
    return Crossing(
        value=_tokens(value),
        low=_tokens(low),
        high=_tokens(high),
        value_place=_place(value),
        low_place=_place(low),
        high_place=_place(high),
    )


def _bounds(at_least: int | None, below: int | None) -> Crossing:
    """What the intervals of the lengths alone say: no value, and an end outside the range where none excludes it."""
    return Crossing(
        value=None,
        low=None if at_least is None else float(at_least),
        high=None if below is None else float(below),
        value_place="undefined",
        low_place="below_range" if at_least is None else "within_range",
        high_place="beyond_range" if below is None else "within_range",
    )


def _tokens(end: float) -> float | None:
    return 2.0 ** float(end) if math.isfinite(end) else None


def _place(end: float) -> CrossingSide:
    if end == BELOW_RANGE:
        return "below_range"
    return "beyond_range" if end == BEYOND_RANGE else "within_range"


def _columns(table: ScoreTable, metric: EvaluationMetric) -> tuple[FloatArray, FloatArray]:
    """What each row earns, and what it could."""
    sample = metric.sample(table)
    assert isinstance(sample, RatioSample), "a boundary is of an accuracy"
    return sample.total, sample.weight


def _slope(table: ScoreTable, metric: EvaluationMetric) -> Estimate:
    right, n = _columns(table, metric)
    slope = logistic_slope(np.log2(table.length), right, n, table.group)
    if slope is None:
        return UNDEFINED
    value, error = slope
    return Estimate(value, value - Z * error, value + Z * error, round(n.sum()), table.groups)


def _effective_n(buckets: Sequence[_Bucket]) -> dict[int, float]:
    """By length, n over the design effect (the variance over that of independent outcomes), where that is above 1.

    A bucket without spread (all right) says nothing about its design effect and takes that of all others together;
    where no bucket has any, each group counts once.
    """
    varied = [bucket for bucket in buckets if bucket.varies]
    if not varied:
        return {bucket.length: float(bucket.groups) for bucket in buckets}
    pooled = sum(bucket.variance for bucket in varied) / sum(bucket.binomial_variance for bucket in varied)
    return {
        bucket.length: bucket.n
        / max(1.0, bucket.variance / bucket.binomial_variance if bucket.varies else pooled)
        for bucket in buckets
    }


def _pairs_to_resolve(
    buckets: Sequence[_Bucket], sides: Sequence[int], effective: dict[int, float], threshold: float
) -> int | None:
    """Comparisons a length at which the lengths up to the first that fails would be told from the threshold.

    A one-sample test of a proportion p against the threshold t needs (z_level sqrt(t (1 - t)) + z_power
    sqrt(p (1 - p)))^2 / (p - t)^2 independent outcomes, and that times the design effect.

    Returns:
        None where no length is unresolved, where one has too few outcomes for a guess of p or lies on the threshold,
        and where no more comparisons are needed than the length has.
    """
    needed = 0
    for bucket, side in zip(buckets, sides, strict=True):
        if side < 0:
            break
        if side > 0:
            continue
        if effective[bucket.length] < FEWEST_OUTCOMES or bucket.value == threshold:
            return None
        spread = Z * math.sqrt(threshold * (1 - threshold))
        spread += float(ndtri(RESOLVING_POWER)) * math.sqrt(bucket.value * (1 - bucket.value))
        design = bucket.n / effective[bucket.length]
        asked = math.ceil(design * (spread / (bucket.value - threshold)) ** 2)
        if asked <= bucket.n:  # its interval is wide for another reason, such as few contexts
            return None
        needed = max(needed, asked)
    return needed or None


BELOW_RANGE, BEYOND_RANGE = -np.inf, np.inf
"""Crossings (as log2 length) that lie before the first bucket, or after the last one."""


def monotone_fit(accuracy: FloatArray, n: FloatArray) -> FloatArray:
    """The curve nearest to the accuracies, weighted with n, that never rises with length (isotonic regression)."""
    return np.asarray(isotonic_regression(accuracy, weights=n, increasing=False).x)


def crossing(log_lengths: FloatArray, accuracy: FloatArray, n: FloatArray, threshold: float) -> float:
    """Where the monotone fit of accuracy falls through the threshold.

    It is linear in log2 length between buckets; buckets with n = 0 are ignored.

    Returns:
        log2 of the length; `BELOW_RANGE` or `BEYOND_RANGE` where the fit does not cross within the buckets.
    """
    used = n > 0
    x = log_lengths[used]
    fit = monotone_fit(accuracy[used], n[used])
    fallen = np.flatnonzero(fit < threshold)
    if not fallen.size:
        return BEYOND_RANGE
    right = fallen[0]
    if right == 0:
        return BELOW_RANGE
    share = (fit[right - 1] - threshold) / (fit[right - 1] - fit[right])
    return float(x[right - 1] + share * (x[right] - x[right - 1]))


def straddle(fit: FloatArray, threshold: float) -> Sequence[int]:
    """The buckets on both sides of the crossing of a monotone fit; the nearest one where there is none."""
    right = int((fit >= threshold).sum())
    return [index for index in (right - 1, right) if 0 <= index < fit.size]


def logistic_slope(
    x: FloatArray, successes: FloatArray, trials: FloatArray, group: IntArray
) -> tuple[float, float] | None:
    """The slope of a logistic regression of successes out of trials on x, and its error, clustered on `group`.

    Newton's method, then the sandwich (Liang and Zeger 1986) with the correction G/(G-1) (n-1)/(n-2) for G
    groups and n rows.

    Returns:
        None where no finite slope exists (one length, one group, or separated outcomes).
    """
    groups = int(group.max()) + 1 if group.size else 0
    if groups < 2 or x.size < 3 or np.ptp(x) == 0:
        return None
    center = x.mean()
    design = np.column_stack([np.ones_like(x), x - center])
    beta = np.zeros(2)
    for _ in range(50):
        eta = design @ beta
        if np.abs(eta).max() > 30:
            return None  # the likelihood rises for ever: all right, all wrong, or separated by length
        p = expit(eta)
        information = (design.T * (trials * p * (1 - p))) @ design
        step = np.linalg.solve(information, design.T @ (successes - trials * p))
        beta = beta + step
        if np.abs(step).max() < 1e-10:
            break
    else:
        return None
    residual = successes - trials * expit(design @ beta)
    scores = np.stack([np.bincount(group, residual * column) for column in design.T], axis=1)
    bread = np.linalg.inv(information)
    correction = groups / (groups - 1) * (x.size - 1) / (x.size - 2)
    variance = correction * (bread @ (scores.T @ scores) @ bread)[1, 1]
    return float(beta[1]), float(np.sqrt(variance))
