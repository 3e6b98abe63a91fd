import pytest

from longrm.evaluation.rules import long_form_rewardbench
from longrm.types import Outcome

FOUR = (1, 2, 2, 2)


def test_the_right_response_has_to_beat_all_and_items_count_alike(judgment):
    records = [
        judgment("1", ranks=FOUR, scores=(3.0, 1.0, 2.0, 0.0), task="chat"),
        judgment("2", ranks=FOUR, scores=(3.0, 3.0, 2.0, 0.0), task="chat"),  # a tie is wrong
        judgment("3", ranks=FOUR, scores=(2.0, 3.0, 2.0, 0.0), task="chat"),
        judgment("4", ranking=(0, 1), task="reasoning"),
        judgment("5", ranks=FOUR, outcome=Outcome.UNPARSED, task="chat"),
        judgment("6", ranks=FOUR, outcome=Outcome.ERROR, task="chat"),
        judgment("7", ranks=(1, 1, 2), scores=(5.0, 2.0, 3.0), task="qa"),  # one right response does not
    ]
    found = long_form_rewardbench(records, "logit")
    assert found == {
        "overall_percent": pytest.approx(100 * 2 / 6),
        "by_subset_percent": {"chat": 25.0, "qa": 0.0, "reasoning": 100.0},
        "items": 6,
        "left_out": 1,
    }
    assert long_form_rewardbench([], "verdict")["overall_percent"] is None
