"""What one comparison earns in each metric, against definitions and other implementations."""

import itertools

import numpy as np
import pytest
from scipy import stats

from longrm.evaluation.metrics import (
    METRICS,
    exact_order_credit,
    kendall_tau_credit,
    position_match_credit,
    top1_credit,
)
from longrm.evaluation.table import scored_table
from longrm.runs.records import JudgmentRecord
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


def values_of_order(order, ranks):
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
        earned = [
            credit(values, ranks) for credit in (top1_credit, exact_order_credit, position_match_credit)
        ]
        values_of_orders = [values_of_order(order, ranks) for order in orders_consistent_with(values)]
        assert earned == pytest.approx(np.mean(values_of_orders, axis=0))


@pytest.mark.parametrize("ranks", GOLD_ORDERS)
def test_kendall_tau_is_scipys_and_zero_where_all_tie(ranks):
    for values in itertools.product(range(3), repeat=len(ranks)):
        expected = (
            stats.kendalltau(values, [-rank for rank in ranks]).statistic if len(set(values)) > 1 else 0.0
        )
        assert kendall_tau_credit(values, ranks) == pytest.approx(expected)


def table_of(values, ranks):
    record = JudgmentRecord(
        id="a",
        group="a",
        outcome=Outcome.ANSWERED,
        ranks=ranks,
        order=tuple(range(len(ranks))),
        scores=tuple(map(float, values)),
    )
    return scored_table([record])


@pytest.mark.parametrize("ranks", GOLD_ORDERS)
def test_chance_is_the_mean_over_all_orders(ranks):
    tables = [table_of(order, ranks) for order in itertools.permutations(range(len(ranks)))]
    for name in ("pair_accuracy", "top1", "exact_order", "position_match", "kendall_tau"):
        metric = METRICS[name]
        mean = np.mean([metric.sample(table).value for table in tables])
        assert metric.chance_on(tables[0]) == pytest.approx(mean)


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_metric_whose_chance_is_stated_has_that_of_ties(metric):
    table = table_of((2, 0, 1), (1, 2, 3))
    tied = table.sample(metric.measure, by_chance=True)
    assert metric.chance_on(table) == pytest.approx(tied.value)
