"""Losses of scores with a gold order.

Letters: S all responses of a batch, laid one comparison after the other; B comparisons; N responses of the largest
comparison. The grid of a batch has a row for every comparison; `gold` is 0 where a smaller one has no response.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

RankingLossResult = tuple[Float[Tensor, ""], dict[str, float]]
"""The loss, and its figures: `accuracy`, the share of gold-ordered pairs in the right order, equal scores and (where
they are read) tied responses counted half; `margin`, by how much the better response leads; `score`, the mean."""


def bradley_terry(
    scores: Float[Tensor, " S"],
    ranks: Sequence[Sequence[int]],
    *,
    margins: Sequence[float] | None = None,
    probabilities: Sequence[float] | None = None,
    ties: bool = False,
) -> RankingLossResult:
    """The mean over the gold-ordered pairs of a comparison of -log sigmoid(r_better - r_worse - margin).

    Bradley and Terry 1952; LongRM, section on DisRM training; the margin as in Llama 2 (Touvron et al. 2023).

    Args:
        scores: Rewards of all responses, one comparison after the other.
        ranks: Gold ranks of every comparison in the same order, 1 = best, equal ranks tie; their number is S.
        margins: Of every comparison; none by default.
        probabilities: That the gold order of a comparison is right; 1 by default. With p the loss is
            -p log sigmoid(x) - (1 - p) log sigmoid(-x), so 1 - p smooths labels.
        ties: Tied responses form pairs too, half won and half lost, which pulls their scores together; it is the
            loss at p = 1/2, not a model of ties with a parameter of its own (Rao and Kupper 1967; Davidson 1970).
            By default they form no pair.

    Raises:
        ValueError: A comparison has no pair, so it teaches nothing.
    """
    if not ties:
        _check_ordered(ranks)
    grid, gold = _grid(scores, ranks)
    better, tied = _better(gold), _tied(gold)
    pairs = better | tied if ties else better
    leads = grid[:, :, None] - grid[:, None, :]
    reduced = torch.where(better, leads - _column(margins, 0.0, leads)[:, :, None], leads)
    sure = torch.where(better, _column(probabilities, 1.0, leads)[:, :, None], 0.5)
    return _mean(_logistic(reduced, sure), pairs), _figures(grid, gold, pairs)


def hardest(
    scores: Float[Tensor, " S"],
    ranks: Sequence[Sequence[int]],
    *,
    margins: Sequence[float] | None = None,
    probabilities: Sequence[float] | None = None,
) -> RankingLossResult:
    """The best response against the highest scored worse one: -log sigmoid(r_best - max r_worse - margin).

    The arguments are those of `bradley_terry`. Where several responses are best, the mean over them is taken.

    Raises:
        ValueError: All responses of a comparison are tied.
    """
    _check_ordered(ranks)
    grid, gold = _grid(scores, ranks)
    rival = grid.masked_fill(~_beaten(gold), -torch.inf).amax(1)
    return _best_against(rival, grid, gold, margins, probabilities)


def mean_inside(
    scores: Float[Tensor, " S"],
    ranks: Sequence[Sequence[int]],
    *,
    margins: Sequence[float] | None = None,
    probabilities: Sequence[float] | None = None,
) -> RankingLossResult:
    """The best response against the mean score of the worse ones: -log sigmoid(r_best - mean r_worse - margin).

    This is the form of LongRM's release; it dilutes a hard rival among easy ones. The arguments are those of
    `bradley_terry`. Where several responses are best, the mean over them is taken.

    Raises:
        ValueError: All responses of a comparison are tied.
    """
    _check_ordered(ranks)
    grid, gold = _grid(scores, ranks)
    beaten = _beaten(gold)
    rival = (grid * beaten).sum(1) / beaten.sum(1)
    return _best_against(rival, grid, gold, margins, probabilities)


def plackett_luce(scores: Float[Tensor, " S"], ranks: Sequence[Sequence[int]]) -> RankingLossResult:
    """Every response is chosen, by a softmax of scores, out of itself and all that are worse than it.

    The mean over the choices of a comparison: over the N - 1 stages of a ranking without ties, of which the product
    is its likelihood (Plackett 1975; Luce 1959). A pair's is the Bradley-Terry loss. Tied responses never stand
    against one another: each is chosen out of itself and the worse ones.

    Raises:
        ValueError: All responses of a comparison are tied.
    """
    _check_ordered(ranks)
    grid, gold = _grid(scores, ranks)
    better = _better(gold)
    among = better | torch.eye(gold.shape[1], dtype=torch.bool, device=gold.device)
    choices = grid[:, None, :].masked_fill(~among, -torch.inf).logsumexp(2) - grid
    return _mean(choices, better.any(2)), _figures(grid, gold, better)


def centering(scores: Float[Tensor, " S"], ranks: Sequence[Sequence[int]]) -> Float[Tensor, ""]:
    """Keeps scores around zero: the square of twice the mean score of a comparison, a mean over comparisons.

    Of a pair this is (r_chosen + r_rejected)^2, as Eisenstein et al. 2023 have it; of more responses it moves
    their mean only and leaves their differences alone, as it does for a pair.
    """
    grid, gold = _grid(scores, ranks)
    return (2.0 * grid.sum(1) / (gold > 0).sum(1)).square().mean()


def _best_against(
    rival: Float[Tensor, " B"],
    grid: Float[Tensor, "B N"],
    gold: Int[Tensor, "B N"],
    margins: Sequence[float] | None,
    probabilities: Sequence[float] | None,
) -> RankingLossResult:
    leads = grid - rival[:, None] - _column(margins, 0.0, grid)
    losses = _logistic(leads, _column(probabilities, 1.0, grid))
    return _mean(losses, (gold > 0) & ~_beaten(gold)), _figures(grid, gold, _better(gold))


def _logistic(leads: Tensor, sure: Tensor) -> Tensor:
    return -(sure * F.logsigmoid(leads) + (1.0 - sure) * F.logsigmoid(-leads))


def _check_ordered(ranks: Sequence[Sequence[int]]) -> None:
    if any(len(set(own)) < 2 for own in ranks):
        raise ValueError("a comparison whose responses are all tied cannot be trained on")


def _grid(
    scores: Float[Tensor, " S"], ranks: Sequence[Sequence[int]]
) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"]]:
    assert len(scores) == sum(map(len, ranks)), "one score a ranked response"
    assert all(len(own) >= 2 and min(own) >= 1 for own in ranks), "two responses or more, with ranks from 1"
    gold = pad_sequence([torch.tensor(own) for own in ranks], batch_first=True).to(scores.device)
    return scores.new_zeros(gold.shape).masked_scatter(gold > 0, scores), gold


def _better(gold: Int[Tensor, "B N"]) -> Bool[Tensor, "B N N"]:
    """Whether response i of a comparison is better than its response j."""
    return (gold[:, :, None] < gold[:, None, :]) & (gold > 0)[:, :, None]


def _tied(gold: Int[Tensor, "B N"]) -> Bool[Tensor, "B N N"]:
    """Whether response i of a comparison is tied with its response j, which comes later."""
    return ((gold[:, :, None] == gold[:, None, :]) & (gold > 0)[:, :, None]).triu(1)


def _beaten(gold: Int[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Whether any response of the comparison is better."""
    return _better(gold).any(1)


def _column(values: Sequence[float] | None, default: float, like: Tensor) -> Float[Tensor, "B 1"]:
    given = [default] * len(like) if values is None else list(values)
    assert len(given) == len(like), "one value a comparison"
    return torch.tensor(given, dtype=like.dtype, device=like.device)[:, None]


def _mean(values: Float[Tensor, "B ..."], chosen: Bool[Tensor, "B ..."]) -> Float[Tensor, ""]:
    """The mean over what is chosen of a comparison, then over the comparisons."""
    values, chosen = values.where(chosen, 0.0).flatten(1), chosen.flatten(1)
    return (values.sum(1) / chosen.sum(1)).mean()


def _figures(
    grid: Float[Tensor, "B N"], gold: Int[Tensor, "B N"], pairs: Bool[Tensor, "B N N"]
) -> dict[str, float]:
    with torch.no_grad():
        leads = (grid[:, :, None] - grid[:, None, :]).where(_better(gold), 0.0)
        right = 0.5 * (leads.sign() + 1.0)
        return {
            "accuracy": _mean(right, pairs).item(),
            "margin": _mean(leads, pairs).item(),
            "score": _mean(grid, gold > 0).item(),
        }
