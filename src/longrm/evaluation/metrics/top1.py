"""Top-1 accuracy."""

from collections.abc import Sequence

from longrm.evaluation.metrics.metric import EvaluationMetric


def top1_credit(values: Sequence[float], ranks: Sequence[int]) -> float:
    """The probability that the response judged best, drawn where several tie, is a best one."""
    best, highest = min(ranks), max(values)
    top = [rank for value, rank in zip(values, ranks, strict=True) if value == highest]
    return sum(rank == best for rank in top) / len(top)


TOP1 = EvaluationMetric(
    "top1",
    "top-1",
    "share of comparisons whose best response is judged best",
    lambda table: table.per_comparison(top1_credit),
    in_results=False,
)
