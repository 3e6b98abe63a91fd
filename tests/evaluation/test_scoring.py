import itertools
import math

import numpy as np
import pytest
from scipy import stats

from longrm.evaluation.scoring import chance_score, judged_values, score_order
from longrm.types import Outcome

GOLD_ORDERS = [
    (1, 2),
    (1, 2, 3),
    (2, 3, 1),
    (1, 2, 3, 4),
    (1, 1, 2),
    (1, 2, 2, 3),
    (1, 2, 2, 2),
    (3, 1, 1, 2),
]


def orders_consistent_with(values):
    """Every order, best first, that the values allow."""
    n = len(values)
    return [
        order
        for order in itertools.permutations(range(n))
        if all(values[a] >= values[b] for a, b in itertools.pairwise(order))
    ]


def figures_of_order(order, ranks):
    """Top-1, exact order and position match of one strict order, from their definitions."""
    golds = orders_consistent_with([-rank for rank in ranks])
    in_place = sum(order[p] in {gold[p] for gold in golds} for p in range(len(order)))
    return (
        float(order[0] in {gold[0] for gold in golds}),
        float(order in golds),
        in_place / len(order),
    )


@pytest.mark.parametrize("ranks", GOLD_ORDERS)
def test_ties_earn_the_mean_over_all_orders_they_allow(ranks):
    for values in itertools.product(range(3), repeat=len(ranks)):
        score = score_order(values, ranks)
        figures = [figures_of_order(order, ranks) for order in orders_consistent_with(values)]
        expected = np.mean(figures, axis=0)
        assert (score.top1, score.exact_order, score.position_match) == pytest.approx(tuple(expected))


@pytest.mark.parametrize("ranks", GOLD_ORDERS)
def test_kendall_tau_is_scipys_and_zero_where_all_tie(ranks):
    for values in itertools.product(range(3), repeat=len(ranks)):
        expected = (
            stats.kendalltau(values, [-rank for rank in ranks]).statistic if len(set(values)) > 1 else 0.0
        )
        assert score_order(values, ranks).kendall_tau == pytest.approx(expected)


def test_pair_accuracy_counts_gold_ordered_pairs_only():
    score = score_order((0.9, 0.5, 0.5, 0.7), (1, 2, 3, 3))
    # Told apart by gold: 0>1 right, 0>2 right, 0>3 right, 1>2 tied, 1>3 wrong; 2 and 3 tie in gold.
    assert (score.pairs, score.pair_accuracy) == (5, 3.5)


@pytest.mark.parametrize("ranks", GOLD_ORDERS)
def test_chance_is_the_mean_over_all_orders(ranks):
    orders = list(itertools.permutations(range(len(ranks))))
    scores = [score_order(order, ranks) for order in orders]
    for name in ("pair_accuracy", "top1", "exact_order", "position_match", "kendall_tau"):
        mean = np.mean([getattr(score, name) for score in scores])
        assert getattr(chance_score(ranks), name) == pytest.approx(mean)


def test_a_ranking_is_judged_like_scores_of_the_same_order(judgment):
    ranks = (2, 1, 4, 3)
    by_order = judged_values(judgment(ranks=ranks, ranking=(1, 0, 3, 2)))
    assert score_order(by_order, ranks).exact_order == 1.0
    assert score_order(judged_values(judgment(ranks=ranks, ranking=(2, 3, 0, 1))), ranks).pair_accuracy == 0.0


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.ANSWERED])
def test_only_answers_have_values(judgment, outcome):
    assert judged_values(judgment(outcome=outcome, scores=(1.0, 0.0))) is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"scores": (1.0, 2.0, 3.0)}, "3 scores for 2"),
        ({"scores": (1.0, math.nan)}, "not finite"),
        ({"scores": (1.0, math.inf)}, "not finite"),
        ({"ranking": (0, 0)}, "order of 2"),
        ({}, "without 2 scores"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(judgment, answer, message):
    with pytest.raises(ValueError, match=message):
        judged_values(judgment(**answer))
