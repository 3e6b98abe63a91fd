import pytest

from longrm.errors import ConfigError
from longrm.reward_models import load
from longrm.reward_models.baselines import BASELINES
from longrm.types import Query

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
