"""Losses of scores: against closed forms written out in plain Python, and against finite differences."""

import itertools
import math

import pytest
import torch

from longrm.training.losses import (
    bradley_terry,
    centering,
    hardest,
    mean_rejected,
    plackett_luce,
)

TOLERANCE = 1e-12
KINDS = {
    "bradley_terry": bradley_terry,
    "hardest": hardest,
    "mean_rejected": mean_rejected,
    "plackett_luce": plackett_luce,
}
PAIR_KINDS = {name: loss for name, loss in KINDS.items() if name != "plackett_luce"}
SCORES = [0.2, -0.4, 1.3, 0.7, 2.0, 1.1, -0.6, 0.5, 0.3]
RANKS = [(2, 1, 3, 2), (1, 2), (1, 3, 1)]  # ties between the best and between others


def cost(x, sure=1.0):
    return sure * math.log1p(math.exp(-x)) + (1 - sure) * math.log1p(math.exp(x))


def closed_form(kind, scores, ranks, margins=None, probabilities=None):
    """The definitions, one comparison at a time."""
    margins, sure = margins or [0.0] * len(ranks), probabilities or [1.0] * len(ranks)
    parts, start = [], 0
    for own, margin, p in zip(ranks, margins, sure, strict=True):
        r = scores[start : start + len(own)]
        start += len(own)
        places = range(len(own))
        ordered = [(i, j) for i in places for j in places if own[i] < own[j]]
        best = [i for i in places if own[i] == min(own)]
        worse = [r[j] for j in places if own[j] > min(own)]
        match kind:
            case "bradley_terry":
                terms = [cost(r[i] - r[j] - margin, p) for i, j in ordered]
            case "hardest":
                terms = [cost(r[i] - max(worse) - margin, p) for i in best]
            case "mean_rejected":
                terms = [cost(r[i] - sum(worse) / len(worse) - margin, p) for i in best]
            case "plackett_luce":
                terms = [
                    math.log(sum(math.exp(r[j]) for j in places if j == i or own[j] > own[i])) - r[i]
                    for i in places
                    if own[i] < max(own)
                ]
        parts.append(sum(terms) / len(terms))
    return sum(parts) / len(parts)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def value(loss, scores, ranks, **options):
    return loss(double(scores), ranks, **options)[0].item()


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_their_closed_forms(kind):
    found = value(KINDS[kind], SCORES, RANKS)
    assert found == pytest.approx(closed_form(kind, SCORES, RANKS), rel=TOLERANCE)
    others = [closed_form(other, SCORES, RANKS) for other in KINDS if other != kind]
    assert min(abs(found - other) for other in others) > 1e6 * TOLERANCE


@pytest.mark.parametrize("kind", PAIR_KINDS)
def test_margins_and_probabilities_are_their_closed_forms(kind):
    options = {"margins": [0.3, -0.2, 1.0], "probabilities": [0.9, 0.5, 0.75]}
    found = value(KINDS[kind], SCORES, RANKS, **options)
    assert found == pytest.approx(closed_form(kind, SCORES, RANKS, **options), rel=TOLERANCE)
    for left_out in options:
        other = closed_form(kind, SCORES, RANKS, **{k: v for k, v in options.items() if k != left_out})
        assert abs(found - other) > 1e6 * TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_pair_all_kinds_are_the_logistic_loss_of_its_margin(kind):
    assert value(KINDS[kind], [0.3, 1.1], [(1, 2)]) == pytest.approx(cost(0.3 - 1.1), rel=TOLERANCE)
    assert value(KINDS[kind], [0.3, 1.1], [(2, 1)]) == pytest.approx(cost(1.1 - 0.3), rel=TOLERANCE)


def test_the_likelihoods_of_all_rankings_sum_to_one():
    """Independent of the closed form above: exp(-(N - 1) loss) is a probability over the N! orders."""
    scores = [0.5, -1.0, 2.0, 0.1]
    orders = list(itertools.permutations((1, 2, 3, 4)))
    likelihoods = [math.exp(-3 * value(plackett_luce, scores, [order])) for order in orders]
    assert sum(likelihoods) == pytest.approx(1.0, rel=TOLERANCE)
    others = [math.exp(-3 * value(bradley_terry, scores, [order])) for order in orders]
    assert abs(sum(others) - 1.0) > 1e6 * TOLERANCE


def test_probabilities_weigh_the_order_and_its_reverse():
    loss = value(bradley_terry, [0.3, 1.1], [(1, 2)], probabilities=[0.7])
    both = [value(bradley_terry, [0.3, 1.1], [order]) for order in ((1, 2), (2, 1))]
    assert loss == pytest.approx(0.7 * both[0] + 0.3 * both[1], rel=TOLERANCE)


def test_centering_is_the_square_of_the_sum_of_a_pair_and_leaves_differences_alone():
    assert centering(double([0.3, 1.1, -1.0, 2.0]), [(1, 2), (2, 1)]).item() == pytest.approx(
        (1.4**2 + 1.0) / 2
    )
    scores = double([0.2, -0.4, 1.3, 0.7]).requires_grad_()
    centering(scores, [(1, 2, 3, 4)]).backward()
    assert scores.grad is not None
    assert torch.allclose(scores.grad, scores.grad[0].expand(4))
    assert abs(scores.grad[0].item()) > 0.1
    assert centering(double([-1.0, 0.25, 0.75]), [(1, 2, 3)]).item() == pytest.approx(0.0)


@pytest.mark.parametrize("kind", [*KINDS, "centering"])
def test_gradients_agree_with_finite_differences(kind):
    loss = KINDS.get(kind, lambda scores, ranks: (centering(scores, ranks),))
    options = {"margins": [0.3, -0.2, 1.0], "probabilities": [0.9, 0.5, 0.75]} if kind in PAIR_KINDS else {}
    scores = double(SCORES).requires_grad_()
    assert torch.autograd.gradcheck(lambda values: loss(values, RANKS, **options)[0], (scores,))


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_responses_and_of_comparisons_does_not_matter(kind):
    truth = value(KINDS[kind], SCORES[:4] + SCORES[4:6], RANKS[:2])
    scores, ranks = SCORES[:4], RANKS[0]
    for order in itertools.permutations(range(4)):
        moved = [scores[i] for i in order], tuple(ranks[i] for i in order)
        found = value(KINDS[kind], SCORES[4:6] + moved[0], [RANKS[1], moved[1]])
        assert found == pytest.approx(truth, rel=TOLERANCE)
    unequal = value(KINDS[kind], scores[::-1] + SCORES[4:6], RANKS[:2])
    assert abs(unequal - truth) > 1e6 * TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_every_comparison_weighs_the_same_whatever_its_size(kind):
    sizes = [(SCORES[:4], RANKS[0]), (SCORES[4:6], RANKS[1]), (SCORES[6:], RANKS[2])]
    apart = [KINDS[kind](double(scores), [ranks]) for scores, ranks in sizes]
    loss, figures = KINDS[kind](double(SCORES), RANKS)
    assert loss.item() == pytest.approx(sum(own.item() for own, _ in apart) / 3, rel=TOLERANCE)
    for name, figure in figures.items():
        assert figure == pytest.approx(sum(own[name] for _, own in apart) / 3, rel=TOLERANCE), name


def test_figures_count_ordered_pairs_and_equal_scores_half():
    _, figures = bradley_terry(double([0.2, -0.4, 1.3, 0.0, 2.0, 1.0]), [(2, 1, 3, 2), (1, 2)])
    # (1,0) (1,2) (1,3) (0,2) (3,2) of the first are all wrong; the second is right.
    assert figures["accuracy"] == pytest.approx(0.5)
    assert figures["margin"] == pytest.approx(((-0.6 - 1.7 - 0.4 - 1.1 - 1.3) / 5 + 1.0) / 2)
    assert figures["score"] == pytest.approx((1.1 / 4 + 1.5) / 2)
    assert bradley_terry(torch.zeros(2), [(2, 1)])[1]["accuracy"] == 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lead", [1e4, -1e4])
def test_extreme_scores_stay_finite(kind, lead):
    scores = torch.tensor([lead, 0.0, -lead, 5.0, 5.0]).requires_grad_()
    loss, figures = KINDS[kind](scores, [(1, 2, 3), (1, 2)])
    loss.backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert all(map(math.isfinite, [loss.item(), *figures.values()]))
    assert loss.item() > 1e3 if lead < 0 else loss.item() < 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_comparison_without_order_is_refused(kind):
    with pytest.raises(ValueError, match="all tied"):
        KINDS[kind](torch.zeros(4), [(1, 2), (1, 1)])
