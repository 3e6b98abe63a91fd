"""The model against other judges: the baselines beside it, and how many comparisons tell another one apart."""

import math
from collections.abc import Sequence
from typing import Unpack

import numpy as np
from scipy.special import ndtri

from longrm.evaluation.estimates import LEVEL, ratio
from longrm.evaluation.metrics import TOP1
from longrm.evaluation.metrics.top1 import top1_credit
from longrm.evaluation.samples import Bootstrap, ratio_replicates
from longrm.evaluation.summaries import BaselineComparison, RecommendedSize
from longrm.evaluation.table import ScoreTable
from longrm.reward_models.baselines import BASELINES
from longrm.runs.records import JudgmentRecord

DIFFERENCE, POWER = 0.1, 0.95
"""A judge this much better or worse is to be told apart this often."""

# The accuracy is itself an estimate, and bootstrap intervals are a little wider than those of normal theory.
_ALLOWANCE = 1.1


def against_baselines(
    scored: Sequence[JudgmentRecord], table: ScoreTable, **drawn: Unpack[Bootstrap]
) -> dict[str, BaselineComparison]:
    """Each baseline's accuracy, and the model's minus it on the same comparisons, paired.

    A baseline is beaten where the lower limit of that difference is above 0. The table is made of the records.
    """
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
    """How many comparisons, clustered as these are, a paired one with another judge needs; None if none is scored."""
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
    else:  # without any spread, or in one group, each group counts once
        design = n / table.groups
    return RecommendedSize(
        difference=DIFFERENCE, power=POWER, comparisons=comparisons_needed(accuracy, max(1.0, design))
    )


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
