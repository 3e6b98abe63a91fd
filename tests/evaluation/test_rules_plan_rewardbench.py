import pytest

from longrm.evaluation.rules import plan_rewardbench
from longrm.types import Outcome

AB, BA = (0, 1), (1, 0)
A, B, TIE, SILENT = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5), ()


def test_trials_count_by_themselves_and_splits_alike(asked, judgment):
    records = [
        asked("right twice", (AB, A), (BA, A), task="refusal"),
        asked("one order", (AB, A), (BA, B), task="planning"),
        asked("tie and silence", (AB, TIE), (BA, SILENT), task="planning"),
        asked("other gold", (AB, A), (BA, B), task="planning", ranks=(2, 1)),
        judgment("error", outcome=Outcome.ERROR, task="planning"),
    ]
    planning = 100 * (1 + 0 + 0.5 + 0 + 0 + 1) / 6
    assert plan_rewardbench(records, "verdict") == {
        "overall_percent": pytest.approx((100 + planning) / 2),
        "by_split_percent": {"planning": pytest.approx(planning), "refusal": 100.0},
        "left_out": 1,
    }
    assert plan_rewardbench([], "verdict")["overall_percent"] is None


@pytest.mark.parametrize(("lead", "percent"), [(0.00009, 50.0), (0.00011, 100.0), (-0.00011, 0.0)])
def test_scores_that_are_nearly_equal_tie(lead, percent, asked):
    records = [asked("a", (AB, (lead, 0.0)), task="refusal")]
    assert plan_rewardbench(records, "logit")["overall_percent"] == percent
