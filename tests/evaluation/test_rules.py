import math

import numpy as np
import pytest

from longrm.evaluation.rules import COUNTS, long_form_rewardbench, rewardbench, rewardbench_2, rm_bench, rmb
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


RANKS = (1, 1, 1, 2, 2, 2)


def test_difficulties_by_hand(judgment):
    records = [
        # Right 1, 5, 9 against wrong 4, 6, 8: the richest right response beats all, the middle one the poorest.
        judgment("a", ranks=RANKS, scores=(1.0, 5.0, 9.0, 4.0, 6.0, 8.0), task="chat"),
        judgment("b", ranks=RANKS, scores=(3.0, 3.0, 3.0, 3.0, 2.0, 1.0), task="math"),  # ties are wrong
        judgment("c", ranks=RANKS, outcome=Outcome.UNPARSED, task="math"),
        judgment("d", ranks=RANKS, outcome=Outcome.ERROR, task="math"),
    ]
    found = rm_bench(records, "logit")
    # chat: easy 3 of 3 (9>4, 9>6, 5>4), normal 1 of 3 (9>8), hard 0 of 3; math: halved by the silent item.
    assert found["by_difficulty_percent"] == pytest.approx(
        {
            "easy": 100 * (1 + (1 / 3) / 2) / 2,
            "normal": 100 * (1 / 3 + (2 / 3) / 2) / 2,
            "hard": 100 * (0 + 0.5) / 2,
        }
    )
    assert found["by_domain_percent"] == pytest.approx(
        {"chat": 100 * (1 + 1 / 3) / 3, "math": 100 * (1 / 6 + 1 / 3 + 1 / 2) / 3}
    )
    assert found["overall_percent"] == pytest.approx(np.mean([*found["by_domain_percent"].values()]))
    assert found["overall_percent"] == pytest.approx(np.mean([*found["by_difficulty_percent"].values()]))
    assert found["left_out"] == 1
    assert rm_bench([], "logit") == {
        "overall_percent": None,
        "by_difficulty_percent": {},
        "by_domain_percent": {},
        "left_out": 0,
    }


def test_the_matrix_by_loops(judgment):
    rng = np.random.default_rng(3)
    scores = rng.integers(0, 5, (40, 6)).astype(float)
    records = [judgment(str(n), ranks=RANKS, scores=tuple(row), task="chat") for n, row in enumerate(scores)]
    wins = {(i, j): sum(row[i] > row[3 + j] for row in scores) / 40 for i in range(3) for j in range(3)}
    expected = {
        "easy": np.mean([wins[i, j] for i, j in wins if i > j]),
        "normal": np.mean([wins[i, j] for i, j in wins if i == j]),
        "hard": np.mean([wins[i, j] for i, j in wins if i < j]),
    }
    found = rm_bench(records, "points")["by_difficulty_percent"]
    assert found == pytest.approx({name: 100 * value for name, value in expected.items()})


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
