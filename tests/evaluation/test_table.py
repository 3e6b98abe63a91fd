from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from longrm.evaluation.estimates import metrics_for
from longrm.evaluation.judge_behavior import vote_curve
from longrm.evaluation.table import scored_table

AB, BA = (0, 1), (1, 0)
A, B, TIE, SILENT = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5), ()
OPTIONS = {"seed": 0, "resamples": 200}


def curve(records):
    return {k: metric.value for k, metric in vote_curve(scored_table(records), **OPTIONS).at.items()}


def test_the_curve_by_hand(asked):
    one_order = asked("one", (AB, A), (AB, A), (AB, B))
    # k = 1: right twice of three. k = 2: AA is right, AB twice ties. k = 3: two to one.
    assert curve([one_order]) == pytest.approx({"1": 2 / 3, "2": (1 + 0.5 + 0.5) / 3, "3": 1.0})
    silent = asked("silent", (AB, SILENT), (AB, A), (BA, A), (BA, SILENT))
    # Each single vote leaves one order without an answer; both together answer.
    assert curve([silent]) == {"1": 0.0, "2": 1.0}
    assert curve([one_order, asked("fewer", (AB, A))])["3"] == 1.0  # the other has fewer than three votes


@pytest.mark.parametrize(("n", "orders", "most"), [(2, 2, 5), (3, 3, 3), (4, 1, 4)])
def test_it_is_the_accuracy_of_the_votes_that_were_left(asked, n, orders, most):
    rng = np.random.default_rng(0)
    rows = [tuple(np.roll(np.arange(n), row).tolist()) for row in range(orders)]

    def scores():
        # Whole numbers tie often; now and then there is no answer.
        return () if rng.random() < 0.1 else np.round(rng.normal(size=n) - np.arange(n) / 2).tolist()

    records = [
        asked(str(k), *((row, scores()) for row in rows for _ in range(most)), ranks=range(1, n + 1))
        for k in range(40)
    ]
    found = curve(records)
    for k in range(1, most + 1):
        subsets = list(combinations(range(most), k))
        earned = [exact_top1(record, subset, most) for record in records for subset in subsets]
        assert found[str(k)] == pytest.approx(np.mean(earned))
    name = "top1" if n > 2 else "pair_accuracy"
    assert found[str(most)] == pytest.approx(metrics_for(scored_table(records))[name].value)
    assert found["1"] < found[str(most)]


def exact_top1(record, subset, most):
    """What a comparison whose best response is the first earns by these votes of every order, in fractions."""
    means = []
    for start in range(0, len(record.trials), most):
        answered = [trial.scores for vote in subset if (trial := record.trials[start + vote]).scores]
        if not answered:
            return 0.0
        means.append([Fraction(int(sum(column)), len(answered)) for column in zip(*answered, strict=True)])
    values = [sum(column) for column in zip(*means, strict=True)]
    top = max(values)
    return (values[0] == top) / values.count(top)


def test_many_votes_are_drawn_from_with_the_seed(asked):
    rng = np.random.default_rng(1)
    records = [
        asked(str(k), *((AB, A if right else B) for right in rng.random(15) < 0.7)) for k in range(300)
    ]
    found = curve(records)
    assert found == curve(records)
    shares = [found[str(k)] for k in (1, 3, 7, 15)]
    assert shares[0] == pytest.approx(0.7, abs=0.02)
    assert shares[1] == pytest.approx(0.7**3 + 3 * 0.7**2 * 0.3, abs=0.02)  # two or three of three
    assert shares == sorted(shares)
