"""Position match (LongRM, Eq. 2)."""

from collections import Counter
from collections.abc import Sequence

from longrm.evaluation.metrics.metric import EvaluationMetric
from longrm.evaluation.table import tie_blocks


def position_match_credit(values: Sequence[float], ranks: Sequence[int]) -> float:
    """The share of positions that are held by a response that belongs there."""
    gold, start, matches = sorted(ranks), 0, 0.0
    for block in tie_blocks(values):
        held = Counter(ranks[i] for i in block)
        # Every member stands at each position of its block with equal probability.
        matches += sum(held[rank] for rank in gold[start : start + len(block)]) / len(block)
        start += len(block)
    return matches / len(ranks)


POSITION_MATCH = EvaluationMetric(
    "position_match",
    "position match",
    "share of positions held by a response that belongs there (LongRM, Eq. 2)",
    lambda table: table.per_comparison(position_match_credit),
    in_results=False,
)
