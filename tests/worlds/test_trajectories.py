"""Only the record of a wrong step reveals it: a reader finds it always, shallow rules by chance, leaks by rules."""

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare
from sklearn.linear_model import LogisticRegression

from longrm.data.trajectories import split_steps
from longrm.errors import ConfigError, ContextLengthError
from longrm.rng import Rng
from longrm.types import message_text, text_of
from longrm.worlds.trajectories import TrajectoryPlan, trajectories
from longrm.worlds.words_tokenizer import load_tokenizer
from tests.worlds.conftest import RECORD

STEPS, ROWS = 8, 400
LENGTHS = {"words": 640, "approximate": 1600}
ANSWERS = (
    (r"The parcel of (.+) is picked up in (.+)\.", "pickup"),
    (r"The parcel of (.+) is delivered in (.+)\.", "delivery"),
    (r"Before the move, (.+) lived in (.+)\.", "former_city"),
    (r"Now (.+) lives in (.+)\.", "current_city"),
    (r"(.+) buys (.+)\.", "buys"),
    (r"(.+) sells (.+)\.", "sells"),
    (r"The access code of (.+) is (.+)\.", "code"),
)


def claim_of(step):
    """The name, field and value of a step."""
    turn = step[-1]
    for call in turn.get("tool_calls", ()):
        if given := call["function"]["arguments"]:
            return given["name"], given["field"], given["value"]
    return next(
        (*found.groups()[:1], field, found[2])
        for form, field in ANSWERS
        if (found := re.fullmatch(form, turn["content"]))
    )


def records_of(text):
    """Values by name and field."""
    found = {(name, "code"): value for name, value in RECORD.findall(text)}
    for line in re.findall(r"^\{.*\}$", text, re.M):
        record = json.loads(line)
        name = record.pop("name")
        found |= {(name, field): value for field, value in record.items()}
    return found


def results_of(one):
    """The result before each step, without its request."""
    texts = [message_text(one.prompt[0]), *(message_text(step[0]) for step in one.steps[1:])]
    return [re.sub(r"\n\n(Question|Request): .*", "", text) for text in texts]


def features(one):
    """What a rule can see of each step without reading which value belongs to which name."""
    results, found = results_of(one), []
    claims = [claim_of(step) for step in one.steps]
    named = Counter(value for _, _, value in claims)
    prompt = Counter(re.findall(r"\w+", results[0]))
    for number, (name, field, value) in enumerate(claims):
        seen, last = " ".join(results[: number + 1]), results[number]
        said = set(re.findall(r"\w+", f"{name} {field} {value}"))
        places = [match.start() for match in re.finditer(rf"\b{value}\b", seen)]
        words = Counter(re.findall(r"\w+", seen))
        found.append(
            {
                "position": number,
                "length": len(text_of(one.steps[number][-1:])),
                "in prompt": sum(map(prompt.get, said & prompt.keys())),
                "in last": len(said & set(re.findall(r"\w+", last))),
                "in all": len(said & words.keys()),
                "times": len(places),
                "times in last": len(re.findall(rf"\b{value}\b", last)),
                "recent": max(places, default=-1) - len(seen),
                "first": min(places, default=len(seen)),
                "named": named[value],
                "times in the end": " ".join(results).count(value),
                "field": sum(map(ord, field)) % 7,
                "name": seen.rfind(name),
            }
        )
    return found


def near(one):
    """How near the value of each step is to its name."""
    found, seen = [], ""
    for step, text in zip(one.steps, results_of(one), strict=True):
        seen += f" {text}"
        name, _, value = claim_of(step)
        at = [match.start() for match in re.finditer(rf"\b{value}\b", seen)]
        found.append(min((abs(place - seen.find(name)) for place in at), default=len(seen)))
    return found


def hits(rows, scores):
    """How often the step with the highest score is the wrong one; ties fall at random."""
    rng = Rng("ties")
    chosen = [max(range(STEPS), key=lambda at: (score[at], rng.fraction())) for score in scores]
    return sum(one.labels[at] == -1 for one, at in zip(rows, chosen, strict=True))


def beats_chance(rows, scores):
    """Whether the highest or the lowest score finds the wrong step more or less often than 1 of 8."""
    signs = (scores, [[-score for score in one] for one in scores])
    return any(binomtest(hits(rows, one), len(rows), 1 / STEPS).pvalue < 0.001 for one in signs)


def with_wrong(one, value_of):
    """The trajectory with another wrong value, by the results up to the wrong step."""
    at = one.labels.index(-1)
    _, _, value = claim_of(one.steps[at])
    text = json.dumps(one.steps[at][-1]).replace(value, value_of(one, at))
    return replace(
        one, steps=(*one.steps[:at], (*one.steps[at][:-1], json.loads(text)), *one.steps[at + 1 :])
    )


@pytest.fixture(scope="module", params=LENGTHS)
def rows(request):
    plan = TrajectoryPlan(LENGTHS[request.param], steps=(STEPS, STEPS), wrong_share=1, seed=5)
    return list(trajectories(plan, ROWS, load_tokenizer(request.param)))


def is_words(rows):
    return not rows[0].tools


def test_a_reader_of_the_results_finds_every_wrong_step(rows):
    for one in rows:
        known = {}
        for step, label, result in zip(one.steps, one.labels, results_of(one), strict=True):
            known |= records_of(result)
            name, field, value = claim_of(step)
            assert (known[name, field] == value) == (label == 1)
            assert value in known.values()
        assert one.labels.count(-1) == 1


def test_shallow_rules_find_it_by_chance(rows):
    found = [features(one) for one in rows]
    for rule in found[0][0]:
        assert not beats_chance(rows, [[step[rule] for step in one] for one in found]), rule
    # In prose both values of a record are near its name; in words the nearest one is the right one.
    assert beats_chance(rows, [near(one) for one in rows]) == is_words(rows)


def test_a_logistic_model_of_all_rules_is_at_chance(rows):
    seen = np.array([[[*step.values()] for step in map(dict, features(one))] for one in rows], dtype=float)
    seen = (seen - seen.mean((0, 1))) / (seen.std((0, 1)) + 1e-9)
    wrong, half = np.array([one.labels for one in rows]) == -1, ROWS // 2
    model = LogisticRegression().fit(seen[:half].reshape(half * STEPS, -1), wrong[:half].ravel())
    assert not beats_chance(
        rows[half:], model.decision_function(seen[half:].reshape(-1, seen.shape[2])).reshape(half, STEPS)
    )


def never_named(one, at):
    return "xylophone"


def latest_value(one, at):
    return [*records_of(results_of(one)[at]).values()][-1]


@pytest.mark.parametrize(("leak", "rule"), [(never_named, "times"), (latest_value, "recent")])
def test_a_leak_is_detected(rows, leak, rule):
    found = [features(with_wrong(one, leak)) for one in rows]
    assert beats_chance(rows, [[step[rule] for step in one] for one in found])


@pytest.mark.parametrize("name", LENGTHS)
def test_any_step_is_wrong_with_equal_probability(name):
    plan = TrajectoryPlan(1024, steps=(4, 4), per_group=60, seed=2)
    made = [*trajectories(plan, 600, load_tokenizer(name))]
    wrong = [one.labels.index(-1) for one in made if not one.success]
    assert chisquare([*Counter(wrong).values()]).pvalue > 0.001
    assert binomtest(len(wrong), 600, 0.75).pvalue > 0.001
    assert {one.success for one in made} == {True, False}
    assert all((-1 in one.labels) != one.success for one in made)
    # The trajectories of a group differ in their wrong steps only.
    for one in made[1:60]:
        different = {at for at in range(4) if one.steps[at] != made[0].steps[at]}
        assert one.prompt == made[0].prompt
        assert different <= {label for x in (one, made[0]) if not x.success for label in [x.labels.index(-1)]}


@pytest.mark.parametrize(
    ("name", "length"),
    [("words", 256), ("words", 1024), ("words", 8192), ("approximate", 1024), ("approximate", 8192)],
)
def test_lengths_and_steps(name, length):
    tokenizer = load_tokenizer(name)
    plan = TrajectoryPlan(length, seed=3)
    made = [*trajectories(plan, 6, tokenizer)]
    for one in made:
        messages = [*one.prompt, *(message for step in one.steps for message in step)]
        text = tokenizer.render(messages) if name == "words" else text_of(messages)
        assert 0.94 * length <= tokenizer.count(text) <= length
        assert 4 <= len(one.steps) <= 12
        assert split_steps(messages, "messages")[:2] == (one.prompt, one.steps)
        wrong = None if one.success else one.metadata["depths"][one.labels.index(-1)]
        assert one.metadata.get("depth") == wrong
    assert made == [*trajectories(plan, 6, tokenizer)]
    assert made[0].prompt != next(trajectories(replace(plan, seed=4), 1, tokenizer)).prompt


def test_depth_is_a_share_of_all_tokens_at_every_length():
    """So the distance to the deciding record grows with the length."""
    tokenizer = load_tokenizer("words")
    means = [
        np.mean(
            [
                depth
                for one in trajectories(TrajectoryPlan(length), 24, tokenizer)
                for depth in one.metadata["depths"]
            ]
        )
        for length in (512, 4096)
    ]
    assert means[1] == pytest.approx(means[0], rel=0.35)
    assert min(means) > 0.15


@pytest.mark.parametrize("wrong", [{"length": 0}, {"steps": (5, 4)}, {"wrong_share": 2}, {"per_group": 0}])
def test_refuses_a_value_out_of_its_range(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TrajectoryPlan(**{"length": 512, **wrong})


def test_refuses_a_length_too_short_for_the_steps():
    with pytest.raises(ContextLengthError, match="length 60"):
        next(trajectories(TrajectoryPlan(60), 1, load_tokenizer("words")))
