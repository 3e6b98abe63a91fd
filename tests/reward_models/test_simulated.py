import math
from dataclasses import replace
from itertools import permutations

import pytest

import longrm
from longrm.reward_models.simulated import ErrorRates, SimulatedRewardModel
from longrm.types import Comparison, Criterion, Outcome, query_of
from longrm.worlds import WorldPlan, generate
from longrm.worlds.words_tokenizer import load_tokenizer

N = 1000


def comparisons(n=N, responses=2, ranks=None, length=None):
    ranks = tuple(range(1, responses + 1)) if ranks is None else ranks
    metadata = {} if length is None else {"length": length}
    return [
        Comparison(
            f"c{number}",
            f"g{number}",
            ({"role": "user", "content": "?"},),
            tuple(
                ({"role": "assistant", "content": f"{number} {rank} {k}"},) for k, rank in enumerate(ranks)
            ),
            ranks,
            metadata,
        )
        for number in range(n)
    ]


def verdicts(rates, rows, order=None, trial=0, seed=0):
    """The judged order of every row, best first, as indices of the comparison; None where unanswered."""
    order = order or tuple(range(len(rows[0].responses)))
    judged = SimulatedRewardModel(rates, rows, seed).judge([query_of(row, order, trial) for row in rows])
    return [best_first(judgment, order) for judgment in judged]


def best_first(judgment, order):
    if judgment.outcome is not Outcome.ANSWERED:
        return None
    positions = judgment.ranking or sorted(range(len(order)), key=lambda position: -judgment.scores[position])
    return tuple(order[position] for position in positions)


def near(share, expected, n=N):
    """Within four standard errors: one such check fails in 16,000 where the rate is right."""
    return abs(share - expected) <= 4 * math.sqrt(expected * (1 - expected) / n) + 1e-12


@pytest.mark.parametrize("error", [0.0, 0.1, 0.25, 0.9])
def test_the_stated_error_is_made(error):
    found = verdicts(ErrorRates(error), comparisons())
    wrong = sum(verdict == (1, 0) for verdict in found) / N
    assert near(wrong, error)
    assert not near(wrong, error + 0.1)


def test_a_wrong_verdict_is_the_same_in_all_orders_and_votes():
    rows = comparisons(100, responses=3)
    first = verdicts(ErrorRates(0.4), rows)
    for trial, order in enumerate(permutations(range(3))):
        assert verdicts(ErrorRates(0.4), rows, order, trial) == first
    assert verdicts(ErrorRates(0.4), rows, seed=1) != first


def test_disagreement_flips_one_asking_and_not_the_next():
    rows = comparisons()
    first, second = (
        verdicts(ErrorRates(0.1, disagreement=0.2), rows, order, trial)
        for trial, order in enumerate([(0, 1), (1, 0)])
    )
    wrong = 0.1 * 0.8 + 0.9 * 0.2
    assert near(sum(verdict == (1, 0) for verdict in first) / N, wrong)
    assert near(sum(a != b for a, b in zip(first, second, strict=True)) / N, 2 * 0.2 * 0.8)


def test_misformat_leaves_an_asking_without_a_verdict_that_the_parser_finds():
    rows = comparisons()
    model = SimulatedRewardModel(ErrorRates(misformat=0.3), rows)
    judged = [model.judge([query_of(row, (0, 1), trial) for row in rows]) for trial in (0, 1)]
    silent = [[judgment.outcome is Outcome.UNPARSED for judgment in one] for one in judged]
    assert near(sum(silent[0]) / N, 0.3)
    assert near(sum(a and b for a, b in zip(*silent, strict=True)) / N, 0.09)
    assert {judgment.outcome for judgment in judged[0]} == {Outcome.UNPARSED, Outcome.ANSWERED}
    unparsed = next(judgment for judgment in judged[0] if judgment.outcome is Outcome.UNPARSED)
    assert unparsed.explanation
    assert not unparsed.scores
    assert "no verdict" in unparsed.detail


@pytest.mark.parametrize(
    ("length", "error"), [(None, 0.1), (512, 0.1), (1024, 0.1), (8192, 0.25), (2**40, 0.5)]
)
def test_the_error_grows_with_every_doubling_beyond_1024_tokens_up_to_chance(length, error):
    rates = ErrorRates(0.1, per_doubling=0.05)
    assert rates.error_at(length, 2) == pytest.approx(error)
    found = verdicts(rates, comparisons(length=length))
    assert near(sum(verdict == (1, 0) for verdict in found) / N, error)


def test_of_many_responses_every_wrong_order_is_drawn_alike():
    found = verdicts(ErrorRates(0.5), comparisons(responses=3))
    counts = {order: found.count(order) / N for order in permutations(range(3))}
    assert near(counts.pop((0, 1, 2)), 0.5)
    assert all(near(share, 0.1) for share in counts.values())


def test_responses_that_tie_are_ordered_by_a_coin_and_no_such_order_is_wrong():
    found = verdicts(ErrorRates(0.0), comparisons(responses=3, ranks=(1, 2, 2)))
    assert {*found} == {(0, 1, 2), (0, 2, 1)}
    assert near(found.count((0, 1, 2)) / N, 0.5)
    wrong = verdicts(ErrorRates(1.0), comparisons(responses=3, ranks=(1, 2, 2)))
    assert {*wrong} == {*permutations(range(3))} - {*found}
    assert len({*verdicts(ErrorRates(1.0), comparisons(50, ranks=(1, 1)))}) == 2


def test_without_gold_a_coin_judges_and_falls_once():
    rows = [replace(row, ranks=None) for row in comparisons()]
    found = verdicts(ErrorRates(0.0), rows)
    assert near(found.count((0, 1)) / N, 0.5)
    assert verdicts(ErrorRates(0.0), rows, (1, 0), 1) == found


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("0.2", ErrorRates(0.2)),
        ("0", ErrorRates()),
        ("error=0.2, misformat=.05", ErrorRates(0.2, 0.05)),
        ("disagreement=0.1,per_doubling=0.02", ErrorRates(disagreement=0.1, per_doubling=0.02)),
    ],
)
def test_rates_are_read_and_written(text, rates):
    assert ErrorRates.parse(text) == rates
    assert ErrorRates.parse(str(rates)) == rates


def test_by_criterion_it_errs_at_its_rate_and_calls_a_tie_a_tie():
    rows = list(generate(WorldPlan("checklist", 400, per_group=6), 600, load_tokenizer("approximate")))
    asked = [query_of(row, (0, 1)) for row in rows]
    for rate in (0.0, 0.25):
        judge = longrm.load(f"simulated:{rate}", judge={"rubrics": "item"}, gold=rows)
        wrong = 0
        for row, judgment in zip(rows, judge.judge(asked), strict=True):
            for criterion, ranks in zip(judgment.criteria, row.metadata["criterion_ranks"], strict=True):
                if ranks == [1, 1]:
                    assert criterion == (1 / 6, 1 / 6)
                else:
                    wrong += criterion.index(max(criterion)) != ranks.index(1)
        # Binomial: within four standard deviations.
        assert abs(wrong - 600 * rate) <= 4 * (600 * rate * (1 - rate)) ** 0.5
    plain = longrm.load("simulated:0.25", gold=rows).judge(asked)
    assert {judgment.scores for judgment in plain} == {(1.0, 0.0), (0.0, 1.0)}


def test_ties_by_a_criterion_lack_a_verdict_as_often_as_others():
    rows = list(generate(WorldPlan("checklist", 400, per_group=6), 600, load_tokenizer("approximate")))
    model = SimulatedRewardModel(ErrorRates(misformat=0.3), rows)
    tied = [
        replace(query_of(row, (0, 1)), criterion=criterion.text)
        for row in rows
        for criterion, ranks in zip(row.rubrics, row.metadata["criterion_ranks"], strict=True)
        if ranks == [1, 1]
    ]
    judged = model.judge(tied)
    assert near(sum(one.outcome is Outcome.UNPARSED for one in judged) / len(tied), 0.3, len(tied))
    assert {one.scores for one in judged if one.outcome is Outcome.ANSWERED} == {(0.5, 0.5)}


def test_without_gold_by_the_criterion_a_coin_decides():
    rows = list(generate(WorldPlan("single-fact", 400), 200, load_tokenizer("approximate")))
    rows = [replace(row, rubrics=(Criterion("It is true."),)) for row in rows]
    judge = longrm.load("simulated:0", judge={"rubrics": "item"}, gold=rows)
    first = sum(one.scores[0] for one in judge.judge([query_of(row, (0, 1)) for row in rows]))
    assert 65 < first < 135
