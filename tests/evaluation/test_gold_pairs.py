import numpy as np
import pytest

from longrm.evaluation.gold_pairs import GoldPairs
from longrm.evaluation.length_bias import length_bias
from longrm.types import Outcome

OPTIONS = {"seed": 0, "resamples": 400}


def test_pairs_of_partial_orders_and_missing_answers(judgment, scored):
    records = [
        judgment("partial", "g", ranks=(2, 1, 2), scores=(0.0, 3.0, 3.0), characters=(5, 7, 9)),
        judgment("silent", "g", ranks=(1, 2), outcome=Outcome.REFUSED),
        judgment("ranking", ranks=(2, 1), ranking=(1, 0)),
    ]
    pairs = GoldPairs.of(*scored(records))
    assert pairs.row.tolist() == [0, 0, 1, 2]
    assert pairs.group.tolist() == [0, 0, 0, 1]
    assert pairs.margin.tolist() == pytest.approx([3.0, 0.0, np.nan, 1.0], nan_ok=True)
    assert pairs.longer.tolist() == pytest.approx([2, -2, np.nan, np.nan], nan_ok=True)
    assert pairs.right.tolist() == [1.0, 0.5, 0.0, 1.0]
    assert pairs.answered.tolist() == [1, 1, 0, 1]


def test_length_bias_by_hand(judgment, scored):
    records = [
        judgment("1", scores=(1.0, 0.0), characters=(90, 10)),
        judgment("2", scores=(1.0, 0.0), characters=(90, 10)),
        judgment("3", outcome=Outcome.UNPARSED, characters=(90, 10)),
        judgment("4", scores=(0.0, 1.0), characters=(10, 90)),
        judgment("5", scores=(0.0, 0.0), characters=(10, 90)),
        judgment("equal", scores=(0.0, 1.0), characters=(10, 10)),
    ]
    found = length_bias(GoldPairs.of(*scored(records)), **OPTIONS)
    assert (found["better_longer"]["value"], found["better_longer"]["n"]) == (2 / 3, 3)
    assert (found["better_shorter"]["value"], found["better_shorter"]["n"]) == (1 / 4, 2)
    assert found["difference"]["value"] == pytest.approx(2 / 3 - 1 / 4)
    assert found["difference"]["n"] == 5


def test_a_judge_that_likes_length_is_told_from_one_that_does_not(judgment, scored):
    rng = np.random.default_rng(0)

    def judged(weight):
        records = []
        for k in range(600):
            characters = rng.integers(100, 1000, 2)
            scores = rng.normal((0.8, 0.0)) + weight * characters / 500
            records.append(
                judgment(str(k), f"g{k // 2}", scores=scores.tolist(), characters=tuple(characters))
            )
        return length_bias(GoldPairs.of(*scored(records)), **OPTIONS)["difference"]

    fair, biased = judged(0.0), judged(1.0)
    assert fair["low"] < 0 < fair["high"]
    assert biased["low"] > 0.1


def test_one_side_or_no_lengths(judgment, scored):
    assert length_bias(GoldPairs.of(*scored([judgment(scores=(1.0, 0.0))])), **OPTIONS) is None
    one_side = [judgment(scores=(1.0, 0.0), characters=(2, 1))]
    found = length_bias(GoldPairs.of(*scored(one_side)), **OPTIONS)
    assert found["better_longer"]["value"] == 1.0
    assert found["better_shorter"]["value"] is None
    assert found["difference"]["value"] is None
