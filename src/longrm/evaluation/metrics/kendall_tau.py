"""Kendall's tau-b."""

import math
from collections.abc import Sequence

from longrm.evaluation.metrics.metric import EvaluationMetric
from longrm.evaluation.table import ordered_pairs, tie_blocks


def kendall_tau_credit(values: Sequence[float], ranks: Sequence[int]) -> float:
    """Tau-b (Kendall 1945) of the judged order and the gold one; 0 where all judged values tie."""
    pairs = ordered_pairs(ranks)
    surplus = sum((values[i] > values[j]) - (values[i] < values[j]) for i, j in pairs)
    tied = sum(math.comb(len(block), 2) for block in tie_blocks(values))
    judged_pairs = math.comb(len(values), 2) - tied
    return surplus / math.sqrt(len(pairs) * judged_pairs) if judged_pairs else 0.0


KENDALL_TAU = EvaluationMetric(
    "kendall_tau",
    "Kendall tau",
    "mean of Kendall's tau-b between the judged order and the gold one",
    lambda table: table.per_comparison(kendall_tau_credit),
    span=(-1.0, 1.0),
    in_results=False,
)
