"""Which comparisons a benchmark takes: pairs, rankings, the second check, and the balance over tasks and lengths."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.data.chunking import approximate_tokens
from longrm.synthesis.documents import GOLD_MODEL, Candidate, Document
from longrm.synthesis.pipeline import nested
from longrm.synthesis.selection import (
    BenchmarkRecipe,
    even_shares,
    opinion_of,
    pairs_of,
    rankings_of,
    rate_by_metric,
    score_candidates,
    select_comparisons,
    tier_of,
)

SCORES = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1.2)), max_size=9)
TIERS = {1: (0.9, 9.0), 2: (0.6, 0.85), 3: (0.25, 0.5), 4: (-1.0, 0.15)}
GOLD = "amber birch copper dune ember fjord grove heath iris jade"
WORDS = GOLD.split()


def scored(*given):
    candidates = [Candidate("d", model, f"text {at}", score=score) for at, (model, score) in enumerate(given)]
    return Document("d", "t", "q", "a", candidates=tuple(candidates))


def test_scores_are_shares_of_what_the_gold_answer_earns():
    given = tuple(Candidate("d", "m", text) for text in ("red blue", "red", "gray"))
    document = Document("d", "t", "q", "red blue", metric="token_f1", candidates=given)
    assert [one.score for one in score_candidates(document)] == pytest.approx([1, 2 / 3, 0])
    assert score_candidates(Document("d", "t", "q", "red")) is None
    assert score_candidates(Document("d", "t", "q", "cites nothing", metric="citation_f1")) is None
    assert score_candidates(Document("d", "t", "q", "see [1]", metric="citation_f1")) == ()


@pytest.mark.parametrize(
    ("score", "tier"),
    [(1, 1), (0.91, 1), (0.9, None), (0.86, None), (0.85, 2), (0.6, 2), (0.55, None), (0.5, 3), (0.25, 3),
     (0.2, None), (0.15, None), (0.14, 4), (0, 4)],
)  # fmt: skip
def test_tiers_are_those_of_the_paper(score, tier):
    assert tier_of(score) == tier


@given(SCORES, st.integers(0, 5))
def test_rankings_have_falling_tiers_and_derive_from_one_base(given, seed):
    document = scored(*given)
    items = list(rankings_of(document, seed))
    filled = {tier_of(score) for _, score in given} - {None}
    assert [item.kind for item in items] == [f"best-of-{n}" for n in (2, 3, 4) if n <= len(filled)]
    base = set()
    for item in items:
        tiers = [tier_of(document.candidates[at].score) for at in item.candidates]
        assert all(better < worse for better, worse in pairwise(tiers))
        for tier, at, score in zip(tiers, item.candidates, item.scores, strict=True):
            low, high = TIERS[tier]
            assert low <= score <= high
            assert score == document.candidates[at].score
        base |= set(item.candidates)
    assert len(base) <= len(filled)  # one candidate of every tier
    assert items == list(rankings_of(document, seed))


@given(SCORES)
def test_pairs_are_all_those_that_are_apart(given):
    found = {(item.candidates, item.kind) for item in pairs_of(scored(*given))}
    expected = set()
    for one, (model, score) in enumerate(given):
        for other, (against, lower) in enumerate(given):
            if score - lower >= 0.05 and score - lower >= 0.4 * lower:
                expected.add(((one, other), "same" if model == against else "cross"))
    assert found == expected


def test_synthetic_candidates_are_never_paired_and_ranked_only_in_tiers_without_others():
    document = scored(("m", 1.0), (GOLD_MODEL, 1.0), (GOLD_MODEL, 0.1))
    assert not list(pairs_of(document))
    for seed in range(20):
        (item,) = rankings_of(document, seed)
        assert item.candidates == (0, 2)


def test_the_same_words_of_two_models_count_once():
    listed = tuple(
        Candidate("d", model, text, score=score)
        for model, text, score in (("a", "x", 1.0), ("b", "x", 1.0), ("c", "y", 0.1))
    )
    document = Document("d", "t", "q", "a", candidates=listed)
    assert [item.candidates for item in pairs_of(document)] == [(0, 2)]
    assert {item.candidates for seed in range(20) for item in rankings_of(document, seed)} == {(0, 2)}


@pytest.mark.parametrize(
    ("ratings", "opinion"),
    [
        ((3, 2, 1), "agrees"),
        ((3, 3, 1), "undecided"),
        ((3, 1, 2), "disagrees"),
        ((2, 2, 3), "disagrees"),
        ((3, None, 1), "unchecked"),
    ],
)
def test_opinions(ratings, opinion):
    assert opinion_of(ratings) == opinion


def test_characters_contradict_words_where_words_are_blind():
    # Token F1 sees one right word in the first answer and none in the second, which is nearly right.
    texts = ["harvest of wheat and rye and oats", "extraordinarily harvests", "zzz"]
    document = Document("d", "t", "q", "extraordinary harvest", metric="token_f1")
    first, second, third = asyncio.run(rate_by_metric(document, texts))
    assert second > first > third
    quiz = Document("d", "t", "q", "B", metric="right_choices")
    assert asyncio.run(rate_by_metric(quiz, ["B", "A"])) == [None, None]


CELLS = st.dictionaries(st.text("abcde", min_size=1, max_size=2), st.integers(0, 30), max_size=8)


@given(CELLS, st.integers(0, 120))
def test_shares_are_max_min_fair(available, total):
    taken = even_shares(available, total)
    assert taken.keys() == available.keys()
    assert sum(taken.values()) == min(total, sum(available.values()))

    def filled(level):
        return sum(min(level, held) for held in available.values())

    level = max((level for level in range(31) if filled(level) <= total), default=0)
    for cell, count in taken.items():
        assert min(level, available[cell]) <= count <= min(level + 1, available[cell])


def answer(right):
    """Ten words of which this many are right: its token F1 is right / 10."""
    return " ".join(WORDS[:right] + ["zinc"] * (10 - right))


def planted(texts=6, tasks=("LongQA", "Summ"), metric="token_f1"):
    """Reads texts of two lengths, each with four questions whose candidates earn known scores."""

    def read():
        for number in range(texts):
            text = f"Text {number}. " + "Nothing happens here. " * (200 if number % 3 else 1000)
            for question in range(4):
                name = f"{number}-{question}"
                candidates = tuple(
                    Candidate(name, model, answer(right), "cut" * (at > 3))
                    for at, (right, model) in enumerate(((10, "a"), (7, "b"), (4, "c"), (0, "d"), (3, "a")))
                )
                task = tasks[number % len(tasks)]
                yield Document(
                    name, text, f"What of {question}?", GOLD, task, metric, {"source": "here"}, "", candidates
                )

    return read


async def unrated(document, texts):
    return [None] * len(texts)


async def planted_errors(document, texts):
    """A judge that knows the truth, and inverts it for every fourth document."""
    sign = -1 if document.id.endswith("-3") else 1
    return [sign * sum(word in WORDS for word in text.split()) for text in texts]


def selected(read=None, rate=unrated, **settings):
    given = {"documents": {"path": "none"}, "candidates": {"synthetic": True}}
    recipe = BenchmarkRecipe.resolve(None, given | settings)
    return select_comparisons(recipe, (read or planted())(), rate, approximate_tokens, recipe.tasks)


def test_the_selection_is_even_over_tasks_and_lengths():
    chosen, _ = selected(planted(texts=12), pairs=42, rankings=10)
    by_kind = Counter(one.kind for one in chosen)
    assert by_kind == {"cross": 21, "same": 21, "best-of-2": 10, "best-of-3": 10, "best-of-4": 10}
    for kind in by_kind:
        cells = Counter((one.task, one.length) for one in chosen if one.kind == kind).values()
        assert len(cells) == 4
        assert max(cells) - min(cells) <= 1
    groups = Counter(one.group for one in chosen if one.kind == "cross")
    assert max(groups.values()) <= 3  # texts take turns: twelve share 21 items


def test_disagreements_are_dropped_and_counted():
    kept, counts = selected(rate=planted_errors)
    assert counts.opinions["token_f1", "disagrees"] == counts.opinions.total() / 4
    assert not [one for one in kept if one.document.endswith("-3")]
    assert {one.opinion for one in kept} == {"agrees"}
    assert {opinion for _, opinion in selected(rate=rate_by_metric)[1].opinions} == {"agrees"}


def test_documents_that_cannot_be_scored_are_counted():
    def read():
        one = Document("x", "t", "q", "g", "LongQA", candidates=(Candidate("x", "m", "y"),))
        yield one
        yield Document("y", "t", "q", "g", "LongQA", "token_f1", candidates=one.candidates)

    chosen, counts = selected(read)
    assert chosen == []
    assert nested(counts.steps)["documents"] == {
        "no gold answer that a metric can rate by": 1,
        "fewer than two candidates": 1,
    }
    named = nested(selected(read, metric="exact_match")[1].steps)
    assert named["documents"] == {"fewer than two candidates": 2}
