import random

import pytest

from longrm.errors import ConfigError
from longrm.reward_models import load
from longrm.reward_models.baselines import BASELINES
from longrm.reward_models.shallow_rules import _longest_subsequence
from longrm.types import Query, Span

QUERY = Query(
    "q",
    ({"role": "user", "content": "?"},),
    tuple(({"role": "assistant", "content": t},) for t in ("bb", "a", "ccc")),
)


def best(name):
    (judgment,) = load(f"baseline:{name}").judge([QUERY])
    return judgment.scores.index(max(judgment.scores))


def test_each_rule_prefers_what_its_name_says():
    assert [best(name) for name in ("first", "last", "longest", "shortest")] == [0, 2, 2, 1]


def test_random_scores_belong_to_the_response_and_not_to_its_place():
    turned = Query("q", QUERY.prompt, QUERY.responses[::-1])
    model = load("baseline:random")
    here, there = model.judge([QUERY, turned])
    assert here.scores == there.scores[::-1]
    assert model.judge([Query("other", QUERY.prompt, QUERY.responses)])[0].scores != here.scores


def test_only_rules_about_places_see_the_order():
    assert [name for name in BASELINES if load(f"baseline:{name}").sees_order] == ["first", "last"]
    for name in BASELINES:
        model = load(f"baseline:{name}")
        here, there = model.judge([QUERY, Query("q", QUERY.prompt, QUERY.responses[::-1])])
        assert (here.scores != there.scores[::-1]) == model.sees_order


def test_an_unknown_baseline_is_named():
    with pytest.raises(ConfigError, match="no baseline 'longets'; did you mean 'longest'"):
        load("baseline:longets")


CONTEXT = (
    "The Larkin farm grows barley. Oats are sold in the city Oslo. "
    "Nobody at the Larkin farm ever sells oats. Barley, barley and rye are grown far from there."
)
ASKED = "What does the Larkin farm sell?"


def scores(rule, *responses, context=CONTEXT, question=ASKED):
    prompt = f"{context}\n\n{question}"
    query = Query(
        "q",
        ({"role": "user", "content": prompt},),
        tuple(({"role": "assistant", "content": response},) for response in responses),
        context=(Span(0, 0, len(context)),),
        question=Span(0, len(context) + 2, len(prompt)),
    )
    return BASELINES[rule].scores(query)


@pytest.mark.parametrize(
    ("rule", "barley", "oats"),
    [
        ("first-mention", -4, -5),  # words before it
        ("last-mention", 21, 19),
        ("frequency", 3, 2),
        ("nearest", -3, -4),  # words from a "Larkin"
        ("predicate", 1, 1),  # "farm"; "the" and "Larkin" begin with a capital letter in a response
        ("subsequence", 4 / 6, 4 / 6),  # "the Larkin farm ... barley", "the Larkin farm ... oats"
    ],
)
def test_rules_that_read_the_context(rule, barley, oats):
    found = scores(rule, "The Larkin farm does sell barley.", "The Larkin farm does sell oats.")
    assert found == pytest.approx([barley, oats])


def test_ngrams_count_pairs_and_triples_of_words():
    # Of 3 pairs and 2 triples "Larkin farm", "farm grows", "grows rye" the context has 2 and 1.
    (found,) = scores("ngrams", "Larkin farm grows rye.")
    assert found == pytest.approx(3 / 5)
    near, far = scores("question-ngrams", "barley", "rye")
    assert (near, far) == (2, 1)  # "the larkin" and "larkin farm" within 8 words, "larkin farm" alone


def test_the_longest_common_subsequence_is_that_of_the_textbook():
    def textbook(one, other):
        table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
        for i, a in enumerate(one):
            for j, b in enumerate(other):
                table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
        return table[-1][-1]

    rng = random.Random(0)
    for _ in range(200):
        one, *others = ([rng.choice("abcde") for _ in range(rng.randrange(1, 70))] for _ in range(3))
        assert _longest_subsequence(one, others) == max(textbook(one, other) for other in others)


def test_retrieval_finds_the_sentence_of_the_question():
    # Both values occur once; only one is in the sentence that question and response retrieve.
    context = "The Larkin farm sells wheat. " + "It rains on hills. " * 30 + "Someone mentioned rye."
    for rule in ("bm25", "overlap", "predicate", "nearest", "subsequence"):
        right, wrong = scores(
            rule, "The Larkin farm sells wheat.", "The Larkin farm sells rye.", context=context
        )
        assert right > wrong, rule


@pytest.mark.parametrize("rule", [name for name, rule in BASELINES.items() if rule.reads_context])
def test_rules_score_odd_queries(rule):
    for responses in [("same", "same"), ("", "words"), ("?!", "...")]:
        assert len(scores(rule, *responses)) == 2
        assert len(scores(rule, *responses, context="", question="")) == 2
    (judgment,) = load(f"baseline:{rule}").judge([QUERY])  # without marks
    assert len(judgment.scores) == 3
