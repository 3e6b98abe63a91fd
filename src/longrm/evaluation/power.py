"""How many comparisons tell two judges apart."""

import math
from typing import Any

import numpy as np
from scipy.special import ndtri

from longrm.evaluation.intervals import LEVEL
from longrm.evaluation.metrics import ratio_replicates
from longrm.evaluation.table import ScoreTable

DIFFERENCE, POWER = 0.1, 0.95
"""A judge this much better or worse is to be told apart this often."""

# The accuracy is itself an estimate, and bootstrap intervals are a little wider than those of normal theory.
_ALLOWANCE = 1.1


def recommended(table: ScoreTable, *, seed: int, resamples: int) -> dict[str, Any] | None:
    """How many comparisons, clustered as these are, a paired comparison with another judge needs.

    Returns:
        None where nothing is scored.
    """
    if not table.size.size:
        return None
    right, n = table.order["top1"], table.size.size
    accuracy = float(right.mean())
    independent = accuracy * (1 - accuracy) / n
    if table.groups == n:
        design = 1.0
    elif independent > 1e-12 and table.groups > 1:
        drawn = ratio_replicates(right, np.ones_like(right), table.group, seed=seed, resamples=resamples)
        design = float(drawn.var()) * table.groups / (table.groups - 1) / independent
    else:  # without any spread, or in one group, each group counts once
        design = n / table.groups
    return {
        "difference": DIFFERENCE,
        "power": POWER,
        "comparisons": comparisons_needed(accuracy, max(1.0, design)),
    }


def comparisons_needed(accuracy: float, design: float = 1.0) -> int:
    """Comparisons at which the paired interval excludes 0 with probability `POWER`.

    n = design (z_level + z_power)^2 [p (1 - p) + q (1 - q)] / (p - q)^2, with q the worse of p - 0.1 and
    p + 0.1. The two judges are taken as independent: if they err on the same comparisons, as most
    judges do, fewer are enough; if one errs where the other is right, more are needed.

    Args:
        accuracy: p, of this judge.
        design: The variance of accuracy over that of as many independent comparisons.
    """
    rivals = [q for q in (accuracy - DIFFERENCE, accuracy + DIFFERENCE) if 0 <= q <= 1]
    spread = accuracy * (1 - accuracy) + max(q * (1 - q) for q in rivals)
    reach = float(ndtri(0.5 + LEVEL / 2) + ndtri(POWER))
    return math.ceil(_ALLOWANCE * design * reach**2 * spread / DIFFERENCE**2)
