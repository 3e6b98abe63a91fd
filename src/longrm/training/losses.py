"""The losses of training, and `LOSSES`, the names that `loss.loss_type` gives them.

A loss is a pure function of tensors. It returns its value and the metrics to log with it, both means over the unit that
`Loss.mean_over` names. The loss of a step is therefore the mean over its micro-batches, each weighted by its number of
these units, however the step is cut.

Settings import this module and must load without torch, which takes over a second to import. The losses therefore use
methods of tensors, and the few functions that need torch itself import it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    LossResult = tuple[Float[Tensor, ""], dict[str, float]]

# --- Losses of log-probabilities -------------------------------------------------------------------------------------
#
# T tokens of all completions, R tokens of one response, V rejected responses of a comparison, S responses of a batch.
#
# The responses of all comparisons come in one sequence, `counts` per comparison, the chosen one first. l(y) is the mean
# log-probability of a response's tokens, L(y) their sum.
#
# Preference losses share a term `nll_coef` x -l(chosen): a mean over comparisons of means over tokens (LongRM; Pang et
# al. 2024). TRL's `cpo_alpha` takes one mean over the chosen tokens of the whole batch, where long responses weigh
# more; the two agree where chosen responses are equally long.
#
# With `label_smoothing` e, -log sigmoid(x) becomes -(1 - e) log sigmoid(x) - e log sigmoid(-x), and x includes the
# margin (as in TRL's CPO; for DPO: Mitchell 2023, "conservative DPO").


def sft(logprobs: Float[Tensor, " T"]) -> LossResult:
    """Negative log-likelihood, a mean over the tokens of all completions (LongRM, stage 1)."""
    return -logprobs.mean(), {}


def logo(
    logprobs: Sequence[Float[Tensor, " R"]],
    counts: Sequence[int],
    *,
    beta: float,
    gamma: float,
    nll_coef: float,
    label_smoothing: float = 0.0,
) -> LossResult:
    """Compares the chosen response with the mean over the rejected ones, inside one sigmoid.

    -log sigmoid(beta l(chosen) - (beta / V) sum_j l(rejected_j) - gamma) + nll_coef (-l(chosen)): LongRM, stage 2; LOGO
    (Tang et al. 2024).

    Args:
        logprobs: Log-probabilities of the tokens of every response.
        counts: Responses of every comparison.
        beta: Scale of the mean log-probabilities.
        gamma: The margin by which the chosen response should lead.
        nll_coef: Weight of the chosen response's negative log-likelihood.
        label_smoothing: The share of preferences that are assumed to be wrong.

    Returns:
        The loss, and `accuracy` (the share of rejected responses with a lower reward than the chosen one, equal rewards
        count half), `margin` (the mean difference of these rewards), `chosen` and `rejected` (mean rewards: beta times
        l, or times the log-ratio to the reference) and `nll` (the mean of -l(chosen)).
    """
    means = _stack([own.mean() for own in logprobs])
    rewards = beta * means
    margins = [own[:1] - own[1:].mean() - gamma for own in _split(rewards, counts)]
    return _preference_loss(margins, rewards, means, counts, nll_coef, label_smoothing)


def simpo(
    logprobs: Sequence[Float[Tensor, " R"]],
    counts: Sequence[int],
    *,
    beta: float,
    gamma: float,
    nll_coef: float,
    label_smoothing: float = 0.0,
) -> LossResult:
    """The mean over pairs of -log sigmoid(beta l(chosen) - beta l(rejected) - gamma), plus nll_coef (-l(chosen)).

    SimPO (Meng et al. 2024; there with one rejected response and without the last term). Arguments and metrics are
    those of `logo`.
    """
    means = _stack([own.mean() for own in logprobs])
    rewards = beta * means
    margins = [own[0] - own[1:] - gamma for own in _split(rewards, counts)]
    return _preference_loss(margins, rewards, means, counts, nll_coef, label_smoothing)


def dpo(
    logprobs: Sequence[Float[Tensor, " R"]],
    counts: Sequence[int],
    reference: Sequence[float],
    *,
    beta: float,
    nll_coef: float,
    label_smoothing: float = 0.0,
) -> LossResult:
    """The mean over pairs of -log sigmoid(beta (h(chosen) - h(rejected))), plus nll_coef (-l(chosen)).

    h(y) = L(y) - L_reference(y): DPO (Rafailov et al. 2023, equation 7). `reference` has the reference model's L of
    every response, `beta` scales the log-ratios; the other arguments and the metrics are those of `logo`.
    """
    assert len(reference) == len(logprobs), "one reference value per response"
    sums = _stack([own.sum() for own in logprobs])
    rewards = beta * (sums - sums.new_tensor(reference))
    margins = [own[0] - own[1:] for own in _split(rewards, counts)]
    means = _stack([own.mean() for own in logprobs])
    return _preference_loss(margins, rewards, means, counts, nll_coef, label_smoothing)


def _preference_loss(
    margins: Sequence[Float[Tensor, " pairs"]],
    rewards: Float[Tensor, " S"],
    means: Float[Tensor, " S"],
    counts: Sequence[int],
    nll_coef: float,
    label_smoothing: float,
) -> LossResult:
    losses = [_logistic(margin, 1.0 - label_smoothing).mean() for margin in margins]
    chosen_nll = -_stack([own[0] for own in _split(means, counts)]).mean()
    split_rewards = _split(rewards.detach(), counts)

    def mean(values: list[Tensor]) -> float:
        return _stack(values).mean().item()

    metrics = {
        # sign() is 0 for equal rewards, so that a tie counts half
        "accuracy": mean([0.5 * ((own[0] - own[1:]).sign() + 1.0).mean() for own in split_rewards]),
        "margin": mean([(own[0] - own[1:]).mean() for own in split_rewards]),
        "chosen": mean([own[0] for own in split_rewards]),
        "rejected": mean([own[1:].mean() for own in split_rewards]),
        "nll": chosen_nll.item(),
    }
    return _stack(losses).mean() + nll_coef * chosen_nll, metrics


def _split(values: Float[Tensor, " S"], counts: Sequence[int]) -> Sequence[Float[Tensor, " V+1"]]:
    if min(counts) < 2:
        raise ValueError("a comparison needs a rejected response")
    parts: tuple[Tensor, ...] = values.split(list(counts))  # type: ignore[no-untyped-call]  # torch has no types here
    return parts


# --- Losses of sampled completions -----------------------------------------------------------------------------------
#
# The completions of all groups come in one sequence, with one advantage for each. A completion is a row of its tokens'
# log-probabilities, at the temperature at which it was sampled; `old` are those of the weights that sampled it, and
# `reference` those of the model that training starts from.


def grpo(
    logprobs: Sequence[Float[Tensor, " R"]], advantages: Sequence[float], *, max_tokens: int, **options: Any
) -> LossResult:
    """`policy_gradient` as a mean over completions of means over their tokens (GRPO, Shao et al. 2024, eq. 3)."""
    weights = [1.0 / (len(own) * len(logprobs)) for own in logprobs]
    return policy_gradient(logprobs, advantages, weights, **options)


def dr_grpo(
    logprobs: Sequence[Float[Tensor, " R"]], advantages: Sequence[float], *, max_tokens: int, **options: Any
) -> LossResult:
    """`grpo` with sums over tokens divided by `max_tokens`: no bias by length (Dr. GRPO, Liu et al. 2025)."""
    weights = [1.0 / (max_tokens * len(logprobs))] * len(logprobs)
    return policy_gradient(logprobs, advantages, weights, **options)


def dapo(
    logprobs: Sequence[Float[Tensor, " R"]], advantages: Sequence[float], *, max_tokens: int, **options: Any
) -> LossResult:
    """`grpo` as one mean over the tokens of all completions (DAPO, Yu et al. 2025, eq. 8)."""
    weights = [1.0 / sum(map(len, logprobs))] * len(logprobs)
    return policy_gradient(logprobs, advantages, weights, **options)


def policy_gradient(
    logprobs: Sequence[Float[Tensor, " R"]],
    advantages: Sequence[float],
    weights: Sequence[float],
    *,
    old: Sequence[Sequence[float]] | None = None,
    reference: Sequence[Sequence[float]] | None = None,
    epsilon: float,
    epsilon_high: float | None,
    beta: float,
) -> LossResult:
    """The clipped policy gradient: a weighted sum over the tokens of all completions.

    A token's loss is -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + beta r (exp(d) - d - 1), with r the ratio of
    its probability to the old one, A the advantage of its completion, and d the log-ratio of the reference to the
    policy. Without the second r the gradient of the divergence would be biased (DeepSeek-V3.2, arXiv 2512.02556).

    Args:
        logprobs: Log-probabilities of the tokens of every completion.
        advantages: One for every completion.
        weights: The weight of each token of every completion.
        old: Log-probabilities of the weights that sampled the completions; None if they are still the same.
        reference: Log-probabilities under the reference; only read if `beta` is not 0.
        epsilon: How far the ratio may fall below 1.
        epsilon_high: How far it may rise above 1; `epsilon` by default.
        beta: Weight of the divergence from the reference.

    Returns:
        The loss, and `clipped` (the share of tokens whose ratio is clipped) and, if `beta` is not 0, `kl` (the mean
        divergence), with tokens weighted as in the loss.
    """
    import torch  # late, as everywhere here

    current = torch.cat(list(logprobs))  # [T], as all below

    def for_tokens(values: Sequence[float]) -> Float[Tensor, " T"]:
        return current.new_tensor(
            [value for value, own in zip(values, logprobs, strict=True) for _ in range(len(own))]
        )

    def of_tokens(values: Sequence[Sequence[float]]) -> Float[Tensor, " T"]:
        return current.new_tensor([value for own in values for value in own])

    weight, advantage = for_tokens(weights), for_tokens(advantages)
    before = current.detach() if old is None else of_tokens(old)
    ratio = (current - before).exp()
    gain = ratio * advantage
    clipped_gain = ratio.clamp(1.0 - epsilon, 1.0 + (epsilon_high or epsilon)) * advantage
    loss = (-gain.minimum(clipped_gain) * weight).sum()
    metrics = {"clipped": ((gain > clipped_gain) * weight).sum().item()}
    if beta:
        assert reference is not None, "the divergence needs a reference"
        log_ratio = of_tokens(reference) - current
        # The ratio is 1 before the first update, and has a gradient even there.
        divergence = (ratio * (log_ratio.exp() - log_ratio - 1.0) * weight).sum()
        metrics["kl"] = divergence.item()
        loss = loss + beta * divergence
    return loss, metrics


# --- Losses of scores with a gold order ------------------------------------------------------------------------------
#
# S responses of a batch, one comparison after the other; B comparisons; N responses of the largest comparison.
#
# Scores are laid out as a grid of B rows and N columns. `gold` has the ranks in the same layout, and 0 where a smaller
# comparison has no response: every mask below excludes these places.
#
# `ranks` has the gold ranks of every comparison, 1 = best; tied responses have equal ranks. All these losses return the
# metrics `accuracy` (the share of gold-ordered pairs in the right order; equal scores count half), `margin` (by how
# much the better response leads) and `score` (the mean score).


def bradley_terry(
    scores: Float[Tensor, " S"],
    ranks: Sequence[Sequence[int]],
    *,
    margins: Sequence[float] | None = None,
    probabilities: Sequence[float] | None = None,
) -> LossResult:
    """The mean over the gold-ordered pairs of a comparison of -log sigmoid(r_better - r_worse - margin).

    Bradley and Terry 1952; LongRM, section on DisRM training; the margin as in Llama 2 (Touvron et al. 2023).

    Args:
        scores: Rewards of all responses, one comparison after the other.
        ranks: Gold ranks of every comparison in the same order.
        margins: One per comparison; 0 by default.
        probabilities: That the gold order of a comparison is right; 1 by default. With p the loss is
            -p log sigmoid(x) - (1 - p) log sigmoid(-x), so 1 - p smooths labels.
    """
    grid, gold = _grid(scores, ranks)
    leads = grid[:, :, None] - grid[:, None, :]  # [B, N, N]: score of i minus score of j
    margin = _column(margins, 0.0, leads)[:, :, None]
    probability = _column(probabilities, 1.0, leads)[:, :, None]
    better = _better(gold)
    return _mean(_logistic(leads - margin, probability), better), _ranking_metrics(grid, gold)


def hardest(
    scores: Float[Tensor, " S"],
    ranks: Sequence[Sequence[int]],
    *,
    margins: Sequence[float] | None = None,
    probabilities: Sequence[float] | None = None,
) -> LossResult:
    """Compares the best response with the highest scored worse one: -log sigmoid(r_best - max r_worse - margin).

    The arguments are those of `bradley_terry`. Of several best responses the mean is taken.
    """
    grid, gold = _grid(scores, ranks)
    rival = grid.masked_fill(~_beaten(gold), -math.inf).amax(1)
    return _best_against(rival, grid, gold, margins, probabilities)


def mean_rejected(
    scores: Float[Tensor, " S"],
    ranks: Sequence[Sequence[int]],
    *,
    margins: Sequence[float] | None = None,
    probabilities: Sequence[float] | None = None,
) -> LossResult:
    """Compares the best response with the mean score of the worse ones: -log sigmoid(r_best - mean r_worse - margin).

    This is the form of LongRM's release; it dilutes a hard rival among easy ones. The arguments are those of
    `bradley_terry`. Of several best responses the mean is taken.
    """
    grid, gold = _grid(scores, ranks)
    beaten = _beaten(gold)
    rival = (grid * beaten).sum(1) / beaten.sum(1)
    return _best_against(rival, grid, gold, margins, probabilities)


def plackett_luce(scores: Float[Tensor, " S"], ranks: Sequence[Sequence[int]]) -> LossResult:
    """Every response is chosen, by a softmax of scores, among itself and all that are worse than it.

    The mean over the choices of a comparison. A ranking without ties has N - 1 of them, and the product of their
    probabilities is its likelihood (Plackett 1975; Luce 1959). For a pair this is the Bradley-Terry loss. Tied
    responses are not compared with each other: each is chosen among itself and the worse ones.
    """
    grid, gold = _grid(scores, ranks)
    better = _better(gold)
    candidates = better.clone()
    candidates.diagonal(dim1=1, dim2=2).fill_(True)  # a response is a candidate of its own choice
    losses = grid[:, None, :].masked_fill(~candidates, -math.inf).logsumexp(2) - grid
    return _mean(losses, better.any(2)), _ranking_metrics(grid, gold)


def centering(scores: Float[Tensor, " S"], ranks: Sequence[Sequence[int]]) -> Float[Tensor, ""]:
    """Keeps scores around zero: the square of twice the mean score of a comparison, a mean over comparisons.

    For a pair this is (r_chosen + r_rejected)^2 (Eisenstein et al. 2023). For more responses it moves only their mean
    and leaves their differences alone, as it does for a pair.
    """
    grid, gold = _grid(scores, ranks)
    return (2.0 * grid.sum(1) / (gold > 0).sum(1)).square().mean()


def _best_against(
    rival: Float[Tensor, " B"],
    grid: Float[Tensor, "B N"],
    gold: Int[Tensor, "B N"],
    margins: Sequence[float] | None,
    probabilities: Sequence[float] | None,
) -> LossResult:
    leads = grid - rival[:, None] - _column(margins, 0.0, grid)
    losses = _logistic(leads, _column(probabilities, 1.0, grid))
    best = (gold > 0) & ~_beaten(gold)
    return _mean(losses, best), _ranking_metrics(grid, gold)


def _logistic(leads: Tensor, probability: Tensor | float) -> Tensor:
    from torch.nn.functional import logsigmoid

    return -(probability * logsigmoid(leads) + (1.0 - probability) * logsigmoid(-leads))


def _better(gold: Int[Tensor, "B N"]) -> Bool[Tensor, "B N N"]:
    """Whether response i of a comparison is better than its response j."""
    return (gold[:, :, None] < gold[:, None, :]) & (gold > 0)[:, :, None]


def _beaten(gold: Int[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Whether some response of the comparison is better."""
    return _better(gold).any(1)


def _mean(values: Float[Tensor, "B ..."], chosen: Bool[Tensor, "B ..."]) -> Float[Tensor, ""]:
    """The mean over the chosen places of each comparison, then over comparisons."""
    # where() rather than a product: unused places may be infinite, and 0 x inf is NaN.
    values, chosen = values.where(chosen, 0.0).flatten(1), chosen.flatten(1)
    return (values.sum(1) / chosen.sum(1)).mean()


def _ranking_metrics(grid: Float[Tensor, "B N"], gold: Int[Tensor, "B N"]) -> dict[str, float]:
    grid, better = grid.detach(), _better(gold)
    leads = grid[:, :, None] - grid[:, None, :]
    return {
        # sign() is 0 for equal scores, which count half
        "accuracy": _mean(0.5 * (leads.sign() + 1.0), better).item(),
        "margin": _mean(leads, better).item(),
        "score": _mean(grid, gold > 0).item(),
    }


def _column(values: Sequence[float] | None, default: float, like: Tensor) -> Float[Tensor, "B 1"]:
    """One value per comparison."""
    return like.new_tensor([default] * len(like) if values is None else list(values))[:, None]


def _grid(
    scores: Float[Tensor, " S"], ranks: Sequence[Sequence[int]]
) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"]]:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    if any(len(set(own)) < 2 for own in ranks):
        raise ValueError("a comparison whose responses are all tied teaches nothing")
    assert len(scores) == sum(map(len, ranks)), "one score per ranked response"
    assert all(len(own) >= 2 and min(own) >= 1 for own in ranks), "two responses or more, with ranks from 1"
    gold = pad_sequence([torch.tensor(own) for own in ranks], batch_first=True).to(scores.device)
    return scores.new_zeros(gold.shape).masked_scatter(gold > 0, scores), gold


def _stack(values: Sequence[Tensor]) -> Tensor:
    import torch

    return torch.stack(list(values))


# --- Losses of labeled scores ----------------------------------------------------------------------------------------


def binary_cross_entropy(
    scores: Float[Tensor, " S"], labels: Sequence[float], *, label_smoothing: float = 0.0
) -> LossResult:
    """-y log s(r) - (1 - y) log s(-r), s the sigmoid, a mean over all labeled steps of the batch.

    So every labeled step has the same weight, as in the sum over the steps of Math-Shepherd (Wang et al. 2023, equation
    3), and in the likelihood of Lightman et al. (2023), whose model writes a token for the label after each step.

    Args:
        scores: The score after every labeled step, a logit.
        labels: The probability y that the step is right: 1 or 0, or in between.
        label_smoothing: The share of labels that are assumed to be wrong.

    Returns:
        The loss, and `accuracy` (the share of steps with a positive score exactly if y > 0.5; a score of 0 counts
        half), `score` (the mean score) and `right` (the mean of y, by which a constant score can be accurate).
    """
    assert len(scores) == len(labels), "one label per score"
    truth = scores.new_tensor(list(labels))
    target = label_smoothing + (1.0 - 2.0 * label_smoothing) * truth
    found, gold = scores.detach(), (truth > 0.5) * 2.0 - 1.0
    metrics = {
        "accuracy": (0.5 * ((found * gold).sign() + 1.0)).mean().item(),
        "score": found.mean().item(),
        "right": truth.mean().item(),
    }
    return _logistic(scores, target).mean(), metrics


# --- The registry ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """An entry of `LOSSES`."""

    objective: str  # the objective that uses it, by its name in `OBJECTIVES`
    function: Callable[..., LossResult]
    title: str  # in reports
    description: str  # what it compares, for the model card and docs/cli.md
    options: Mapping[str, Any]  # the settings of `[loss]` that may be set for it, with their defaults
    # What value and metrics are means over, which is how examples weigh when a step is cut into micro-batches. It has
    # no default: a wrong one changes the gradient and nothing else shows it.
    mean_over: Literal["comparisons", "responses", "tokens"]
    chance: float | None = None  # its value for a model that knows nothing, where there is one
    needs_reference: bool = False  # it compares with the model that training starts from
    reads_pairs: bool = True  # it compares pairs, so that the margins and probabilities of rows apply


# `rejected`, `center_rewards_coefficient` and the ranking losses' `label_smoothing` are applied by the objective; the
# loss function receives the other options.
_MARGIN = {"beta": 2.5, "gamma": 0.5, "nll_coef": 0.05, "label_smoothing": 0.0, "rejected": None}
_RANKING = {"label_smoothing": 0.0, "center_rewards_coefficient": 0.0}
_POLICY = {"epsilon": 0.2, "epsilon_high": None, "beta": 0.0}  # epsilon_high is epsilon unless it is set

LOSSES: dict[str, Loss] = {
    "sft": Loss(
        "sft", sft, "SFT", "the negative log-likelihood of completion tokens", {}, mean_over="tokens"
    ),
    "logo": Loss(
        "preference",
        logo,
        "LOGO",
        "the chosen response against the mean over the rejected ones, inside one sigmoid (LongRM, stage 2; Tang et al. "
        "2024)",
        _MARGIN,
        mean_over="comparisons",
    ),
    "simpo": Loss(
        "preference",
        simpo,
        "SimPO",
        "the chosen response against each rejected one (Meng et al. 2024)",
        _MARGIN,
        mean_over="comparisons",
    ),
    "dpo": Loss(
        "preference",
        dpo,
        "DPO",
        "the chosen response against each rejected one, relative to the model that training starts from (Rafailov et "
        "al. 2023)",
        {"beta": 0.1, "nll_coef": 0.0, "label_smoothing": 0.0, "rejected": None},
        mean_over="comparisons",
        chance=math.log(2.0),
        needs_reference=True,
    ),
    "grpo": Loss(
        "grpo",
        grpo,
        "GRPO",
        "sampled judgments by their rewards within a group, a mean over judgments (Shao et al. 2024)",
        _POLICY,
        mean_over="responses",
    ),
    "dr_grpo": Loss(
        "grpo",
        dr_grpo,
        "Dr. GRPO",
        "sampled judgments by their rewards within a group, divided by the most tokens of one (Liu et al. 2025)",
        _POLICY,
        mean_over="responses",
    ),
    "dapo": Loss(
        "grpo",
        dapo,
        "DAPO",
        "sampled judgments by their rewards within a group, a mean over tokens (Yu et al. 2025)",
        _POLICY,
        mean_over="tokens",
    ),
    "bradley_terry": Loss(
        "bradley_terry",
        bradley_terry,
        "Bradley-Terry",
        "every gold-ordered pair (Bradley and Terry 1952)",
        _RANKING,
        mean_over="comparisons",
        chance=math.log(2.0),
    ),
    "hardest": Loss(
        "bradley_terry",
        hardest,
        "hardest rival",
        "the best response against the highest scored worse one",
        _RANKING,
        mean_over="comparisons",
        chance=math.log(2.0),
    ),
    "mean_rejected": Loss(
        "bradley_terry",
        mean_rejected,
        "mean inside",
        "the best response against the mean score of the worse ones, as the release of LongRM does",
        _RANKING,
        mean_over="comparisons",
        chance=math.log(2.0),
    ),
    "plackett_luce": Loss(
        "bradley_terry",
        plackett_luce,
        "Plackett-Luce",
        "the likelihood of the whole ranking (Plackett 1975; Luce 1959)",
        {"center_rewards_coefficient": 0.0},
        mean_over="comparisons",
        reads_pairs=False,
    ),
    "bce": Loss(
        "prm",
        binary_cross_entropy,
        "binary cross-entropy",
        "the score after every step as a logit of its label (Lightman et al. 2023; Wang et al. 2023)",
        {"label_smoothing": 0.0},
        mean_over="responses",  # of a trajectory, its labeled steps
        reads_pairs=False,
    ),
    "step_pairs": Loss(
        "prm",
        bradley_terry,
        "Bradley-Terry over steps",
        "every right step against every wrong one of the same trajectory",
        _RANKING,
        mean_over="comparisons",
        chance=math.log(2.0),
    ),
}
"""Every loss. The first one of an objective is its default."""
