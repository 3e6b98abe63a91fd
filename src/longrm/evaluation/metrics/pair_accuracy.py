"""Pair accuracy."""

import numpy as np

from longrm.evaluation.metrics.metric import EvaluationMetric
from longrm.evaluation.samples import RatioSample
from longrm.evaluation.table import ScoreTable, ordered_pairs


def pair_accuracy(table: ScoreTable) -> RatioSample:
    """The gold pairs in the right order, ties counting half, out of all gold pairs."""
    earned, pairs = [], []
    for values, ranks in zip(table.values, table.ranks, strict=True):
        gold = ordered_pairs(ranks)
        pairs.append(len(gold))
        earned.append(
            sum((values[i] > values[j]) + (values[i] == values[j]) / 2 for i, j in gold) if values else 0
        )
    return RatioSample(np.array(earned, np.float64), np.array(pairs, np.float64))


PAIR_ACCURACY = EvaluationMetric(
    "pair_accuracy",
    "pair accuracy",
    "share of the gold pairs in the right order; a tie counts half",
    pair_accuracy,
    for_pairs=True,
    in_results=False,
)
