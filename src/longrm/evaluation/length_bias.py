"""Whether a judge prefers the longer response."""

from dataclasses import asdict
from typing import Any

import numpy as np

from longrm.evaluation.gold_pairs import GoldPairs
from longrm.evaluation.intervals import bootstrap_interval
from longrm.evaluation.metrics import UNDEFINED, Metric, ratio, ratio_replicates


def length_bias(pairs: GoldPairs, *, seed: int, resamples: int) -> dict[str, Any] | None:
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
    return {
        "better_longer": asdict(longer),
        "better_shorter": asdict(shorter),
        "difference": asdict(_difference(pairs, sides, longer, shorter, seed, resamples)),
    }


def _difference(
    pairs: GoldPairs, sides: Any, longer: Metric, shorter: Metric, seed: int, resamples: int
) -> Metric:
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
    return Metric(value, *limits, longer.n + shorter.n, groups.size)
