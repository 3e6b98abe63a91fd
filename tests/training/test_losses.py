"""Losses of sampled completions against sums in plain Python, in fp64."""

import itertools
import math

import pytest
import torch

from longrm.training.losses import LOSSES, dapo, dr_grpo, grpo
from longrm.training.settings import LossSettings

KINDS = {"grpo": grpo, "dr_grpo": dr_grpo, "dapo": dapo}
LENGTHS = (3, 1, 5, 2)
MAX_TOKENS = 7
ADVANTAGES = (1.3, -0.4, 0.7, -1.6)
PLAIN = {"max_tokens": MAX_TOKENS, "epsilon": 0.2, "epsilon_high": None, "beta": 0.0}


def rows(seed, spread):
    """Log-probabilities of all completions; `spread` from one seed to another moves ratios beyond both clips."""
    base = torch.Generator().manual_seed(0)
    other = torch.Generator().manual_seed(seed)
    return [
        -1.0
        - torch.rand(length, dtype=torch.float64, generator=base)
        + spread * torch.randn(length, dtype=torch.float64, generator=other)
        for length in LENGTHS
    ]


CURRENT, OLD, REFERENCE = (rows(seed, spread) for seed, spread in ((1, 0.0), (2, 0.5), (3, 0.5)))


def listed(values):
    return [own.tolist() for own in values]


def told(kind, *, old, reference, low, high, beta, advantages=ADVANTAGES):
    """The loss, the share clipped and the divergence, token by token."""
    tokens = sum(LENGTHS)
    loss = clipped = divergence = 0.0
    for index, (advantage, length) in enumerate(zip(advantages, LENGTHS, strict=True)):
        weight = {
            "grpo": 1 / (len(LENGTHS) * length),
            "dr_grpo": 1 / (len(LENGTHS) * MAX_TOKENS),
            "dapo": 1 / tokens,
        }[kind]
        for at in range(length):
            current = float(CURRENT[index][at])
            ratio = math.exp(current - float(old[index][at]))
            bounded = min(max(ratio, 1 - low), 1 + high)
            is_clipped = (advantage > 0 and ratio > 1 + high) or (advantage < 0 and ratio < 1 - low)
            loss -= weight * advantage * (bounded if is_clipped else ratio)
            clipped += weight * is_clipped
            if beta:
                d = float(reference[index][at]) - current
                divergence += weight * ratio * (math.exp(d) - d - 1)
    return loss + beta * divergence, clipped, divergence


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.1, 0.3), (0.3, 0.1)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_sum_over_tokens(kind, low, high, beta):
    settings = {"max_tokens": MAX_TOKENS, "epsilon": low, "epsilon_high": high, "beta": beta}
    truth = told(kind, old=OLD, reference=REFERENCE, low=low, high=high, beta=beta)
    loss, metrics = KINDS[kind](CURRENT, ADVANTAGES, old=listed(OLD), reference=listed(REFERENCE), **settings)
    assert loss.item() == pytest.approx(truth[0], rel=1e-12)
    assert metrics["clipped"] == pytest.approx(truth[1], rel=1e-12)
    assert metrics.get("kl", 0.0) == pytest.approx(truth[2], rel=1e-12)
    assert ("kl" in metrics) == bool(beta)
    assert truth[1] > 0
    others = itertools.product(KINDS, [(low, high), (high + 0.01, low + 0.02)], [beta, beta + 0.1])
    for other, bounds, weight in others:
        if (other, bounds, weight) != (kind, (low, high), beta):
            wrong = told(other, old=OLD, reference=REFERENCE, low=bounds[0], high=bounds[1], beta=weight)
            assert abs(wrong[0] - truth[0]) > 1e-4, (other, bounds, weight)


def test_the_share_clipped_has_the_weights_of_the_loss():
    """One token of five of the third completion is beyond the clip: 1/20 of completions' means, 1/11 of all tokens."""
    old = listed(CURRENT)
    old[2][3] -= math.log(1.5)
    found = {kind: loss(CURRENT, ADVANTAGES, old=old, **PLAIN)[1]["clipped"] for kind, loss in KINDS.items()}
    assert found == pytest.approx({"grpo": 1 / 20, "dr_grpo": 1 / (4 * MAX_TOKENS), "dapo": 1 / 11})


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_finite_differences(kind, beta):
    settings = PLAIN | {
        "epsilon_high": 0.35,
        "beta": beta,
        "old": listed(OLD),
        "reference": listed(REFERENCE),
    }

    def loss(values):
        return KINDS[kind](values, ADVANTAGES, **settings)[0]

    values = [own.clone().requires_grad_() for own in CURRENT]
    loss(values).backward()
    h, zeros = 1e-6, 0
    for index, own in enumerate(CURRENT):
        for at in range(len(own)):
            above, below = ([one.clone() for one in CURRENT] for _ in range(2))
            above[index][at] += h
            below[index][at] -= h
            slope = (loss(above) - loss(below)).item() / (2 * h)
            assert values[index].grad[at].item() == pytest.approx(slope, rel=1e-6, abs=1e-9)
            zeros += values[index].grad[at] == 0
    # The loss does not move with a token that is clipped, except by the divergence.
    assert zeros == 0 if beta else 2 <= zeros < sum(LENGTHS) - 2


@pytest.mark.parametrize(
    ("advantage", "ratio", "clipped"),
    [
        (1.0, 1.29, False), (1.0, 1.31, True), (1.0, 0.5, False),  # better than the group: only up
        (-1.0, 1.5, False), (-1.0, 0.91, False), (-1.0, 0.89, True),  # worse: only down
        (0.0, 3.0, False), (0.0, 0.1, False),
    ],
)  # fmt: skip
def test_a_ratio_is_clipped_on_the_side_that_its_advantage_rewards(advantage, ratio, clipped):
    value = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    loss, metrics = grpo(
        [value],
        [advantage],
        old=[[-1.0 - math.log(ratio)]],
        **PLAIN | {"epsilon": 0.1, "epsilon_high": 0.3},
    )
    loss.backward()
    bounded = min(max(ratio, 0.9), 1.3) if clipped else ratio
    assert loss.item() == pytest.approx(-advantage * bounded)
    assert metrics == {"clipped": float(clipped)}
    assert value.grad.item() == pytest.approx(0.0 if clipped else -advantage * ratio)


@pytest.mark.parametrize("kind", KINDS)
def test_epsilon_high_is_epsilon_by_default(kind):
    def loss(**changes):
        return KINDS[kind](CURRENT, ADVANTAGES, old=listed(OLD), **PLAIN | changes)[0].item()

    assert loss() == loss(epsilon_high=0.2)
    assert abs(loss() - loss(epsilon_high=0.4)) > 1e-3
    assert abs(loss(epsilon=0.1) - loss(epsilon=0.1, epsilon_high=0.3)) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_without_old_logprobs_the_gradient_is_that_of_equal_ones(kind):
    """The first of several steps with the same completions: the ratio is 1 and has a gradient."""
    gradients = []
    for old in (None, listed(CURRENT)):
        values = [own.clone().requires_grad_() for own in CURRENT]
        loss, metrics = KINDS[kind](values, ADVANTAGES, old=old, **PLAIN)
        loss.backward()
        gradients.append(torch.cat([own.grad for own in values]))
        assert metrics["clipped"] == 0
    assert torch.equal(*gradients)
    assert gradients[0].abs().min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_zero_advantages_have_no_gradient_but_that_of_the_divergence(kind):
    for beta in (0.0, 0.2):
        values = [own.clone().requires_grad_() for own in CURRENT]
        loss, _ = KINDS[kind](
            values, [0.0] * 4, old=listed(OLD), reference=listed(REFERENCE), **PLAIN | {"beta": beta}
        )
        loss.backward()
        gradient = torch.cat([own.grad for own in values])
        assert (loss.item() == 0) == (beta == 0)
        assert bool((gradient == 0).all()) == (beta == 0)


def test_the_divergence_is_zero_at_the_reference_and_positive_elsewhere():
    settings = PLAIN | {"beta": 1.0}
    assert grpo(CURRENT, [0.0] * 4, reference=listed(CURRENT), **settings)[1]["kl"] == 0
    for reference in (OLD, REFERENCE):
        assert grpo(CURRENT, [0.0] * 4, reference=listed(reference), **settings)[1]["kl"] > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_the_weighted_mean_of_its_parts(kind):
    """As a step is of its micro-batches, by the unit that the loss names."""
    settings = PLAIN | {"beta": 0.1}
    whole = KINDS[kind](CURRENT, ADVANTAGES, old=listed(OLD), reference=listed(REFERENCE), **settings)
    total, sums = 0.0, dict.fromkeys(("loss", *whole[1]), 0.0)
    for part in (slice(0, 1), slice(1, 4)):
        by_unit = {"tokens": sum(LENGTHS[part]), "responses": len(LENGTHS[part])}
        weight = by_unit[LOSSES[kind].mean_over]
        loss, metrics = KINDS[kind](
            CURRENT[part],
            ADVANTAGES[part],
            old=listed(OLD[part]),
            reference=listed(REFERENCE[part]),
            **settings,
        )
        total += weight
        for name, value in {"loss": loss.item(), **metrics}.items():
            sums[name] += weight * value
    expected = {"loss": whole[0].item(), **whole[1]}
    assert {name: value / total for name, value in sums.items()} == pytest.approx(expected, rel=1e-12)


def test_options_are_those_of_the_loss():
    assert [name for name, loss in LOSSES.items() if loss.objective == "grpo"] == list(KINDS)
    assert LossSettings(loss_type="grpo").options() == {"epsilon": 0.2, "epsilon_high": None, "beta": 0.0}
    assert LossSettings(loss_type="dapo", epsilon_high=0.28, beta=0.1).options()["epsilon_high"] == 0.28
