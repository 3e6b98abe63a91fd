"""Losses as pure functions of tensors: each returns the loss and what else is worth logging.

Letters: S all responses of a batch, laid one comparison after the other.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def bradley_terry(
    scores: Float[Tensor, " S"], ranks: Sequence[Sequence[int]]
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """Bradley-Terry loss over comparisons of N >= 2 responses: mean of -log sigmoid(r_better - r_worse).

    The mean runs over the gold-ordered pairs of each comparison, then over the comparisons, so that every
    comparison weighs the same whatever its N (Bradley and Terry 1952; LongRM, section on DisRM training).
    Tied responses form no pair.

    Args:
        scores: Rewards of all responses, one comparison after the other.
        ranks: Gold ranks of every comparison in the same order, 1 = best; their number is S.

    Returns:
        The loss, and `accuracy`: the share of gold-ordered pairs in the right order, ties counted half.

    Raises:
        ValueError: A comparison has no two responses of different rank, so it teaches nothing.
    """
    better, worse, weights = _ordered_pairs(ranks)
    assert len(scores) == sum(map(len, ranks)), "one score a ranked response"
    margins = scores[better] - scores[worse]
    loss = -(F.logsigmoid(margins) * torch.tensor(weights, dtype=scores.dtype, device=scores.device)).sum()
    with torch.no_grad():
        accuracy = (0.5 * (torch.sign(margins) + 1.0)).mean().item()
    return loss, {"accuracy": accuracy, "pairs": float(len(better))}


def _ordered_pairs(ranks: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[float]]:
    better: list[int] = []
    worse: list[int] = []
    weights: list[float] = []
    start = 0
    for own in ranks:
        pairs = [(i, j) for i, high in enumerate(own) for j, low in enumerate(own) if high < low]
        if not pairs:
            raise ValueError("a comparison whose responses are all tied cannot be trained on")
        better += [start + i for i, _ in pairs]
        worse += [start + j for _, j in pairs]
        weights += [1.0 / (len(pairs) * len(ranks))] * len(pairs)
        start += len(own)
    return better, worse, weights
