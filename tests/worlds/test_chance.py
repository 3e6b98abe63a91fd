"""Nothing but the fact reveals the answer. For every claim a leaky variant is detected."""

import re
from collections import defaultdict
from itertools import permutations
from math import factorial

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression

from longrm.worlds import WorldPlan, generate
from longrm.worlds.vocabulary import ENTITIES, VALUES

KINDS = [("records", 2, 160), ("chain", 2, 160), ("records", 4, 160), ("chain", 3, 220)]
ROWS = 1600


@pytest.fixture(scope="module")
def sets(word_tokenizer, view):
    """Comparisons with their own context and with that of another group, made once a kind."""
    made = {}

    def get(world, responses, length, unrelated=False):
        key = (world, responses, length, unrelated)
        if key not in made:
            plan = WorldPlan(world, length, responses, per_group=2, seed=11, unrelated=unrelated)
            made[key] = [view(row) for row in generate(plan, ROWS, word_tokenizer)]
        return made[key]

    return get


def oracle(rows):
    """The scores of a reader who looks every claim up in the context."""
    return np.array([[row.right(text) for text in row.responses] for row in rows])


def measure(rows, scores):
    """How often the highest score is the best response's, and how often the whole order is right.

    Ties fall in the order of the responses, which is random.
    """
    orders = np.argsort(-scores, axis=1, kind="stable")
    gold = np.array([row.comparison.best_first() for row in rows])
    return (orders[:, 0] == gold[:, 0]).sum(), (orders == gold).all(axis=1).sum()


def at_chance(rows, scores):
    """Whether chance is within the 99.9% interval of both counts."""
    n = scores.shape[1]
    for count, chance in zip(measure(rows, scores), (1 / n, 1 / factorial(n)), strict=True):
        interval = binomtest(int(count), len(rows)).proportion_ci(0.999, "wilson")
        if not interval.low <= chance <= interval.high:
            return False
    return True


def learned(rows, features):
    """Fits a logistic model on differences of features in the first half; returns the other half, scored."""
    half, n = len(rows) // 2, len(rows[0].responses)
    hasher = FeatureHasher(2**12, alternate_sign=False)
    found = hasher.transform(one for row in rows for one in features(row))
    pairs = [(n * k + i, n * k + j) for k in range(half) for i, j in permutations(range(n), 2)]
    ranks = np.array([row.comparison.ranks for row in rows]).ravel()
    one, other = np.array(pairs).T
    model = LogisticRegression(C=0.1, max_iter=300).fit(found[one] - found[other], ranks[one] < ranks[other])
    return rows[half:], model.decision_function(found[n * half :]).reshape(-1, n)


def response_features(seen):
    """Words and word pairs of the response, and how much of it the other responses say too."""
    found = []
    for text in seen.responses:
        words = re.findall(r"\w+", text)
        features = dict.fromkeys([*words, *map(" ".join, zip(words, words[2:], strict=False))], 1.0)
        others = [claim for other in seen.responses for claim in seen.said(other)]
        agreeing = sum(others.count(claim) - 1 for claim in seen.said(text))
        found.append({**features, "agreeing": 3.0 * agreeing})
    return found


def context_features(seen):
    """Counts, places and neighborhoods of a response's words in the context."""
    at = defaultdict(list)
    for index, sentence in enumerate(seen.sentences):
        for word in sentence.rstrip(".").split():
            at[word].append(index)
    found = []
    for text in seen.responses:
        words = re.findall(r"\w+", text)
        values = [word for word in words if word in VALUES]
        people = [word for word in words if word in ENTITIES]
        near = [abs(i - j) for person in people for i in at[person] for value in values for j in at[value]]
        found.append(
            {
                "values found": sum(word in seen.values.values() for word in values),
                "times": sum(len(at[word]) for word in values),
                "first": sum(min(at[word], default=9) for word in values) / 10,
                "people found": sum(word in seen.values for word in people),
                "same sentence": near.count(0),
                "nearest": min(near, default=99) / 10,
            }
        )
    return found


def place_features(seen):
    """Those of `context_features` that do not bring values and entities together."""
    joint = ("same sentence", "nearest")
    return [
        {key: value for key, value in found.items() if key not in joint} for found in context_features(seen)
    ]


@pytest.mark.parametrize(("world", "responses", "length"), KINDS)
def test_reading_the_context_is_always_right(sets, world, responses, length):
    rows = sets(world, responses, length)
    assert measure(rows, oracle(rows)) == (ROWS, ROWS)


@pytest.mark.parametrize(("world", "responses", "length"), KINDS)
def test_reading_an_unrelated_context_is_at_chance(sets, world, responses, length):
    rows = sets(world, responses, length, unrelated=True)
    assert at_chance(rows, oracle(rows))


@pytest.mark.parametrize(("world", "responses", "length"), KINDS)
def test_a_model_of_the_responses_alone_is_at_chance(sets, world, responses, length):
    rest, scores = learned(sets(world, responses, length), response_features)
    assert at_chance(rest, scores)


@pytest.mark.parametrize(("world", "responses", "length"), KINDS)
def test_a_model_of_responses_and_an_unrelated_context_is_at_chance(sets, world, responses, length):
    rest, scores = learned(sets(world, responses, length, unrelated=True), context_features)
    assert at_chance(rest, scores)


@pytest.mark.parametrize(
    ("length", "responses", "per_group"), [(60, 2, 8), (900, 2, 8), (1200, 2, 8), (1200, 4, 2)]
)
def test_frequency_and_place_of_values_reveal_nothing(word_tokenizer, view, length, responses, per_group):
    """With the right context; 1,200 tokens hold more records than values, so that some come twice."""
    plan = WorldPlan("records", length, responses, per_group=per_group, seed=12)
    rows = [view(row) for row in generate(plan, ROWS, word_tokenizer)]
    rest, scores = learned(rows, place_features)
    assert at_chance(rest, scores)


@pytest.mark.parametrize("length", [160, 600])
def test_no_single_fact_of_a_chain_reveals_the_answer(sets, length):
    """Counts, places and nearness of words in the right context do not, where no two facts are joined."""
    rest, scores = learned(sets("chain", 2, length), context_features)
    assert at_chance(rest, scores)


def test_in_records_the_same_features_find_the_fact(sets):
    rest, scores = learned(sets("records", 2, 160), context_features)
    assert measure(rest, scores)[0] == len(rest)


def test_leaky_pairs_whose_wrong_values_are_of_one_half_leak_into_the_responses(sets):
    def leaky(row):
        right, wrong = (row.said(row.responses[index])[0][2] for index in row.comparison.best_first())
        return VALUES.index(right) < VALUES.index(wrong)

    rows = [row for row in sets("records", 2, 160) if leaky(row)]
    rest, scores = learned(rows, response_features)
    assert measure(rest, scores)[0] > 0.8 * len(rest)
