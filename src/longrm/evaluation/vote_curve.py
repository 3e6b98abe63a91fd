"""Accuracy by the number of votes, from one run."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Unpack

import numpy as np

from longrm.evaluation.estimates import ratio
from longrm.evaluation.samples import Bootstrap, FloatArray
from longrm.evaluation.summaries import VoteCurve
from longrm.evaluation.table import ScoreTable
from longrm.reward_models.trials import by_order, points
from longrm.runs.records import JudgmentRecord

SUBSETS = 32
"""Subsets of votes that a point of the curve averages over at most; all of them where there are no more."""


def vote_curve(
    scored: Sequence[JudgmentRecord], table: ScoreTable, **drawn: Unpack[Bootstrap]
) -> VoteCurve | None:
    """The accuracy that k of the K votes would have had: the curve of vote@k.

    The same k votes of every order are taken, their points averaged as those of all votes are. The value is
    the mean over all subsets of k votes, or over `SUBSETS` drawn ones where there are more; it is exact for
    k = 1 and k = K. The table is made of the records.

    Returns:
        None where no order was asked twice. Comparisons with fewer than K votes in some order are left out.
    """
    asked = [by_order(record.trials) for record in scored]
    most = max((len(found) for orders in asked for found in orders), default=0)
    if most < 2:
        return None
    rows = [row for row, orders in enumerate(asked) if all(len(found) == most for found in orders)]
    shapes = {row: (len(asked[row]), len(scored[row].ranks or ())) for row in rows}
    curve = np.zeros((len(scored), most))
    for shape in set(shapes.values()):
        alike = [row for row in rows if shapes[row] == shape]
        silent = (np.nan,) * shape[1]
        votes_of = np.array([[[points(t) or silent for t in votes] for votes in asked[row]] for row in alike])
        ranks = np.array([scored[row].ranks for row in alike])
        best = ranks == ranks.min(axis=1, keepdims=True)
        for k in range(1, most + 1):
            subsets = _subsets(most, k, drawn["seed"])
            curve[alike, k - 1] = np.mean([_top1(votes_of[:, :, votes], best) for votes in subsets], axis=0)
    used = np.zeros(len(scored))
    used[rows] = 1
    return VoteCurve(at={str(k + 1): ratio(curve[:, k], used, table.group, **drawn) for k in range(most)})


def _subsets(votes: int, k: int, seed: int) -> Iterator[list[int]]:
    if math.comb(votes, k) <= SUBSETS:
        yield from map(list, combinations(range(votes), k))
        return
    rng = np.random.default_rng((seed, k))
    for _ in range(SUBSETS):
        yield rng.permutation(votes)[:k].tolist()


def _top1(votes_of: FloatArray, best: Any) -> FloatArray:
    """Top-1 of the mean over orders of the mean over answered votes, [rows]; 0 where an order has no answer.

    Args:
        votes_of: Points, [rows, orders, votes, responses].
        best: Which responses gold ranks best, [rows, responses].
    """
    answered = np.isfinite(votes_of[..., 0]).sum(axis=2, keepdims=True)
    means = np.nan_to_num(votes_of).sum(axis=2) / np.maximum(answered, 1)
    # Rounded, so that shares that are equal tie whatever the order in which they were added.
    values = means.mean(axis=1).round(12)
    top = values == values.max(axis=1, keepdims=True)
    complete = (answered > 0).all(axis=(1, 2))
    credit: FloatArray = complete * (top & best).sum(axis=1) / top.sum(axis=1)
    return credit
