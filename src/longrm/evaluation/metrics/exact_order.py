"""Exact order."""

import math
from collections import Counter
from collections.abc import Sequence

from longrm.evaluation.metrics.metric import EvaluationMetric
from longrm.evaluation.table import tie_blocks


def exact_order_credit(values: Sequence[float], ranks: Sequence[int]) -> float:
    """The probability that the judged order, its ties drawn, is a gold order."""
    share, last = 1.0, 0
    for block in tie_blocks(values):
        block_ranks = [ranks[i] for i in block]
        if min(block_ranks) < last:
            return 0.0
        last = max(block_ranks)
        right = math.prod(math.factorial(count) for count in Counter(block_ranks).values())
        share *= right / math.factorial(len(block))
    return share


EXACT_ORDER = EvaluationMetric(
    "exact_order",
    "exact order",
    "share of comparisons whose whole order is right (the random row of the paper's tables)",
    lambda table: table.per_comparison(exact_order_credit),
    in_results=False,
)
