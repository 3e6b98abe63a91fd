import numpy as np
import pytest
from sklearn import metrics

from longrm.evaluation.rules import judgelrm
from longrm.types import Outcome

FIRST, SECOND, TIE = (1, 2), (2, 1), (1, 1)


def test_three_classes_by_hand(judgment):
    records = [
        judgment("1", ranks=FIRST, scores=(9.0, 2.0)),
        judgment("2", ranks=FIRST, scores=(5.0, 5.0)),
        judgment("3", ranks=SECOND, scores=(2.0, 9.0)),
        judgment("4", ranks=SECOND, scores=(9.0, 2.0)),
        judgment("5", ranks=TIE, scores=(7.0, 7.0)),
        judgment("6", ranks=TIE, outcome=Outcome.UNPARSED),  # the class of a tie
        judgment("7", ranks=TIE, scores=(7.0, 8.0)),
        judgment("8", ranks=FIRST, outcome=Outcome.UNPARSED),
        judgment("9", ranks=TIE, outcome=Outcome.ERROR),
        judgment("10", ranks=None, scores=(1.0, 0.0)),
    ]
    found = judgelrm(records, "points")
    assert found["by_gold_percent"] == pytest.approx({"first": 100 / 3, "second": 50, "tie": 200 / 3})
    assert found["overall_percent"] == pytest.approx(100 * 4 / 8)
    assert (found["pairs"], found["left_out"]) == (8, 1)
    assert judgelrm([], "points")["overall_percent"] is None


@pytest.mark.parametrize("judged", [3, 2])  # 2: no pair is judged a tie, so its precision is 0
def test_means_over_classes_are_those_of_scikit_learn(judged, judgment):
    rng = np.random.default_rng(5)
    gold, found = rng.integers(0, 3, 200), rng.integers(0, judged, 200)
    ranks, scores = [FIRST, SECOND, TIE], [(9.0, 1.0), (1.0, 9.0), (5.0, 5.0)]
    records = [
        judgment(str(n), ranks=ranks[g], scores=scores[f])
        for n, (g, f) in enumerate(zip(gold, found, strict=True))
    ]
    rule = judgelrm(records, "points")
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        gold, found, average="macro", zero_division=0
    )
    assert rule["overall_percent"] == pytest.approx(100 * metrics.accuracy_score(gold, found))
    assert rule["precision_percent"] == pytest.approx(100 * precision)
    assert rule["recall_percent"] == pytest.approx(100 * recall)
    assert rule["f1_percent"] == pytest.approx(100 * f1)
