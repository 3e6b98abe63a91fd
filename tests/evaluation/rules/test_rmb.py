import pytest

from longrm.evaluation.rules import rmb
from longrm.types import Outcome


def test_pairs_and_best_of_n_are_separate_sets(judgment):
    three = {"ranks": (1, 2, 2), "task": "Chat"}
    records = [
        judgment("pairwise/1", scores=(2.0, 1.0), task="Chat"),
        judgment("pairwise/2", scores=(1.0, 1.0), task="Chat"),  # a tie is wrong
        judgment("pairwise/3", scores=(2.0, 1.0), task="Code"),
        judgment("pairwise/4", scores=(2.0, 1.0), ranks=(1, 1), task="Code"),  # counts as it was judged
        judgment("pairwise/5", outcome=Outcome.UNPARSED, task="Code"),
        judgment("bon/1", scores=(3.0, 1.0, 2.0), **three),
        judgment("bon/2", scores=(3.0, 1.0, 3.0), **three),  # beats one, and ties with the other
        judgment("bon/3", scores=(2.0, 1.0, 3.0), **three),  # beats one of two
        judgment("bon/4", ranking=(0, 2, 1), **three),
        judgment("bon/5", scores=(3.0, 1.0, 3.0), ranks=(1, 2, 1), task="Chat"),  # identical to the best
        judgment("bon/6", outcome=Outcome.ERROR, **three),
        judgment("pairwise/6", scores=(2.0, 1.0), task="Harmlessness"),
    ]
    assert rmb(records, "logit") == {
        "overall_percent": pytest.approx((60 + 40 + 100) / 3),
        "by_set_percent": {
            "harmlessness, pairwise": 100.0,
            "helpfulness, bon": 40.0,
            "helpfulness, pairwise": 60.0,
        },
        "by_category_percent": {
            "Chat, bon": 40.0,
            "Chat, pairwise": 50.0,
            "Code, pairwise": pytest.approx(200 / 3),
            "Harmlessness, pairwise": 100.0,
        },
        "items": {"harmlessness, pairwise": 1, "helpfulness, bon": 5, "helpfulness, pairwise": 5},
        "left_out": 1,
    }
    assert rmb([], "logit")["overall_percent"] is None
