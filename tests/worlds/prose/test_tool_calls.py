"""The world `tool-call`: wrong calls have exactly the error that they name, and reveal nothing without the context."""

import json
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

from longrm.types import message_text
from longrm.worlds import WorldPlan, generate
from longrm.worlds.prose.tool_calls import ERRORS

PAIRS = 1600


@pytest.fixture(scope="module")
def rows(prose_bpe):
    """With one pair per context, so that pairs are independent."""
    return list(generate(WorldPlan("tool-call", 420, seed=3, texts=("ledger",)), PAIRS, prose_bpe))


def calls_of(row):
    return [json.loads(message_text(response[0])) for response in row.responses]


def test_a_wrong_response_has_exactly_the_error_that_it_names(rows, prose_view):
    for row in rows:
        view = prose_view(row)
        errors = [view.call_errors(view.responses[index]) for index in row.best_first()]
        assert errors == [[], [row.metadata["subtype"]]]


def test_every_published_type_of_error_is_equally_likely(rows):
    counts = Counter(row.metadata["subtype"] for row in rows)
    assert {*counts} == {*ERRORS}
    assert all(abs(count - PAIRS / 6) < 5 * np.sqrt(PAIRS / 6) for count in counts.values())


def test_the_control_classifies_every_error_of_a_changed_call(rows, prose_view):
    """A reader of calls that shares nothing with the generator detects a second error."""
    found = Counter()
    for row in rows[:200]:
        view = prose_view(row)
        (*calls, last) = json.loads(view.responses[row.best_first()[0]])
        other = {**last, "arguments": {**last["arguments"], "weight": 3}}
        found.update(view.call_errors(json.dumps([*calls, other])))
        other = {**last, "name": "unknown_desk"}
        found.update(view.call_errors(json.dumps([*calls, other])))
    assert found == {"Unexpected parameter": 200, "Incorrect function name": 200}


def features(calls):
    """What a reader of the response sees: how many calls, which arguments, of which type, and how long it is."""
    given = [call["arguments"] for call in calls]
    return [
        len(calls),
        sum("crates" in one for one in given),
        sum(isinstance(one.get("crates"), int) for one in given),
        sum(int(one.get("crates", 0)) for one in given),
        len(json.dumps(calls)),
        ord(given[0]["city"][0]),
        ord(calls[0]["name"][0]),
    ]


def right_by_form(rows):
    """How many of the second half a logistic model of the responses' form gets right that learned the first half."""
    differences = np.array([np.subtract(*map(features, calls_of(row))) for row in rows], float)
    differences /= differences.std(axis=0) + 1e-9
    first_is_right = np.array([row.ranks[0] == 1 for row in rows])
    half = len(rows) // 2
    model = LogisticRegression().fit(differences[:half], first_is_right[:half])
    return (model.predict(differences[half:]) == first_is_right[half:]).sum(), len(rows) - half


def near_chance(right, n):
    interval = binomtest(int(right), n).proportion_ci(0.999, "wilson")
    return interval.low <= 0.5 <= interval.high


def test_the_form_of_the_responses_reveals_nothing(rows):
    assert near_chance(*right_by_form(rows))


@pytest.mark.parametrize(
    "shape",
    [
        len,
        lambda calls: "crates" in calls[0]["arguments"],
        lambda calls: isinstance(calls[0]["arguments"].get("crates"), int),
    ],
    ids=["number of calls", "argument", "type"],
)
def test_each_form_is_right_as_often_as_its_reverse(rows, shape):
    higher = [
        shapes[row.best_first()[0]] == max(shapes)
        for row in rows
        if len({*(shapes := [*map(shape, calls_of(row))])}) == 2
    ]
    assert len(higher) > 180
    assert near_chance(sum(higher), len(higher))


def test_errors_without_their_reverse_would_be_detected(rows):
    """As where wrong calls only lack what right ones have."""
    one_way = [
        row
        for row in rows
        if len(json.dumps(calls_of(row)[row.best_first()[0]]))
        >= len(json.dumps(calls_of(row)[row.best_first()[1]]))
    ]
    right, n = right_by_form(one_way)
    assert right > 0.7 * n
