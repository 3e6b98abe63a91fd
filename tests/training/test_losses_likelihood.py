"""Losses of log-probabilities: against closed forms written out in plain Python, and against finite differences."""

import itertools
import math
from functools import partial

import pytest
import torch

from longrm.training.losses import dpo, logo, sft, simpo

TOLERANCE = 1e-12
LOGPROBS = [
    [-0.1, -2.0, -0.7],
    [-1.5],
    [-0.2, -0.3, -3.0, -0.4],
    [-1.1, -0.9],
    [-2.5, -0.6, -0.8],
]
COUNTS = [3, 2]
REFERENCE = [-3.1, -1.0, -3.3, -2.5, -3.2]
OPTIONS = {"beta": 2.5, "nll_coef": 0.05, "label_smoothing": 0.1}
KINDS = {
    "logo": partial(logo, gamma=0.5),
    "simpo": partial(simpo, gamma=0.5),
    "dpo": lambda logprobs, counts, **options: dpo(logprobs, counts, REFERENCE[: len(logprobs)], **options),
}


def closed_form(kind, *, beta, nll_coef, label_smoothing, gamma=0.5):
    def cost(x):
        e = label_smoothing
        return (1 - e) * math.log1p(math.exp(-x)) + e * math.log1p(math.exp(x))

    means = [sum(own) / len(own) for own in LOGPROBS]
    ratios = [sum(own) - of for own, of in zip(LOGPROBS, REFERENCE, strict=True)]
    parts = []
    for chosen, rejected in [(0, [1, 2]), (3, [4])]:
        match kind:
            case "logo":
                inside = sum(means[j] for j in rejected) / len(rejected)
                preference = cost(beta * means[chosen] - beta * inside - gamma)
            case "simpo":
                pairs = [cost(beta * (means[chosen] - means[j]) - gamma) for j in rejected]
                preference = sum(pairs) / len(pairs)
            case "dpo":
                pairs = [cost(beta * (ratios[chosen] - ratios[j])) for j in rejected]
                preference = sum(pairs) / len(pairs)
        parts.append(preference - nll_coef * means[chosen])
    return sum(parts) / len(parts)


def tensors(rows=LOGPROBS):
    return [torch.tensor(own, dtype=torch.float64) for own in rows]


def value(kind, rows=LOGPROBS, counts=COUNTS, **options):
    return KINDS[kind](tensors(rows), counts, **(OPTIONS | options))[0].item()


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_their_closed_forms(kind):
    found = value(kind)
    assert found == pytest.approx(closed_form(kind, **OPTIONS), rel=TOLERANCE)
    changed = [closed_form(kind, **(OPTIONS | {name: 0.2})) for name in OPTIONS]
    others = [closed_form(other, **OPTIONS) for other in KINDS if other != kind]
    assert min(abs(found - other) for other in [*changed, *others]) > 1e6 * TOLERANCE


@pytest.mark.parametrize("kind", ["logo", "simpo"])
def test_gamma_is_a_margin_of_scaled_log_probabilities(kind):
    found = {"logo": logo, "simpo": simpo}[kind](tensors(), COUNTS, gamma=1.4, **OPTIONS)[0].item()
    assert found == pytest.approx(closed_form(kind, gamma=1.4, **OPTIONS), rel=TOLERANCE)
    assert abs(found - closed_form(kind, gamma=1.4 * OPTIONS["beta"], **OPTIONS)) > 1e6 * TOLERANCE


def test_dpo_of_the_reference_itself_is_a_coin():
    reference = [sum(own) for own in LOGPROBS]
    loss, figures = dpo(tensors(), COUNTS, reference, beta=0.1, nll_coef=0.0)
    assert loss.item() == pytest.approx(math.log(2.0), rel=TOLERANCE)
    assert figures["margin"] == 0.0
    assert figures["accuracy"] == 0.5


def test_sft_is_a_mean_over_tokens_not_over_documents():
    flat = list(itertools.chain(*LOGPROBS))
    loss = sft(torch.tensor(flat, dtype=torch.float64))[0].item()
    assert loss == pytest.approx(-sum(flat) / len(flat), rel=TOLERANCE)
    of_documents = -sum(sum(own) / len(own) for own in LOGPROBS) / len(LOGPROBS)
    assert abs(loss - of_documents) > 1e6 * TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_with_finite_differences(kind):
    lengths = [len(own) for own in LOGPROBS]
    flat = torch.cat(tensors()).requires_grad_()
    loss = lambda values: KINDS[kind](torch.split(values, lengths), COUNTS, **OPTIONS)[0]  # noqa: E731  # one line
    assert torch.autograd.gradcheck(loss, (flat,))


@pytest.mark.parametrize("kind", ["logo", "simpo"])
def test_the_order_of_rejected_responses_and_of_comparisons_does_not_matter(kind):
    a, b, c, d, e = LOGPROBS
    truth = value(kind)
    assert value(kind, [a, c, b, d, e]) == pytest.approx(truth, rel=TOLERANCE)
    assert value(kind, [d, e, a, b, c], [2, 3]) == pytest.approx(truth, rel=TOLERANCE)
    assert abs(value(kind, [b, a, c, d, e]) - truth) > 1e6 * TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_figures_are_means_over_comparisons(kind):
    whole, figures = KINDS[kind](tensors(), COUNTS, **OPTIONS)
    first, of_first = KINDS[kind](tensors(LOGPROBS[:3]), COUNTS[:1], **OPTIONS)
    if kind == "dpo":
        second, of_second = dpo(tensors(LOGPROBS[3:]), COUNTS[1:], REFERENCE[3:], **OPTIONS)
    else:
        second, of_second = KINDS[kind](tensors(LOGPROBS[3:]), COUNTS[1:], **OPTIONS)
    assert whole.item() == pytest.approx((first.item() + second.item()) / 2, rel=TOLERANCE)
    for name, figure in figures.items():
        assert figure == pytest.approx((of_first[name] + of_second[name]) / 2, rel=TOLERANCE), name


def test_figures_tell_of_rewards_and_likelihood():
    _, figures = simpo(tensors(), COUNTS, gamma=0.5, **OPTIONS)
    means = [-2.8 / 3, -1.5, -3.9 / 4, -1.0, -1.3]
    assert figures == {
        "accuracy": 1.0,
        "margin": pytest.approx(2.5 * ((means[0] - (means[1] + means[2]) / 2) + 0.3) / 2),
        "chosen": pytest.approx(2.5 * (means[0] + means[3]) / 2),
        "rejected": pytest.approx(2.5 * ((means[1] + means[2]) / 2 + means[4]) / 2),
        "nll": pytest.approx(-(means[0] + means[3]) / 2),
    }
    reward = 0.1 * (-2.8 + 3.1)
    _, figures = dpo(tensors(LOGPROBS[:2]), [2], REFERENCE[:2], beta=0.1, nll_coef=0.0)
    assert figures["chosen"] == pytest.approx(reward)
    assert figures["margin"] == pytest.approx(reward - 0.1 * (-1.5 + 1.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("high", [0, 1])
def test_extreme_log_probabilities_stay_finite(kind, high):
    rows = [torch.full((5,), -1e-4 if i == high else -1e4).requires_grad_() for i in range(2)]
    loss, figures = KINDS[kind](rows, [2], **OPTIONS)
    loss.backward()
    assert all(torch.isfinite(row.grad).all() for row in rows)
    assert all(map(math.isfinite, [loss.item(), *figures.values()]))
    assert figures["accuracy"] == 1.0 - high


@pytest.mark.parametrize("kind", KINDS)
def test_a_comparison_without_a_rejected_response_is_refused(kind):
    with pytest.raises(ValueError, match="rejected response"):
        KINDS[kind](tensors(LOGPROBS[:3]), [2, 1], **OPTIONS)
