"""Significance tests for two judges on the same comparisons."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from longrm.evaluation.table import FloatArray

# Gains are counted in sixtieths: pairs earn halves, and ties among up to six responses whole sixtieths.
_UNITS = 60
# The inverse Fourier transform below has rounding errors of about 1e-15; smaller p values are reported as this.
_SMALLEST = 1e-13


def sign_flip_p(gains: FloatArray) -> float:
    """Two-sided p value of groups' gains under the hypothesis that the two judges are exchangeable in each group.

    The sum of the gains is compared with that of all 2^groups ways to flip their signs, enumerated exactly. The test
    therefore holds its level however the comparisons of one group depend on each other, and with any number of groups.
    With one comparison per group and outcomes of 0 and 1 it is McNemar's exact test. If the judges differ in more than
    their means, it holds asymptotically in the number of groups (Canay, Romano and Shaikh 2017, "Randomization tests
    under an approximate symmetry assumption").

    Args:
        gains: The second judge's credit minus the first's, summed over each group, [groups]. Rounded to sixtieths,
            which keeps the symmetry and so the level.

    Returns:
        The p value, at least 1e-13.
    """
    units = np.rint(gains * _UNITS).astype(np.int64)
    sizes = np.abs(units[units != 0])
    if not sizes.size:
        return 1.0
    step = np.gcd.reduce(sizes)
    sizes, observed = sizes // step, abs(int(units.sum())) // int(step)
    # The characteristic function of a sum of randomly signed sizes is a product of cosines. Its inverse transform is
    # the exact distribution, as long as the period holds every possible sum.
    period = 2 * int(sizes.sum()) + 1
    angles = 2 * np.pi * np.arange(period) / period
    spectrum = np.ones(period)
    for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        spectrum *= np.cos(size * angles) ** count
    probabilities = np.fft.ifft(spectrum).real  # of the sums 0, 1, ..., then ..., -2, -1
    tail = float(probabilities[observed : period - observed + 1].sum())
    least = float(np.ldexp(1.0, 1 - sizes.size))  # the p value if all gains have one sign
    return min(1.0, max(tail, least, _SMALLEST))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """McNemar's exact test (1947): a binomial test of the discordant comparisons, assumed independent."""
    wins = only_first + only_second
    return float(stats.binomtest(only_first, wins).pvalue) if wins else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """P values adjusted for their number, which controls the family-wise error rate (Holm 1979)."""
    found = np.asarray(p_values, np.float64)
    order = np.argsort(found, kind="stable")
    raised = np.maximum.accumulate(found[order] * np.arange(found.size, 0, -1))
    adjusted = np.empty_like(found)
    adjusted[order] = np.minimum(raised, 1.0)
    return [float(p) for p in adjusted]
