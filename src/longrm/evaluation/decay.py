"""How accuracy falls with length: a monotone fit with its crossing, and a logistic slope."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit

from longrm.evaluation.samples import FloatArray, IntArray

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
