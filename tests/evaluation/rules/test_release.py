import dataclasses

import pytest

from longrm.evaluation.rules.release import release
from longrm.types import Outcome


@pytest.fixture
def wrote(judgment):
    """A judgment by its text alone: the response shown at position k is `order[k]`, best first in gold."""

    def make(name, text, order=(0, 1), **read):
        # `read` is what the text says when read rightly, as scores or a ranking.
        outcome = Outcome.ANSWERED if read.keys() & {"scores", "ranking"} else Outcome.UNPARSED
        fields = {"task": "LongQA", "subtype": "same"} | read
        record = judgment(name, ranks=tuple(range(1, len(order) + 1)), outcome=outcome, **fields)
        return dataclasses.replace(record, order=tuple(order), explanation=text)

    return make


def one(record, scale="verdict"):
    found = release([record], scale)
    return found["overall_percent"], [err["why"] for err in found["errs"]]


def test_pairs(wrote):
    a, b = (1.0, 0.0), (0.0, 1.0)
    assert one(wrote("x", "So [[A]]", scores=a)) == (100.0, [])
    assert one(wrote("x", "So [[B]]", scores=b)) == (0.0, [])
    assert one(wrote("x", "So [[B]]", order=(1, 0), scores=a)) == (100.0, [])
    # The analysis speaks of [[A]] and concludes [[B]], right or wrong.
    assert one(wrote("x", "[[A]] seems good, but: [[B]]", order=(1, 0), scores=a)) == (0.0, ["first_match"])
    assert one(wrote("x", "[[A]] seems good, but: [[B]]", scores=b)) == (100.0, ["first_match"])
    # A is looked for first, wherever it stands.
    assert one(wrote("x", "[[B]]? No: [[A]]", scores=a)) == (100.0, [])
    assert one(wrote("x", "Both. [[C]]", scores=(0.5, 0.5))) == (0.0, ["tie"])
    assert one(wrote("x", "[[ a ]]", scores=a)) == (0.0, ["unparsed"])
    assert one(wrote("x", "I cannot say.")) == (0.0, [])
    assert one(wrote("x", "They want [[A]] or [[B]].")) == (100.0, ["no_verdict"])


def test_rankings(wrote):
    three = {"order": (2, 0, 1), "subtype": "3"}  # shown: worst, best, middle
    assert one(wrote("x", "[[B>C>A]]", ranking=(0, 1, 2), **three)) == (100.0, [])
    assert one(wrote("x", "[B > Assistant C > assistant A]", ranking=(0, 1, 2), **three)) == (100.0, [])
    # Positions, not orders: B first is right, and the other two stand the wrong way round.
    assert one(wrote("x", "[[B>A>C]]", ranking=(0, 2, 1), **three)) == (pytest.approx(100 / 3), [])
    first = "First I thought [[A>B>C]], now [[B>C>A]]"
    assert one(wrote("x", first, ranking=(0, 1, 2), **three)) == (0.0, ["first_match"])
    assert one(wrote("x", "[[b>c>a]]", ranking=(0, 1, 2), **three)) == (0.0, ["unparsed"])
    assert one(wrote("x", "1 > 0. " * 9 + "[[B>C>A]]", ranking=(0, 1, 2), **three)) == (0.0, ["unparsed"])
    # Half a ranking earns what it has: in the order shown, the best first.
    half = {"order": (0, 1, 2), "subtype": "3"}
    assert one(wrote("x", "[[A>B]]", **half)) == (pytest.approx(200 / 3), ["partial"])
    assert one(wrote("x", "[[A>C]]", **half)) == (0.0, [])
    assert one(wrote("x", "[[A>A>B]]", **half)) == (0.0, [])


def test_scores(wrote):
    assert one(wrote("x", "", scores=(2.0, 1.0)), "logit") == (100.0, [])
    # A tie keeps the order shown, which is right here and wrong there.
    assert one(wrote("x", "", scores=(1.0, 1.0)), "logit") == (100.0, ["tie"])
    assert one(wrote("x", "", order=(1, 0), scores=(1.0, 1.0)), "logit") == (0.0, ["tie"])
    four = {"order": (3, 1, 0, 2), "subtype": "4"}
    assert one(wrote("x", "", scores=(0.9, 0.1, 0.5, 0.0), **four), "logit") == (50.0, [])
    assert one(wrote("x", ""), "logit") == (0.0, [])


def test_only_the_first_asking_counts_and_errors_do_not(asked, judgment):
    twice = asked("x", ((0, 1), (1.0, 0.0)), ((1, 0), (0.0, 1.0)))
    assert release([twice], "logit")["overall_percent"] == 100.0
    empty = release([judgment("e", outcome=Outcome.ERROR)], "logit")
    assert empty == {
        "overall_percent": None,
        "by_task_percent": {},
        "by_rank_percent": {},
        "errs": [],
        "left_out": 1,
    }


def test_tasks_are_of_pairs_and_ranks_of_rankings(wrote):
    records = [
        wrote("p1", "[[A]]", scores=(1.0, 0.0)),
        wrote("p2", "[[B]]", scores=(0.0, 1.0)),
        wrote("p3", "[[A]]", scores=(1.0, 0.0), task="Summ", subtype=""),
        wrote("r2", "[[A>B]]", scores=(1.0, 0.0), subtype="2"),
        wrote("r3", "[[A>C>B]]", order=(0, 1, 2), ranking=(0, 2, 1), subtype="3", task="Cite"),
    ]
    assert release(records, "verdict") == {
        "overall_percent": pytest.approx(100 * (1 + 0 + 1 + 1 + 1 / 3) / 5),
        "by_task_percent": {"LongQA": 50.0, "Summ": 100.0},
        "by_rank_percent": {"2": 100.0, "3": pytest.approx(100 / 3)},
        "errs": [],
        "left_out": 0,
    }


def test_items_whose_gold_ties_all_candidates_count_as_in_the_release(wrote):
    right = wrote("x", "[[A]]", scores=(1.0, 0.0))
    tied = dataclasses.replace(wrote("y", "[[B]]", scores=(0.0, 1.0)), ranks=(1, 1))
    found = release([right, tied], "verdict")
    assert (found["overall_percent"], found["left_out"]) == (50.0, 0)
    assert release([right], "verdict")["overall_percent"] == 100.0  # control
