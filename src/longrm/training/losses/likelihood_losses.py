"""Losses of log-probabilities: imitation, and preferences between responses.

Letters: T tokens of all completions, R tokens of a response, V rejected responses of a comparison.

The responses of all comparisons are given in one sequence, `counts` of them for each; the first of a comparison is the
chosen one, and the others are rejected. l(y) is the mean log-probability of a response's tokens, L(y) their sum.

Preferences share a negative log-likelihood term: `nll` times -l(chosen), a mean over comparisons of means over tokens
(LongRM; Pang et al. 2024). TRL's `cpo_alpha` takes one mean over the chosen tokens of a batch instead, in which long
responses weigh more; the two agree where chosen responses are equally long.

With `label_smoothing` e, -log sigmoid(x) becomes -(1 - e) log sigmoid(x) - e log sigmoid(-x), the margin being a part
of x (as TRL's CPO has it; for DPO: Mitchell 2023, "conservative DPO").
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

PreferenceLossResult = tuple[Float[Tensor, ""], dict[str, float]]
"""The loss, and its figures. Of a preference: `accuracy`, the share of rejected responses whose reward is below the
chosen one's, equal rewards counted half; `margin`, by how much it is; `chosen` and `rejected`, the mean rewards (beta
times l, or times the log-ratio to the reference); `nll`, the mean of -l(chosen)."""


def sft(logprobs: Float[Tensor, " T"]) -> PreferenceLossResult:
    """Negative log-likelihood, a mean over the tokens of all completions (LongRM, stage 1)."""
    return -logprobs.mean(), {}


def logo(
    logprobs: Sequence[Float[Tensor, " R"]],
    counts: Sequence[int],
    *,
    beta: float,
    gamma: float,
    nll: float,
    label_smoothing: float = 0.0,
) -> PreferenceLossResult:
    """The chosen response against the mean over the rejected ones, inside one sigmoid.

    -log sigmoid(beta l(chosen) - (beta / V) sum_j l(rejected_j) - gamma) + nll (-l(chosen)): LongRM, stage 2; LOGO
    (Tang et al. 2024).

    Args:
        logprobs: Log-probabilities of the tokens of every response.
        counts: Responses of every comparison.
        beta: Scale of the mean log-probabilities.
        gamma: The margin by which the chosen response should lead.
        nll: Weight of the chosen response's negative log-likelihood.
        label_smoothing: The share of preferences that are taken to be wrong.

    Raises:
        ValueError: A comparison has no rejected response.
    """
    means = _reduce(logprobs, torch.mean)
    leads = [own[:1] - own[1:].mean() - gamma for own in _split(beta * means, counts)]
    return _preference(leads, beta * means, means, counts, nll, label_smoothing)


def simpo(
    logprobs: Sequence[Float[Tensor, " R"]],
    counts: Sequence[int],
    *,
    beta: float,
    gamma: float,
    nll: float,
    label_smoothing: float = 0.0,
) -> PreferenceLossResult:
    """The mean over pairs of -log sigmoid(beta l(chosen) - beta l(rejected) - gamma), plus nll (-l(chosen)).

    SimPO (Meng et al. 2024), which has V = 1 and no last term. The arguments are those of `logo`.

    Raises:
        ValueError: A comparison has no rejected response.
    """
    means = _reduce(logprobs, torch.mean)
    leads = [own[0] - own[1:] - gamma for own in _split(beta * means, counts)]
    return _preference(leads, beta * means, means, counts, nll, label_smoothing)


def dpo(
    logprobs: Sequence[Float[Tensor, " R"]],
    counts: Sequence[int],
    reference: Sequence[float],
    *,
    beta: float,
    nll: float,
    label_smoothing: float = 0.0,
) -> PreferenceLossResult:
    """The mean over pairs of -log sigmoid(beta (h(chosen) - h(rejected))), plus nll (-l(chosen)).

    h(y) = L(y) - L_reference(y): DPO (Rafailov et al. 2023, equation 7). `reference` holds the reference model's L of
    every response, and `beta` is the scale of the log-ratios; the other arguments are those of `logo`.

    Raises:
        ValueError: A comparison has no rejected response.
    """
    assert len(reference) == len(logprobs), "one reference a response"
    sums = _reduce(logprobs, torch.sum)
    rewards = beta * (sums - torch.tensor(reference, dtype=sums.dtype, device=sums.device))
    leads = [own[0] - own[1:] for own in _split(rewards, counts)]
    return _preference(leads, rewards, _reduce(logprobs, torch.mean), counts, nll, label_smoothing)


def _reduce(
    logprobs: Sequence[Float[Tensor, " R"]], reduction: Callable[[Tensor], Tensor]
) -> Float[Tensor, " S"]:
    assert all(map(len, logprobs)), "a response has tokens"
    return torch.stack([reduction(own) for own in logprobs])


def _split(values: Float[Tensor, " S"], counts: Sequence[int]) -> list[Float[Tensor, " V+1"]]:
    if min(counts) < 2:
        raise ValueError("a comparison without a rejected response cannot be trained on")
    return list(torch.split(values, list(counts)))


def _preference(
    leads: Sequence[Float[Tensor, " pairs"]],
    rewards: Float[Tensor, " S"],
    means: Float[Tensor, " S"],
    counts: Sequence[int],
    nll: float,
    label_smoothing: float,
) -> PreferenceLossResult:
    """The mean over comparisons of the mean loss of the leads of each, and of the likelihood term."""
    smooth = label_smoothing
    losses = [-((1.0 - smooth) * F.logsigmoid(x) + smooth * F.logsigmoid(-x)).mean() for x in leads]
    chosen_nll = -torch.stack([own[0] for own in _split(means, counts)]).mean()
    figures = _figures(_split(rewards.detach(), counts)) | {"nll": chosen_nll.item()}
    return torch.stack(losses).mean() + nll * chosen_nll, figures


def _figures(rewards: Sequence[Float[Tensor, " V+1"]]) -> dict[str, float]:
    def mean(values: list[Tensor]) -> float:
        return torch.stack(values).mean().item()

    return {
        "accuracy": mean([0.5 * ((own[0] - own[1:]).sign() + 1.0).mean() for own in rewards]),
        "margin": mean([(own[0] - own[1:]).mean() for own in rewards]),
        "chosen": mean([own[0] for own in rewards]),
        "rejected": mean([own[1:].mean() for own in rewards]),
    }
