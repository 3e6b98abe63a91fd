import pytest

import longrm
from longrm.errors import ConfigError, DataError
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


def test_a_list_content_is_measured_by_its_text():
    parts = [{"type": "text", "text": "long enough"}, {"type": "image_url", "image_url": {"url": "x" * 99}}]
    longer = ({"role": "assistant", "content": parts},)
    scores = longrm.load("baseline:longest").score("?", ["a" * 12, longer])
    assert scores == [12.0, 11.0]


def test_an_unknown_baseline_is_named():
    with pytest.raises(ConfigError, match="no baseline 'longets'; did you mean 'longest'"):
        load("baseline:longets")


@pytest.mark.parametrize("responses", ["text", []])
def test_responses_that_are_no_list_are_refused(responses):
    with pytest.raises(DataError, match="responses"):
        load("baseline:first").score("?", responses)


def test_settings_may_be_a_mapping_and_a_misspelt_one_is_refused():
    model = load("ensemble:votes:baseline:longest+baseline:first", judge={"cut": "middle"})
    assert model.name == load("ensemble:votes:baseline:longest+baseline:first").name
    with pytest.raises(ConfigError, match=r"cuts.*did you mean 'cut'") as caught:
        load("baseline:longest", judge={"cuts": "middle"})
    assert "\n" not in str(caught.value)
