"""The model against the baselines that were run beside it."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from longrm.evaluation.metrics import ratio
from longrm.evaluation.scoring import score_order
from longrm.evaluation.table import ScoreTable
from longrm.runs.records import JudgmentRecord


def against_baselines(
    scored: Sequence[JudgmentRecord], table: ScoreTable, *, seed: int, resamples: int
) -> dict[str, Any]:
    """Each baseline's accuracy, and the model's minus it on the same comparisons, paired.

    A baseline is beaten where the lower limit of that difference is above 0.

    Args:
        scored: The records of the table's rows.
        table: Their scores.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
    """
    found = {}
    for name in sorted({name for record in scored for name in record.baselines}):
        run = np.array([name in record.baselines for record in scored])
        right = np.array([_top1(record, record.baselines.get(name, ())) for record in scored])
        group, weight = table.group, run.astype(np.float64)
        value = ratio(right, weight, group, seed=seed, resamples=resamples)
        difference = ratio(
            table.order["top1"] - right, weight, group, span=(-1.0, 1.0), seed=seed, resamples=resamples
        )
        beaten = difference.low is not None and difference.low > 0
        found[name] = {"value": asdict(value), "difference": asdict(difference), "beaten": beaten}
    return found


def _top1(record: JudgmentRecord, scores: Sequence[float]) -> float:
    return score_order(scores, record.ranks or ()).top1 if scores else 0.0
