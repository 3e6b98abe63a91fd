from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.synthesis.inputs.candidate_ranking import (
    NO_MODEL,
    ScoreGap,
    pairs,
    rankings,
    score_candidates,
    tier_of,
)
from longrm.synthesis.inputs.candidates import CandidateAnswer
from longrm.synthesis.inputs.documents import Document

SCORES = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1.2)), max_size=9)
TIERS = {1: (0.9, 9.0), 2: (0.6, 0.85), 3: (0.25, 0.5), 4: (-1.0, 0.15)}


def candidates(*given):
    return [CandidateAnswer("d", model, f"text {at}", score=score) for at, (model, score) in enumerate(given)]


def test_scores_are_shares_of_what_the_gold_answer_earns():
    document = Document("d", "t", "q", "red blue", metric="token_f1")
    given = [CandidateAnswer("d", "m", text) for text in ("red blue", "red", "gray")]
    assert [one.score for one in score_candidates(document, given)] == pytest.approx([1, 2 / 3, 0])


def test_what_no_metric_can_rate_is_not_scored():
    assert score_candidates(Document("d", "t", "q", "red"), []) is None
    assert score_candidates(Document("d", "t", "q", "cites nothing", metric="citation_f1"), []) is None
    assert score_candidates(Document("d", "t", "q", "see [1]", metric="citation_f1"), []) == []


@pytest.mark.parametrize(
    ("score", "tier"),
    [(1, 1), (0.91, 1), (0.9, None), (0.86, None), (0.85, 2), (0.6, 2), (0.55, None), (0.5, 3), (0.25, 3),
     (0.2, None), (0.15, None), (0.14, 4), (0, 4)],
)  # fmt: skip
def test_tiers_are_those_of_the_paper(score, tier):
    assert tier_of(score) == tier


@given(SCORES, st.integers(0, 5))
def test_rankings_take_falling_tiers_and_derive_from_one_base(given, seed):
    listed = candidates(*given)
    items = list(rankings("d", listed, seed))
    filled = {tier_of(score) for _, score in given} - {None}
    assert [item.kind for item in items] == [f"best-of-{n}" for n in (2, 3, 4) if n <= len(filled)]
    base = set()
    for item in items:
        tiers = [tier_of(listed[at].score) for at in item.candidates]
        assert all(better < worse for better, worse in pairwise(tiers))
        for tier, at, score in zip(tiers, item.candidates, item.scores, strict=True):
            low, high = TIERS[tier]
            assert low <= score <= high
            assert score == listed[at].score
        base |= set(item.candidates)
    assert len(base) <= len(filled)  # one candidate of every tier
    assert items == list(rankings("d", listed, seed))
    if len(filled) < 4:
        assert not list(rankings("d", listed, seed, all_tiers=True))


@given(SCORES, st.floats(0, 1), st.floats(0.01, 0.5))
def test_pairs_are_all_those_that_are_apart(given, least, points):
    listed = candidates(*given)
    gap = ScoreGap(least=least, points=points)
    found = {(item.candidates, item.kind) for item in pairs("d", listed, gap)}
    expected = set()
    for one, (model, score) in enumerate(given):
        for other, (against, lower) in enumerate(given):
            if score - lower >= points and score - lower >= least * lower:
                expected.add(((one, other), "same" if model == against else "cross"))
    assert found == expected


def test_a_gap_has_an_upper_end_where_it_is_given():
    gap = ScoreGap(least=0.4, most=0.8, points=0.01)
    assert [gap.holds(score, 0.5) for score in (0.69, 0.71, 0.89, 0.91)] == [False, True, True, False]
    assert not gap.holds(0.5, 0)
    assert ScoreGap().holds(0.5, 0)


def test_what_no_model_wrote_is_paired_on_demand_only_and_ranked_where_models_left_a_tier_empty():
    listed = candidates(("m", 1.0), (NO_MODEL, 1.0), (NO_MODEL, 0.1))
    assert not list(pairs("d", listed, ScoreGap()))
    assert len(list(pairs("d", listed, ScoreGap(), synthetic=True))) == 2
    for seed in range(20):
        (item,) = rankings("d", listed, seed)
        assert item.candidates == (0, 2)


def test_the_same_words_of_two_models_count_once():
    listed = [
        CandidateAnswer("d", model, text, score=score)
        for model, text, score in (("a", "x", 1.0), ("b", "x", 1.0), ("c", "y", 0.1))
    ]
    assert [item.candidates for item in pairs("d", listed, ScoreGap())] == [(0, 2)]
    assert {item.candidates for seed in range(20) for item in rankings("d", listed, seed)} == {(0, 2)}
