import numpy as np
import pytest

from longrm.evaluation.judge_behavior import length_bias, position_bias, self_preference
from longrm.evaluation.table import scored_table
from longrm.types import Outcome, Trial

OPTIONS = {"seed": 0, "resamples": 200}
AB, BA = (0, 1), (1, 0)


def values(found):
    return {
        name: getattr(found, name).value
        for name in ("consistency", "first_wins", "single_order", "order_cancelled")
    }


def held(found, size):
    return [place.value for place in found.by_place[size].values()]


def test_both_orders_by_hand(asked, judgment):
    records = [
        asked("right twice", (AB, (1.0, 0.0)), (BA, (1.0, 0.0))),
        asked("wrong twice", (AB, (0.0, 1.0)), (BA, (0.0, 1.0))),
        asked("first twice", (AB, (1.0, 0.0)), (BA, (0.0, 1.0))),
        asked("tie twice", (AB, (0.5, 0.5)), (BA, (0.5, 0.5))),
        asked("right, then tie", (AB, (1.0, 0.0)), (BA, (0.5, 0.5))),
        asked("second, then silent", (AB, (0.0, 1.0)), (BA, ())),
        judgment("one order", scores=(0.0, 1.0)),
    ]
    found = position_bias(scored_table(records), **OPTIONS)
    # Consistent: right twice, wrong twice, tie twice, of the five that were answered in both orders.
    # Decided trials: 2, 2, 2, 0, 1, 1; the first response won 1, 1, 2, 0, 1, 0 of them.
    # One trial is right by 1, 0, (1 + 0) / 2, 1/2, (1 + 1/2) / 2, (0 + 0) / 2.
    assert values(found) == {
        "consistency": 3 / 5,
        "first_wins": 5 / 8,
        "single_order": pytest.approx((1 + 0 + 0.5 + 0.5 + 0.75 + 0) / 6),
        "order_cancelled": pytest.approx((1 + 0 + 0.5 + 0.5 + 1 + 0) / 6),
    }
    assert (found.consistency.n, found.first_wins.n, found.single_order.n) == (5, 8, 6)
    # Eleven trials were answered; the three ties give half to each place.
    assert found.by_place["2"]["0"].value == pytest.approx((5 + 1.5) / 11)
    assert found.by_place["2"]["1"].value == pytest.approx((3 + 1.5) / 11)


def test_three_responses_in_a_latin_square(asked):
    orders = [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    always_first = [(order, [float(order[0] == index) for index in range(3)]) for order in orders]
    always_best = [(order, (1.0, 0.5, 0.0)) for order in orders]
    records = [
        asked("first", *always_first, ranks=(1, 2, 3)),
        asked("best", *always_best, ranks=(1, 2, 3)),
    ]
    found = position_bias(scored_table(records), **OPTIONS)
    assert found.consistency.value == 1 / 2
    assert found.first_wins.value is None  # defined for pairs only
    assert held(found, "3") == pytest.approx([4 / 6, 1 / 6, 1 / 6])
    assert found.single_order.value == pytest.approx((1 / 3 + 1) / 2)
    assert found.order_cancelled.value == pytest.approx((1 / 3 + 1) / 2)


def test_rankings_and_votes_count_by_their_points(judgment):
    ranking = Trial(order=(0, 1, 2), outcome=Outcome.ANSWERED, ranking=(2, 0, 1))
    turned = Trial(order=(2, 1, 0), outcome=Outcome.ANSWERED, ranking=(2, 1, 0))
    records = [judgment("r", ranks=(2, 3, 1), scores=(0.25, 0.25, 1.0), trials=(ranking, turned))]
    assert position_bias(scored_table(records), **OPTIONS).consistency.value == 1.0
    votes = [
        Trial(order=AB, outcome=Outcome.ANSWERED, scores=s) for s in ((1.0, 0.0), (1.0, 0.0), (0.0, 1.0))
    ]
    swapped = [
        Trial(order=BA, outcome=Outcome.ANSWERED, scores=(1.0, 0.0)),
        Trial(order=BA, outcome=Outcome.UNPARSED),
    ]
    records = [judgment("v", scores=(0.8, 0.2), trials=(*votes, *swapped))]
    found = position_bias(scored_table(records), **OPTIONS)
    assert (found.consistency.value, found.single_order.value) == (1.0, 3 / 5)


def test_a_biased_judge_is_distinguished_from_a_fair_one(asked):
    rng = np.random.default_rng(0)

    def judge(k, first):
        wins = rng.random(2) < first  # whether the response shown first wins, in each order
        return asked(
            str(k), (AB, (1.0, 0.0) if wins[0] else (0.0, 1.0)), (BA, (0.0, 1.0) if wins[1] else (1.0, 0.0))
        )

    fair, biased = (
        position_bias(scored_table([judge(k, p) for k in range(400)]), **OPTIONS).first_wins
        for p in (0.5, 0.7)
    )
    assert fair.low < 0.5 < fair.high
    assert 0.5 < biased.low < 0.7 < biased.high


def test_length_bias_by_hand(judgment):
    records = [
        judgment("1", scores=(1.0, 0.0), characters=(90, 10)),
        judgment("2", scores=(1.0, 0.0), characters=(90, 10)),
        judgment("3", outcome=Outcome.UNPARSED, characters=(90, 10)),
        judgment("4", scores=(0.0, 1.0), characters=(10, 90)),
        judgment("5", scores=(0.0, 0.0), characters=(10, 90)),
        judgment("equal", scores=(0.0, 1.0), characters=(10, 10)),
    ]
    found = length_bias(scored_table(records), **OPTIONS)
    assert (found.better_longer.value, found.better_longer.n) == (2 / 3, 3)
    assert (found.better_shorter.value, found.better_shorter.n) == (1 / 4, 2)
    assert found.difference.value == pytest.approx(2 / 3 - 1 / 4)
    assert found.difference.n == 5


def test_a_judge_that_prefers_length_is_distinguished_from_one_that_does_not(judgment):
    rng = np.random.default_rng(0)

    def judged(weight):
        records = []
        for k in range(600):
            characters = rng.integers(100, 1000, 2)
            scores = rng.normal((0.8, 0.0)) + weight * characters / 500
            records.append(
                judgment(str(k), f"g{k // 2}", scores=scores.tolist(), characters=tuple(characters))
            )
        return length_bias(scored_table(records), **OPTIONS).difference

    fair, biased = judged(0.0), judged(1.0)
    assert fair.low < 0 < fair.high
    assert biased.low > 0.1


def test_self_preference_is_over_what_gold_prefers_on_the_same_pairs(judgment):
    ours, others, answers = ("a-1", "b"), ("b", "a-2"), [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)]
    records = [
        judgment(f"{n}", ranks=(1, 2), scores=answers[n % 3], writers=(ours, others)[n % 2])
        for n in range(60)
    ]
    records += [
        judgment("both", scores=(1.0, 0.0), writers=("a-1", "a-2")),
        judgment("neither", scores=(1.0, 0.0), writers=("b", "c")),
        judgment("unknown", scores=(1.0, 0.0)),
        judgment("silent", outcome=Outcome.UNPARSED, writers=ours),
        judgment("three", ranks=(1, 2, 3), scores=(3.0, 2.0, 1.0), writers=("a-1", "b", "c")),
    ]
    found = self_preference(scored_table(records), ("a-1", "a-2"), **OPTIONS)
    assert (found.gold.value, found.judge.value, found.difference.value) == (0.5, 0.5, 0.0)
    assert found.judge.n == 60
    loyal = [
        judgment(f"{n}", scores=((1.0, 0.0), (0.0, 1.0))[n % 2], writers=(ours, others)[n % 2])
        for n in range(60)
    ]
    found = self_preference(scored_table(loyal), ("a-1", "a-2"), **OPTIONS)
    assert (found.gold.value, found.judge.value, found.difference.value) == (0.5, 1.0, 0.5)
    assert 0 < found.difference.low < 0.5 < found.difference.high
    assert self_preference(scored_table(records), ("gpt",), **OPTIONS) is None
