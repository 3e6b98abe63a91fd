import pytest
from scipy.stats import kendalltau

from longrm.evaluation.rules import if_rewardbench
from longrm.types import Outcome

RIGHT, WRONG, TIE = (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)


def test_edges_are_averaged_within_items_then_types(judgment):
    def edges(group, task, *scores):
        return [judgment(f"{group}#{n}", group, scores=score, task=task) for n, score in enumerate(scores)]

    records = [
        *edges("1", "Single_Turn", RIGHT, RIGHT, RIGHT, WRONG),
        *edges("2", "Single_Turn", WRONG),
        *edges("3", "Multi_Turn", RIGHT, TIE),
        judgment("3#9", "3", outcome=Outcome.UNPARSED, task="Multi_Turn"),
        judgment("3#8", "3", outcome=Outcome.ERROR, task="Multi_Turn"),
        judgment("3#7", "3", ranks=(2, 1), scores=WRONG, task="Multi_Turn"),
    ]
    single, multi = (3 / 4 + 0) / 2, 2 / 4
    found = if_rewardbench(records, "logit")
    assert found["by_type_percent"] == pytest.approx({"Multi_Turn": 100 * multi, "Single_Turn": 100 * single})
    assert found["overall_percent"] == pytest.approx(100 * (single + multi) / 2)
    assert found["overall_percent"] != pytest.approx(100 * 5 / 9)  # what all edges together would have
    taus = {"Single_Turn": ((3 - 1) / 4 - 1) / 2, "Multi_Turn": 2 / (2 * 4) ** 0.5}
    assert found["kendall_tau_b_by_type"] == pytest.approx(taus)
    assert found["kendall_tau_b"] == pytest.approx(sum(taus.values()) / 2)
    assert (found["items"], found["edges"], found["left_out"]) == (3, 9, 1)
    assert if_rewardbench([], "logit")["overall_percent"] is None


def test_tau_is_scipys_where_the_graph_is_a_full_order(judgment):
    scores = (0.3, 0.9, 0.3, 0.1)  # of responses whose gold order is 0 > 1 > 2 > 3
    records = [
        judgment(f"1#{i}>{j}", "1", scores=(scores[i], scores[j]), task="Single_Turn")
        for i in range(4)
        for j in range(i + 1, 4)
    ]
    found = if_rewardbench(records, "logit")["kendall_tau_b"]
    assert found == pytest.approx(kendalltau([4, 3, 2, 1], scores).statistic)
    assert if_rewardbench([judgment("t", scores=TIE, task="x")], "logit")["kendall_tau_b"] == 0.0
