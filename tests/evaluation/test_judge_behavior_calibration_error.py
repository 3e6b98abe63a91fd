import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression

from longrm.evaluation.judge_behavior import calibration, fitted_temperature
from longrm.evaluation.summary_schema import CalibratedError
from longrm.evaluation.table import scored_table
from longrm.types import Outcome, Trial

OPTIONS = {"seed": 0}


def calibrated(records, scale):
    table = scored_table(records)
    return calibration(table, scale, **OPTIONS)


@pytest.fixture
def honest(judgment):
    """Logits whose sigmoid is the probability of the gold order; then spread by a factor."""

    def make(factor, n=4000):
        rng = np.random.default_rng(0)
        logits = rng.normal(0, 1.5, n)
        right = rng.random(n) < expit(np.abs(logits))
        margins = np.where(right, 1, -1) * np.abs(logits) * factor
        return [judgment(str(k), f"g{k // 2}", scores=(m, 0.0)) for k, m in enumerate(margins.tolist())]

    return make


def test_the_curve_is_scikit_learns(honest):
    records = honest(1.7)
    found = calibrated(records, "logit")
    margins = np.array([record.scores[0] for record in records])
    # Our ten bins are the upper half of twenty from 0 to 1.
    accuracy, confidence = calibration_curve(margins > 0, expit(np.abs(margins)), n_bins=20)
    assert [b.accuracy for b in found.bins] == pytest.approx(accuracy)
    assert [b.confidence for b in found.bins] == pytest.approx(confidence)
    counts = np.histogram(expit(np.abs(margins)), np.linspace(0.5, 1, 11))[0]
    assert [b.n for b in found.bins] == counts.tolist()
    expected = (counts / counts.sum() * np.abs(accuracy - confidence)).sum()
    assert found.ece.value == pytest.approx(expected)
    assert found.ece.n == 4000


def test_the_temperature_is_that_of_a_logistic_regression(honest):
    margins = np.array([record.scores[0] for record in honest(3.0)])
    both = np.concatenate([margins, -margins])[:, None]  # a regression wants both labels
    peer = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-8)
    peer.fit(both, np.repeat([1, 0], margins.size))
    assert fitted_temperature(margins) == pytest.approx(1 / peer.coef_[0, 0], rel=1e-3)
    assert fitted_temperature(margins) == pytest.approx(3.0, rel=0.1)


def test_vote_shares_by_hand(asked, judgment):
    ab, ba = (0, 1), (1, 0)
    a, b, tie = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)
    records = [
        asked("all", (ab, a), (ba, a)),  # 1.0, right
        asked("even", (ab, a), (ba, b)),  # 0.5, a tie
        asked("three of four", (ab, b), (ab, b), (ba, b), (ba, a)),  # 0.75, wrong
        asked("half a vote", (ab, a), (ba, tie)),  # 0.75, right
        asked("silent", (ab, a), (ba, ())),  # left out
        judgment("ranking", ranks=(3, 1, 2), ranking=(1, 0, 2)),  # 1.0: two pairs right, one wrong
    ]
    found = calibrated(records, "verdict")
    assert found.link == "vote share"
    assert [(b.low, b.high, b.n, b.confidence, b.accuracy) for b in found.bins] == [
        (0.5, 0.55, 1, 0.5, 0.5),
        (0.7, 0.75, 2, 0.75, 0.5),
        (0.95, 1.0, 4, 1.0, 0.75),
    ]
    assert found.ece.value == pytest.approx((0 + 2 * 0.25 + 4 * 0.25) / 7)


@pytest.mark.parametrize("n", [20, 100])
def test_what_chance_gives_a_calibrated_judge(judgment, n):
    margin = float(np.log(3))  # a confidence of 3/4
    records = [judgment(str(k), scores=(margin if k % 4 else -margin, 0.0)) for k in range(n)]
    found = calibrated(records, "logit").ece
    gap = np.abs(np.arange(n + 1) / n - 0.75)
    chance = binom.pmf(np.arange(n + 1), n, 0.75)
    order = np.argsort(gap)
    assert found.value == pytest.approx(0)
    assert found.if_calibrated.mean == pytest.approx(gap @ chance, rel=0.1)
    exact = gap[order][np.searchsorted(np.cumsum(chance[order]), 0.95)]
    assert found.if_calibrated.high == pytest.approx(exact, abs=1.01 / n)
    ties = calibrated([judgment(str(k), scores=(0.0, 0.0)) for k in range(n)], "logit").ece
    assert ties.if_calibrated == CalibratedError(mean=0.0, high=0.0)


def test_without_a_meaning_or_an_answer_there_is_none(judgment):
    assert calibrated([judgment(scores=(1.0, 0.0))], "none") is None
    assert calibrated([judgment(outcome=Outcome.UNPARSED)], "logit") is None
    silent = judgment(outcome=Outcome.UNPARSED, trials=(Trial(order=(0, 1), outcome=Outcome.UNPARSED),) * 2)
    assert calibrated([silent], "verdict") is None
