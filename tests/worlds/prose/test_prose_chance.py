"""Prose reveals nothing without reading the fact. A leaky variant shows that the tests would notice."""

import re

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from longrm.reward_models.baselines import BASELINES
from longrm.types import message_text, query_of
from longrm.worlds import WorldPlan, generate
from longrm.worlds.words_tokenizer import load_tokenizer

from .conftest import BALANCED, PROSE

PAIRS = 2400


@pytest.fixture(scope="module")
def pairs(prose_bpe):
    made = {}

    def get(world):
        if world not in made:
            plan = WorldPlan(world, 450, per_group=4, seed=11, texts=("minutes",))
            made[world] = list(generate(plan, PAIRS, prose_bpe))
        return made[world]

    return get


def texts(row):
    return [message_text(response[0]) for response in row.responses]


def near_chance(right, n):
    interval = binomtest(int(right), n).proportion_ci(0.999, "wilson")
    return interval.low <= 0.5 <= interval.high


def right_by_words(rows):
    """How many of the second half a logistic model of words and word pairs gets right that learned the first half."""
    words = CountVectorizer(ngram_range=(1, 2), token_pattern=r"\w+", binary=True)
    found = words.fit_transform([text for row in rows for text in texts(row)])
    differences = found[::2] - found[1::2]
    first_is_right = np.array([row.ranks[0] == 1 for row in rows])
    half = len(rows) // 2
    model = LogisticRegression(C=0.3, max_iter=300).fit(differences[:half], first_is_right[:half])
    return (model.predict(differences[half:]) == first_is_right[half:]).sum()


def points_of(rule, rows):
    """Points of a baseline, half a point for a tie."""
    scored = [(BASELINES[rule].scores(query_of(row, range(2))), row.best_first()[0]) for row in rows]
    return sum(0.5 if scores[0] == scores[1] else float(np.argmax(scores) == best) for scores, best in scored)


@pytest.mark.parametrize("world", PROSE)
def test_a_model_of_the_responses_alone_is_at_chance(pairs, world):
    assert near_chance(right_by_words(pairs(world)), PAIRS // 2)


def test_a_model_of_the_responses_alone_detects_leaky_pairs(pairs):
    """Values that are right where they come first in the alphabet."""

    def leaky(row):
        right, wrong = (re.findall(r"\w+", texts(row)[index]) for index in row.best_first())
        return right < wrong

    rows = [row for row in pairs("latest-update") if leaky(row)]
    assert right_by_words(rows) > 0.8 * (len(rows) // 2)


def shares(world, length, n=1024):
    """For every rule the share that it decides right, of all comparisons and of every fifth of depth."""
    rows = list(
        generate(WorldPlan(world, length, per_group=4, seed=length), n, load_tokenizer("approximate"))
    )
    fifths = [[row for row in rows if min(4, int(5 * row.metadata["depth"])) == fifth] for fifth in range(5)]
    earned = {rule: {id(row): points_of(rule, [row]) for row in rows} for rule in BASELINES}
    return {
        rule: [sum(of[id(row)] for row in part) / len(part) for part in (rows, *fifths)]
        for rule, of in earned.items()
    }


@pytest.mark.parametrize("length", [256, pytest.param(2048, marks=pytest.mark.full)])
@pytest.mark.parametrize("world", BALANCED)
def test_no_rule_answers_the_default_tasks(world, length):
    for rule, (all_depths, *fifths) in shares(world, length).items():
        assert 0.43 <= all_depths <= 0.57, rule  # below: its opposite would be a rule
        assert all(0.5 - 0.13 <= fifth <= 0.5 + 0.13 for fifth in fifths), (
            rule,
            fifths,
        )  # of some 200, 3.7 sigma


def test_rules_answer_tasks_that_are_not_balanced():
    """Controls, and a test of the rules: each of them but length and place finds what it looks for."""
    found = shares("single-fact", 256, 200)
    for rule in ("overlap", "bm25", "predicate", "nearest", "ngrams", "question-ngrams", "subsequence"):
        assert found[rule][0] > 0.8, rule
    found = shares("latest-update", 256, 200)
    assert found["last-mention"][0] > 0.9 > 0.1 > found["first-mention"][0]
    hops = shares("two-hops", 256, 400)
    assert hops["nearest"][0] > 0.55
    assert hops["first-mention"][1] > 0.7  # where the evidence begins the text, the wrong value follows it


@pytest.mark.parametrize("rule", ["longest", "shortest", "first", "last"])
@pytest.mark.parametrize("world", PROSE)
def test_length_and_order_reveal_nothing(pairs, world, rule):
    rows = pairs(world)[::4]  # one a group
    assert near_chance(round(points_of(rule, rows)), len(rows))
