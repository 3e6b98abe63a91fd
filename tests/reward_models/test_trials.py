from itertools import permutations

import pytest

from longrm.reward_models.trials import aggregate_trials, best, latin_square, to_scores, trial_of
from longrm.types import Judgment, Outcome, Trial


def answered(order, *scores):
    return Trial(order=tuple(order), outcome=Outcome.ANSWERED, scores=tuple(map(float, scores)))


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_every_response_stands_at_every_place_once(n):
    rows = latin_square(tuple(reversed(range(n))))
    assert rows[0] == tuple(reversed(range(n)))
    assert len(set(rows)) == n
    for column in zip(*rows, strict=True):
        assert sorted(column) == list(range(n))
    for row in rows:
        assert sorted(row) == list(range(n))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_scores_and_rankings_return_to_the_comparison_s_own_order(order):
    own_scores, own_ranking = (10.0, 20.0, 30.0), (2, 1, 0)
    shown = Judgment(Outcome.ANSWERED, scores=tuple(own_scores[index] for index in order))
    assert trial_of(shown, order).scores == own_scores
    ranked = Judgment(Outcome.ANSWERED, ranking=tuple(order.index(index) for index in own_ranking))
    assert trial_of(ranked, order).ranking == own_ranking


def test_a_ranking_is_worth_one_to_zero_and_a_silent_trial_nothing():
    assert to_scores(Trial(order=(0, 1, 2), outcome=Outcome.ANSWERED, ranking=(2, 0, 1))) == (0.5, 0.0, 1.0)
    assert to_scores(Trial(order=(0, 1), outcome=Outcome.UNPARSED)) == ()


def test_a_judge_that_follows_the_place_is_cancelled():
    whole = aggregate_trials([answered((0, 1), 1, 0), answered((1, 0), 0, 1)])
    assert whole.scores == (0.5, 0.5)
    assert best(whole) == {0, 1}
    assert best(aggregate_trials([answered((0, 1), 1, 0), answered((1, 0), 1, 0)])) == {0}


def test_orders_weigh_the_same_however_many_votes_were_answered():
    votes = [answered((0, 1), 1, 0)] * 3
    others = [
        answered((1, 0), 0, 1),
        *[Trial(order=(1, 0), outcome=Outcome.UNPARSED, detail="no verdict")] * 2,
    ]
    assert aggregate_trials([*votes, *others]).scores == (0.5, 0.5)


def test_equal_shares_tie_exactly():
    thirds = [answered((0, 1), 1, 0)] * 2 + [answered((0, 1), 0, 1)]
    mirrored = [answered((1, 0), 0, 1)] * 2 + [answered((1, 0), 1, 0)]
    whole = aggregate_trials([*thirds, *mirrored])
    assert whole.scores[0] == whole.scores[1] == 0.5


def test_an_order_without_an_answer_leaves_the_whole_unanswered_and_an_error_an_error():
    silent = Trial(order=(1, 0), outcome=Outcome.TRUNCATED, detail="ran out of room")
    whole = aggregate_trials([answered((0, 1), 1, 0), silent])
    assert (whole.outcome, whole.scores, whole.detail) == (Outcome.TRUNCATED, (), "ran out of room")
    failed = Trial(order=(1, 0), outcome=Outcome.ERROR, detail="connection lost")
    assert aggregate_trials([silent, answered((0, 1), 1, 0), failed]).outcome is Outcome.ERROR
