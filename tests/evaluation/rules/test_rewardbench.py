import math

import pytest

from longrm.evaluation.rules import COUNTS, rewardbench, rewardbench_2
from longrm.types import Outcome

RIGHT, WRONG, TIE = (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)


def test_math_weighs_as_much_as_all_code():
    code = [name for name in COUNTS if name.startswith("hep-")]
    assert len(COUNTS) == 23
    assert len(code) == 6
    assert (COUNTS["xstest-should-refuse"], COUNTS["xstest-should-respond"]) == (154, 250)
    assert COUNTS["math-prm"] == sum(COUNTS[name] for name in code)


def test_sections_by_hand(judgment):
    records = [
        judgment("1", scores=RIGHT, task="Chat", subtype="alpacaeval-easy"),
        judgment("2", scores=WRONG, task="Chat", subtype="alpacaeval-easy"),
        judgment("3", scores=RIGHT, task="Chat", subtype="mt-bench-easy"),
        judgment("4", scores=TIE, task="Reasoning", subtype="math-prm"),
        judgment("5", scores=RIGHT, task="Reasoning", subtype="hep-go"),
        judgment("6", outcome=Outcome.UNPARSED, task="Safety", subtype="donotanswer"),
    ]
    chat = 100 * (100 * 0.5 + 28 * 1.0) / 128
    scalar = rewardbench(records, "logit")
    assert scalar["by_section_percent"] == pytest.approx(
        {"Chat": chat, "Reasoning": 100 * 164 / (984 + 164), "Safety": 0.0}
    )
    assert scalar["overall_percent"] == pytest.approx(sum(scalar["by_section_percent"].values()) / 3)
    assert scalar["by_subset_percent"]["alpacaeval-easy"] == 50.0
    for scale in ("verdict", "points"):  # no winner counts one half, by verdicts and by ratings
        written = rewardbench(records, scale)
        assert written["by_section_percent"] == pytest.approx(
            {"Chat": chat, "Reasoning": 100 * (984 * 0.5 + 164) / (984 + 164), "Safety": 50.0}
        )
    assert rewardbench([], "logit")["overall_percent"] is None


def test_best_of_four_shares_the_top(judgment):
    four = (1, 2, 2, 2)
    records = [
        judgment("a", ranks=four, scores=(3.0, 1.0, 2.0, 0.0), task="Math"),
        judgment("b", ranks=four, scores=(3.0, 3.0, 2.0, 0.0), task="Math"),
        judgment("c", ranks=four, scores=(1.0, 3.0, 1.0, 0.0), task="Math"),
        judgment("d", ranks=four, outcome=Outcome.UNPARSED, task="Focus"),
    ]
    assert rewardbench_2(records, "logit")["by_subset_percent"] == {"Focus": 0.0, "Math": 50.0}
    assert rewardbench_2(records, "points")["by_subset_percent"] == {"Focus": 25.0, "Math": 50.0}
    assert rewardbench_2(records, "verdict") == {
        "overall_percent": 37.5,
        "by_subset_percent": {"Focus": 25.0, "Math": 50.0},
        "left_out": 0,
        "note": "",
    }


def test_ties_by_hand(judgment):
    def item(name, right, wrong, **extra):
        ranks = (*[1] * right, *[2] * wrong)
        return judgment(name, ranks=ranks, task="Ties", **extra)

    records = [
        # K = 1: right 9 and 7 (spread 2), wrong at most 4: margin 3; the reference has margin 2.5.
        item("tied:1", 2, 2, scores=(9.0, 7.0, 4.0, 1.0)),
        item("ref:1", 1, 2, scores=(5.0, 2.5, 1.0)),
        # K = 2: spread 1, margin 4; the reference fails by 1.
        item("tied:2", 2, 1, scores=(6.0, 5.0, 1.0)),
        item("ref:2", 1, 1, scores=(1.0, 2.0)),
        # K = 3: no spread, margin 0; the reference is right by 1.
        item("tied:3", 2, 1, scores=(1.0, 1.0, 1.0)),
        item("ref:3", 1, 1, scores=(2.0, 1.0)),
        # K = 4: never answered, so that all is equal; its reference is missing.
        item("tied:4", 2, 1, outcome=Outcome.UNPARSED),
    ]
    tanh = (math.tanh(2.5 / 2 - 1) + math.tanh(-1 / 1 - 1) + 0.0) / 3
    expected = 0.3 * 2 / 4 + 0.3 * 2 / 3 + 0.2 * 2 / 3 + 0.2 * 1 / 3 + 0.01 * tanh
    found = rewardbench_2(records, "logit")
    assert found["by_subset_percent"]["Ties"] == pytest.approx(100 * expected)
    assert found["overall_percent"] == pytest.approx(100 * expected)


def test_verdicts_have_no_ties_score(judgment):
    # A perfect ranking puts the tied right answers a step apart, like a wrong one.
    tied = judgment("tied:7", ranks=(1, 1, 2), ranking=(0, 1, 2), task="Ties")
    ref = judgment("ref:7", ranks=(1, 2), scores=RIGHT, task="Ties")
    math_item = judgment("m", ranks=(1, 2), scores=RIGHT, task="Math")
    found = rewardbench_2([tied, ref, math_item], "verdict")
    assert found["by_subset_percent"] == {"Math": 100.0, "Ties": None}
    assert found["overall_percent"] is None
    assert "need ratings" in found["note"]
    assert rewardbench_2([tied, ref, math_item], "points")["overall_percent"] is not None


@pytest.mark.parametrize("rule", [rewardbench, rewardbench_2])
def test_errors_are_left_out_and_counted(judgment, rule):
    fields = {"task": "Math", "subtype": "hep-go"}
    records = [judgment("a", scores=RIGHT, **fields), judgment("no gold", ranks=None, scores=RIGHT, **fields)]
    failed = [judgment("e", outcome=Outcome.ERROR, **fields)]
    for scale in ("logit", "verdict"):
        found = rule(records + failed, scale)
        assert found == rule(records, scale) | {"left_out": 1}
        assert found["overall_percent"] == 100.0
