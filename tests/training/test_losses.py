import itertools
import math

import pytest
import torch

from longrm.training.losses import bradley_terry


def test_a_pair_is_the_logistic_loss_of_its_margin():
    loss, figures = bradley_terry(torch.tensor([0.3, 1.1]), [(1, 2)])
    assert loss.item() == pytest.approx(math.log1p(math.exp(1.1 - 0.3)), rel=1e-6)
    assert figures["accuracy"] == 0.0


def test_equal_scores_cost_log_two_and_count_half():
    loss, figures = bradley_terry(torch.zeros(2), [(2, 1)])
    assert loss.item() == pytest.approx(math.log(2.0))
    assert figures["accuracy"] == 0.5


def test_rankings_average_over_their_ordered_pairs_then_over_comparisons():
    scores = torch.tensor([0.2, -0.4, 1.3, 0.0, 2.0, 1.0], dtype=torch.float64)
    ranks = [(2, 1, 3, 2), (1, 2)]

    def pair(high, low):
        return math.log1p(math.exp(scores[low] - scores[high]))

    # Ranks 2 and 2 tie and form no pair: (1,0) (1,2) (1,3) (0,2) (3,2) remain.
    first = sum(pair(i, j) for i, j in [(1, 0), (1, 2), (1, 3), (0, 2), (3, 2)]) / 5
    loss, figures = bradley_terry(scores, ranks)
    assert loss.item() == pytest.approx((first + pair(4, 5)) / 2, rel=1e-12)
    assert figures == {"accuracy": pytest.approx(1 / 6), "pairs": 6.0}


def test_gradients_agree_with_finite_differences():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, dtype=torch.float64, generator=generator, requires_grad=True)
    ranks = [(1, 2, 3, 3), (3, 1, 2)]
    assert torch.autograd.gradcheck(lambda values: bradley_terry(values, ranks)[0], (scores,))


def test_the_order_of_the_responses_does_not_matter():
    scores, ranks = [0.5, -1.0, 2.0, 0.1], (1, 2, 3, 4)
    losses = {
        round(bradley_terry(torch.tensor([scores[i] for i in p]), [[ranks[i] for i in p]])[0].item(), 5)
        for p in itertools.permutations(range(4))
    }
    assert len(losses) == 1
    shuffled = bradley_terry(torch.tensor(scores), [(4, 3, 2, 1)])[0].item()
    assert round(shuffled, 5) not in losses


def test_a_comparison_without_order_is_refused():
    with pytest.raises(ValueError, match="all tied"):
        bradley_terry(torch.zeros(2), [(1, 1)])
