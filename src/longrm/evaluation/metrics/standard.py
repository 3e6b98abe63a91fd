"""Pair accuracy, top-1, exact order, position match, Kendall's tau and areas under ROC curves."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from longrm.evaluation.metrics.metric import EvaluationMetric
from longrm.evaluation.table import RankedSample, RatioSample, ScoreTable, ordered_pairs, tie_blocks


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


def top1_credit(values: Sequence[float], ranks: Sequence[int]) -> float:
    """The probability that the response judged best, ties broken at random, is a best one."""
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


def exact_order_credit(values: Sequence[float], ranks: Sequence[int]) -> float:
    """The probability that the judged order, ties broken at random, is a gold order."""
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


def position_match_credit(values: Sequence[float], ranks: Sequence[int]) -> float:
    """The share of positions that are held by a response that belongs there."""
    gold, start, matches = sorted(ranks), 0, 0.0
    for block in tie_blocks(values):
        held = Counter(ranks[i] for i in block)
        # Ties are broken at random: every member is at each position of its block with equal probability.
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


def auc_margin(table: ScoreTable) -> RankedSample:
    """The margin of every gold-ordered pair against its negative; rows without scores are left out."""
    margins = [
        (row, values[i] - values[j])
        for row, (values, gold) in enumerate(zip(table.scores, table.ranks, strict=True))
        if values
        for i, j in ordered_pairs(gold)
    ]
    return RankedSample.of(
        margins, [(row, -margin) for row, margin in margins], rows=len(table.ranks), mirrored=True
    )


def auc_pooled(table: ScoreTable) -> RankedSample:
    """Scores of the responses that gold ranks best against all others; rows without scores are left out."""
    best: list[tuple[int, float]] = []
    others: list[tuple[int, float]] = []
    for row, (values, gold) in enumerate(zip(table.scores, table.ranks, strict=True)):
        top = min(gold)
        for value, rank in zip(values, gold, strict=False):
            (best if rank == top else others).append((row, value))
    return RankedSample.of(best, others, rows=len(table.ranks))


AUC_MARGIN = EvaluationMetric(
    "auc_margin",
    "AUC of margins",
    "AUC of the margins of gold pairs (positive) against their negatives; n counts pairs",
    auc_margin,
    needs="scores",
    chance=0.5,
    for_pairs=True,
    in_results=False,
)
AUC_POOLED = EvaluationMetric(
    "auc_pooled",
    "AUC, pooled",
    "AUC of the scores of best responses against all others, over all prompts; n counts responses",
    auc_pooled,
    needs="scores",
    chance=0.5,
    for_pairs=True,
    in_results=False,
)
