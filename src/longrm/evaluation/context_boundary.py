"""The context boundary: the length at which accuracy falls through a threshold, by default (1 + chance) / 2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Unpack

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit, ndtr, ndtri

from longrm.evaluation import summary_schema as schema
from longrm.evaluation.estimates import Z, estimate_metric, expanded_reach
from longrm.evaluation.metrics import PAIR_ACCURACY, TOP1
from longrm.evaluation.table import (
    Bootstrap,
    FloatArray,
    IntArray,
    JudgmentTable,
    RatioSample,
    recoded,
    resampled_sums,
)
from longrm.runs.records import UNDEFINED, Estimate

EFFECTIVE_PAIRS = 300
"""Effective pairs per length below which the slope is the headline, not the boundary."""

# An accuracy from n outcomes near the threshold 3/4 has a 95% interval of 3/4 +- 1.96 sqrt(3/16 / n). For n < 12 it
# covers everything from chance (1/2) to 1, so a length interpolated from such a bucket is noise. (At the threshold 5/8
# of best of 4 the limit would be 7; one limit for all is on the safe side.)
FEWEST_OUTCOMES = 12
RESOLVING_POWER = 0.8
"""How often `pairs_to_resolve` comparisons distinguish a length from the threshold, if its accuracy is as measured."""

BELOW_RANGE, BEYOND_RANGE = -np.inf, np.inf
"""Crossings (as log2 length) before the first bucket, or after the last one."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    length: int
    accuracy: float
    low: float
    high: float
    n: int
    groups: int
    chance: float
    variance: float  # of the bootstrap replicates of the accuracy
    side: int  # of the threshold: 1 if the interval is above it, -1 if below, 0 if it contains it


def boundary_of(
    table: JudgmentTable, *, threshold: float | None, **drawn: Unpack[Bootstrap]
) -> schema.ContextBoundary | None:
    """Finds the context boundary; None if no answered comparison has a length.

    Lengths without any answer are ignored: it is not known how well the model judges there. The threshold is
    (1 + chance) / 2 by default.
    """
    if threshold is not None and not 0 < threshold < 1:
        raise ValueError(f"the accuracy threshold must be between 0 and 1, got {threshold}")
    lengths = np.unique(table.length[table.answered & (table.length > 0)])
    if not lengths.size:
        return None
    rows = np.isin(table.length, lengths)
    metric = TOP1 if bool((table.size[rows] > 2).all()) else PAIR_ACCURACY
    credits, tied = metric.credits(table), metric.credits(table, by_chance=True)
    chance = tied.subset(rows).value
    threshold = (1 + chance) / 2 if threshold is None else threshold
    buckets = []
    for length in lengths.tolist():
        here = table.length == length
        found = estimate_metric(table, metric, here, **drawn)
        assert found.value is not None and found.low is not None and found.high is not None  # noqa: PT018
        replicates = credits.subset(here).replicates(recoded(table.group[here]), **drawn)
        buckets.append(
            _Bucket(
                length=length,
                accuracy=found.value,
                low=found.low,
                high=found.high,
                n=found.n,
                groups=found.groups,
                chance=tied.subset(here).value,
                variance=float(replicates.var()),
                side=int(found.low >= threshold) - int(found.high < threshold),
            )
        )
    fit = monotone_fit(
        np.array([one.accuracy for one in buckets]), np.array([float(one.n) for one in buckets])
    )
    # Whether the monotone fit is on the same side of the threshold as every bucket's interval. If not, the curve has
    # no single fall through the threshold, which the fit assumes, and the crossing is undefined.
    fits = all((at >= threshold) == (one.side > 0) for at, one in zip(fit, buckets, strict=True) if one.side)
    effective = _effective_n(buckets)
    at_least, below = holds_and_fails([(one.length, one.low, one.high) for one in buckets], threshold)
    sample, length, group = credits.subset(rows), table.length[rows], recoded(table.group[rows])
    # The buckets on both sides of the crossing; one of them where it is outside the measured lengths.
    right = int((fit >= threshold).sum())
    neighbors = [buckets[index].length for index in (right - 1, right) if 0 <= index < len(buckets)]
    ends: tuple[float | None, float | None, float | None] = (None, None, None)
    more_lengths: tuple[int, ...] = ()
    if fits:
        value, low, high = _crossing(sample, length, group, buckets, threshold, drawn)
        if math.isfinite(value):
            first, last = _logistic_range(buckets, list(effective.values()), right, threshold, chance)
            sampled, low, high = high / max(low, 1.0), min(low, first), max(high, last)
            # Mainly widened by the interpolation: more pairs would hardly narrow it, lengths in between would.
            if math.isfinite(high) and high / max(low, 1.0) > sampled * (neighbors[1] / neighbors[0]) ** 0.25:
                more_lengths = _between(*neighbors)
        ends = value, low, high
    if (
        ends[0] is not None
        and math.isfinite(ends[0])
        and min(effective[length] for length in neighbors) < FEWEST_OUTCOMES
    ):
        # Too few outcomes to interpolate: only the intervals of the lengths count.
        ends = None, BELOW_RANGE if at_least is None else at_least, BEYOND_RANGE if below is None else below
        more_lengths = ()
    slope = UNDEFINED
    if fitted := logistic_slope(np.log2(length), sample.total, sample.weight, group):
        change, error = fitted
        slope = Estimate(change, change - Z * error, change + Z * error, sample.n, int(group.max()) + 1)
    above_chance = [bucket.length for bucket in takewhile(lambda one: one.low > one.chance, buckets)]
    return schema.ContextBoundary(
        metric="top1" if metric is TOP1 else "pair_accuracy",
        chance=chance,
        tau=threshold,
        status=_status([bucket.side for bucket in buckets], fits),
        at_least=at_least,
        below=below,
        estimate=_described(*ends),
        more_lengths=more_lengths,
        slope_per_doubling=slope,
        above_chance_reach=schema.AboveChanceReach(
            tokens=above_chance[-1] if above_chance else None,
            smallest_n=min(bucket.n for bucket in buckets),
            depends_on_n=True,
        ),
        effective_n={str(length): n for length, n in effective.items()},
        pairs_to_resolve=_pairs_to_resolve(buckets, effective, threshold) if fits else None,
        headline="slope" if np.median(list(effective.values())) < EFFECTIVE_PAIRS else "boundary",
        groups=min(bucket.groups for bucket in buckets),
    )


def holds_and_fails(
    intervals: Sequence[tuple[int, float, float]], threshold: float
) -> tuple[int | None, int | None]:
    """The longest length up to which every lower limit reaches a threshold; the shortest with its upper limit below it.

    `intervals` are (length, low, high), in ascending order of length.
    """
    unbroken = [length for length, _, _ in takewhile(lambda one: one[1] >= threshold, intervals)]
    below = next((length for length, _, high in intervals if high < threshold), None)
    return unbroken[-1] if unbroken else None, below


def _status(sides: Sequence[int], fits: bool) -> schema.BoundaryStatus:
    """The status of the boundary, defined at `ContextBoundary.status`."""
    clear = [side for side in sides if side]
    if clear != sorted(clear, reverse=True):
        return "rising" if clear == sorted(clear) else "not_monotone"
    if min(sides) > 0:
        return "beyond_range"
    if fits and sides[0] < 0:
        return "below_range"
    above = list(takewhile(lambda side: side > 0, sides))
    return "resolved" if fits and above and sides[len(above)] < 0 else "unresolved"


def _crossing(
    sample: RatioSample,
    length: IntArray,
    group: IntArray,
    buckets: Sequence[_Bucket],
    threshold: float,
    drawn: Bootstrap,
) -> tuple[float, float, float]:
    """The crossing on the data in tokens, infinite outside the measured lengths, and the limits of its interval.

    The limits are percentiles over resamples of all groups at once, so that a context that occurs at several lengths
    stays together.
    """
    lengths, groups = [bucket.length for bucket in buckets], int(group.max()) + 1
    here = length[:, None] == lengths  # [rows, lengths]
    columns = np.concatenate([sample.total[:, None] * here, sample.weight[:, None] * here], axis=1)
    right, n = np.split(resampled_sums(group, columns, **drawn), 2, axis=1)  # each [resamples, lengths]
    with np.errstate(invalid="ignore"):  # a bucket that a resample missed has n = 0 and is ignored
        accuracies = right / n
    x = np.log2(lengths)
    crossings = [crossing(x, *resample, threshold) for resample in zip(accuracies, n, strict=True)]
    sizes = np.array([float(one.n) for one in buckets])
    value = crossing(x, np.array([one.accuracy for one in buckets]), sizes, threshold)
    low, high = BELOW_RANGE, BEYOND_RANGE  # of one group, which cannot be resampled
    if groups > 1:
        levels = ndtr(expanded_reach(groups))
        low, high = np.quantile(crossings, levels, method="inverted_cdf")
    low, high = min(low, value), max(high, value)  # a percentile interval need not contain its value
    value, low, high = (2.0 ** float(end) if math.isfinite(end) else end for end in (value, low, high))
    return value, low, high


def _logistic_range(
    buckets: Sequence[_Bucket], effective: Sequence[float], right: int, threshold: float, chance: float
) -> tuple[float, float]:
    """Where a logistic curve may cross the threshold between the buckets right - 1 and `right`, in tokens.

    Straight lines between lengths are wrong where accuracy falls within one step: it may fall anywhere in it. This is
    the 95% likelihood interval of the crossing of curves of any steepness that fall from 1, or the accuracy before both
    buckets, to chance, or the accuracy after them; its part between the two. (infinity, 0) if there is none.
    """
    x = np.log2([one.length for one in buckets])
    accuracy, n = np.array([one.accuracy for one in buckets]), np.array(effective)
    tops, bottoms = [1.0], [chance]
    if right > 1:
        tops.append(float(np.average(accuracy[: right - 1], weights=n[: right - 1])))
    if right < len(buckets) - 1:
        bottoms.append(float(np.average(accuracy[right + 1 :], weights=n[right + 1 :])))
    places = np.linspace(x[0], x[-1], 1 + round(32 * (x[-1] - x[0])))
    steepness = np.geomspace(0.25, 64, 25)  # in log-odds per doubling
    distance = steepness[:, None, None] * (x - places[:, None])  # [steepness, places, lengths]
    best = np.full(places.size, -np.inf)
    for top, bottom in product(tops, bottoms):
        if bottom < threshold < top:
            start = math.log((threshold - bottom) / (top - threshold))
            p = np.clip(bottom + (top - bottom) * expit(start - distance), 1e-4, 1 - 1e-4)
            fit = (n * (accuracy * np.log(p) + (1 - accuracy) * np.log1p(-p))).sum(axis=-1)
            best = np.maximum(best, fit.max(axis=0))
    inside = places[(best > best.max() - Z**2 / 2) & (places >= x[right - 1]) & (places <= x[right])]
    return (float(2 ** inside.min()), float(2 ** inside.max())) if inside.size else (math.inf, 0.0)


def _between(left: int, right: int) -> tuple[int, ...]:
    """Three lengths between two, evenly spaced in log2, as round as a 32nd of the shorter one allows."""
    unit = max(1, left // 32)
    return tuple(unit * round(left * (right / left) ** share / unit) for share in (0.25, 0.5, 0.75))


def _described(value: float | None, low: float | None, high: float | None) -> schema.Crossing:
    """A crossing with ends in tokens, infinite outside the measured lengths; None is undefined."""

    def place(end: float | None) -> schema.CrossingSide:
        if end is None:
            return "undefined"
        return (
            "below_range" if end == BELOW_RANGE else "beyond_range" if end == BEYOND_RANGE else "within_range"
        )

    def tokens(end: float | None) -> float | None:
        return None if end is None or not math.isfinite(end) else float(end)

    ends = {"value": value, "low": low, "high": high}
    return schema.Crossing(
        **{name: tokens(end) for name, end in ends.items()},
        **{f"{name}_place": place(end) for name, end in ends.items()},
    )


def _effective_n(buckets: Sequence[_Bucket]) -> dict[int, float]:
    """By length, n over the design effect (the variance over that of independent outcomes), where that is above 1.

    The design effect of a bucket without variance (for example, all right) is unknown: the pooled one of the others is
    used. If no bucket has variance, each group counts as one outcome.
    """
    binomial = {one.length: one.accuracy * (1 - one.accuracy) / one.n for one in buckets}
    varied = [one for one in buckets if one.variance > 1e-12 and 0 < one.accuracy < 1]
    if not varied:
        return {one.length: float(one.groups) for one in buckets}
    pooled = sum(one.variance for one in varied) / sum(binomial[one.length] for one in varied)
    design = {one.length: one.variance / binomial[one.length] for one in varied}
    return {one.length: one.n / max(1.0, design.get(one.length, pooled)) for one in buckets}


def _pairs_to_resolve(
    buckets: Sequence[_Bucket], effective: dict[int, float], threshold: float
) -> int | None:
    """Comparisons per length that distinguish the lengths before the first failing one from the threshold.

    A one-sample test of a proportion p against the threshold t needs (z_level sqrt(t (1 - t)) + z_power
    sqrt(p (1 - p)))^2 / (p - t)^2 independent outcomes, and that times the design effect. None if no length
    is unresolved, or if for some length p is unknown (too few outcomes), p equals t, or there are that many already.
    """
    needed = 0
    for bucket in takewhile(lambda one: one.side >= 0, buckets):
        if bucket.side > 0:
            continue
        p = bucket.accuracy
        if effective[bucket.length] < FEWEST_OUTCOMES or p == threshold:
            return None
        spread = Z * math.sqrt(threshold * (1 - threshold))
        spread += float(ndtri(RESOLVING_POWER)) * math.sqrt(p * (1 - p))
        design = bucket.n / effective[bucket.length]
        pairs = math.ceil(design * (spread / (p - threshold)) ** 2)
        if pairs <= bucket.n:  # its interval is wide for another reason, such as few contexts
            return None
        needed = max(needed, pairs)
    return needed or None


def monotone_fit(accuracy: FloatArray, n: FloatArray) -> FloatArray:
    """The non-increasing curve nearest to the accuracies, weighted by n (isotonic regression)."""
    return np.asarray(isotonic_regression(accuracy, weights=n, increasing=False).x)


def crossing(log_lengths: FloatArray, accuracy: FloatArray, n: FloatArray, threshold: float) -> float:
    """log2 of the length at which the monotone fit of accuracy falls through the threshold, or an infinite value.

    The fit is linear in log2 length between buckets; buckets with n = 0 are ignored.
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


def logistic_slope(
    x: FloatArray, successes: FloatArray, trials: FloatArray, group: IntArray
) -> tuple[float, float] | None:
    """The slope of a logistic regression of successes out of trials on x, and its error, clustered on `group`.

    Newton's method, then the sandwich (Liang and Zeger 1986) with the correction G/(G-1) (n-1)/(n-2) for G groups and n
    rows. None if no finite slope exists: one length, one group, or separated outcomes.
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
