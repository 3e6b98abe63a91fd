"""Uncertainty of a value that was measured on clustered comparisons.

Comparisons of one group share a context, so they are no independent draws: the group is what is resampled.
"""

import numpy as np
from scipy import stats
from scipy.special import ndtr, ndtri

from longrm.evaluation.samples import FloatArray

LEVEL = 0.95
"""Two-sided coverage of every interval in this package."""

Z = float(ndtri(0.5 + LEVEL / 2))
"""Standard normal quantile of `LEVEL`."""


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's score interval of a share of n independent 0/1 outcomes (Wilson 1927)."""
    assert n > 0, "an interval needs outcomes"
    center = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * float(np.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2)))
    # At 0 and 1 the limit is exact; rounding would put it a hair inside, past the value itself.
    low = 0.0 if share == 0 else center - half
    return low, 1.0 if share == 1 else center + half


def unanimity_bounds(value: float, groups: int, span: tuple[float, float]) -> tuple[float, float]:
    """Bounds where every group gave the same value, so that resampling cannot show any spread.

    None of `groups` deviated; Wilson's upper limit for 0 of `groups` is the share that still may, and a
    deviating group may lie at either end of the metric's span. For a value of 1 in [0, 1] this is Wilson's
    interval with the number of groups as n.
    """
    may_deviate = Z**2 / (groups + Z**2)
    return value - may_deviate * (value - span[0]), value + may_deviate * (span[1] - value)


def expanded_levels(groups: int) -> FloatArray:
    """Percentiles that undo the narrowness of a bootstrap over few groups (expanded: Hesterberg 2015)."""
    return np.asarray(ndtr(_expanded_reach(groups)), np.float64)


def _expanded_reach(groups: int) -> FloatArray:
    """The same as standard normal quantiles."""
    reach = float(np.sqrt(groups / (groups - 1)) * stats.t.ppf(0.5 + LEVEL / 2, groups - 1))
    return np.array([-reach, reach])


def bootstrap_interval(
    value: float, replicates: FloatArray, groups: int, span: tuple[float, float]
) -> tuple[float, float]:
    """Percentiles of cluster-bootstrap replicates; `unanimity_bounds` where they all agree.

    The percentiles are `expanded_levels`, corrected for bias and skewness (BCa: Efron 1987). Plain ones miss
    too often near the ends of the span: at an accuracy of 0.95 in 64 dependent groups they cover 0.91, these
    0.93. The acceleration is a sixth of the skewness of the replicates, which is exact for a mean. With fewer
    than about ten groups no bootstrap is wide enough.

    Args:
        value: The metric on the data itself.
        replicates: The metric on every resample.
        groups: Groups that were resampled.
        span: Smallest and largest value that the metric can take.
    """
    if np.ptp(replicates) < 1e-12:
        return unanimity_bounds(value, groups, span)
    lesser = (np.mean(replicates < value) + np.mean(replicates <= value)) / 2
    bias = ndtri(np.clip(lesser, 1 / replicates.size, 1 - 1 / replicates.size))
    reach = bias + _expanded_reach(groups)
    stretch = 1 - stats.skew(replicates) / 6 * reach
    levels = np.where(stretch > 0, ndtr(bias + reach / stretch), reach > 0)
    low, high = np.quantile(replicates, levels)
    return float(low), float(high)
