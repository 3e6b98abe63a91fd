"""A checklist and a length as a reward: closed forms, a judge of known error, and texts with a demand left out."""

import random
import re

import pytest
from scipy.stats import binomtest

import longrm
from longrm.data.criteria import criteria_of
from longrm.errors import ConfigError, DataError
from longrm.reward_models import Baseline, JudgeSettings
from longrm.reward_models.generative import GenerativeRewardModel
from longrm.reward_models.reward_functions import length_term
from longrm.types import Query, as_messages, text_of

from .test_generative import Script

WORDS = ("anchor", "bridge", "candle", "desert", "engine")
RUBRICS = [
    {"criterion": f'It says "{word}".', "weight": weight} for weight, word in enumerate(WORDS, start=1)
]
PROMPT, WHOLE = "Write about five things.", " ".join(WORDS)


def looks_up(error=0.0, points=(0, 10)):
    """A judge that gives 10 points if the criterion's word is in the response, else 0, and errs at a rate."""

    def answer(request):
        text = text_of(request.messages)
        word = re.findall(r'<criterion>\nIt says "(\w+)"', text)[0]
        response = re.findall(r"<response>\n(.*)\n</response>", text)[0]
        errs = random.Random(text).random() < error
        return f"[[{points[(word in response.split()) != errs]}]]"

    return GenerativeRewardModel(Script(answer), JudgeSettings(format="pointwise", retries=0))


def without(word):
    return WHOLE.replace(word, "").strip()


@pytest.mark.parametrize(
    ("words", "term"),
    [
        # Linear in the ratio of the longer to the shorter: 1 at the target, 0 at four times and at a third of it.
        *((900, 1.0), (1800, 1 - 1 / 3), (2700, 1 - 2 / 3), (3600, 0.0), (9000, 0.0)),
        *((450, 0.5), (600, 0.75), (300, 0.0), (1, 0.0), (0, 0.0)),
    ],
)
def test_the_length_term_has_closed_forms(words, term):
    assert length_term(words, 900) == pytest.approx(term, abs=1e-12)


def test_the_length_term_rises_to_the_target_and_falls_beyond():
    terms = [length_term(words, 100) for words in range(1, 500)]
    assert terms[:100] == sorted(terms[:100])
    assert terms[99:] == sorted(terms[99:], reverse=True)


def test_a_left_out_demand_lowers_exactly_its_criterion():
    reward = longrm.reward_function(looks_up(), rubrics="item")
    texts = [WHOLE, *map(without, WORDS)]
    found = reward([PROMPT] * 6, texts, rubrics=[RUBRICS] * 6)
    assert found[0] == pytest.approx(1.0)
    assert [found[0] - one for one in found[1:]] == pytest.approx([weight / 15 for weight in range(1, 6)])
    # By criterion, too: only the row of the demand that was left out changes.
    prompt = as_messages(PROMPT, "user")
    responses = tuple(as_messages(text, "assistant") for text in texts)
    query = Query("c", prompt, responses, rubrics=criteria_of(RUBRICS, "rubrics"))
    (trial,) = reward.model.judge_in_all_orders([query])
    for number, row in enumerate(trial.criteria, start=1):
        assert row == pytest.approx([0.0 if at == number else 10 * number / 15 for at in range(6)])


def test_texts_rank_by_how_many_demands_they_drop_and_not_for_a_judge_that_ignores_the_criterion():
    texts = [" ".join(WORDS[:count]) for count in range(6)]
    columns = {"rubrics": [[f'It says "{word}".' for word in WORDS]] * 6}
    found = longrm.reward_function(looks_up(), rubrics="item")([PROMPT] * 6, texts, **columns)
    assert found == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    deaf = longrm.reward_function(looks_up(points=(7, 7)), rubrics="item")
    assert deaf([PROMPT] * 6, texts, **columns) == pytest.approx([0.7] * 6)


def test_a_judge_of_known_error_gives_the_known_mean():
    error, met = 0.2, 3
    prompts = [f"{PROMPT} {number}" for number in range(200)]
    columns = {"rubrics": [[f'It says "{word}".' for word in WORDS]] * 200}
    found = longrm.reward_function(looks_up(error), rubrics="item")(
        prompts, [" ".join(WORDS[:met])] * 200, **columns
    )
    expected = met / 5 * (1 - error) + (1 - met / 5) * error  # 0.56
    assert binomtest(round(5 * sum(found)), 1000, expected).pvalue > 0.01
    assert (
        binomtest(round(5 * sum(found)), 1000, met / 5).pvalue < 0.05
    )  # the control: a judge without errors


def test_the_reward_is_the_mean_of_both_terms_which_are_logged():
    reward, logged = longrm.reward_function(looks_up(), rubrics="item", length="item"), {}
    columns = {"rubrics": [RUBRICS] * 3, "target_words": [5, 10, None]}
    found = reward(
        [PROMPT, f"{PROMPT} Long.", f"{PROMPT} Free."],
        [WHOLE, WHOLE, without("engine")],
        log_metric=lambda name, value: logged.update({name.rpartition("/")[2]: value}),
        **columns,
    )
    assert found == pytest.approx([1.0, (1 + 0.5) / 2, 10 / 15])
    assert logged == {
        "unscored": 0.0,
        "checklist": pytest.approx((2 + 10 / 15) / 3),
        "length": pytest.approx(0.75),
    }
    fixed = longrm.reward_function(looks_up(), rubrics="item", length=10)
    thought = f"<think>{WHOLE} {WHOLE}</think>{WHOLE}"
    assert fixed([PROMPT] * 2, [WHOLE, thought], rubrics=[RUBRICS] * 2) == pytest.approx([0.75, 0.75])


def test_a_file_has_the_same_criteria_for_all_rows(tmp_path):
    file = tmp_path / "rubrics.jsonl"
    file.write_text(
        '{"criterion": "It says \\"anchor\\"."}\n{"criterion": "It says \\"engine\\".", "weight": 3}\n'
    )
    reward = longrm.reward_function(looks_up(), rubrics=str(file))
    assert reward([PROMPT] * 2, ["anchor", "engine"]) == pytest.approx([0.25, 0.75])


def test_what_cannot_be_rewarded_by_a_checklist_is_refused():
    with pytest.raises(ConfigError, match="length is only valid with rubrics"):
        longrm.reward_function("baseline:longest", length=100)
    with pytest.raises(ConfigError, match="length must be"):
        longrm.reward_function(looks_up(), rubrics="item", length=0)
    for model in (Baseline("longest"), GenerativeRewardModel(Script(str), JudgeSettings())):
        with pytest.raises(ConfigError, match="pointwise"):
            longrm.reward_function(model, rubrics="item")
    with pytest.raises(ConfigError, match=r"tokens:MODEL.*simulated:0\.1"):
        longrm.reward_function("simulated:0.1", rubrics="item")
    reward = longrm.reward_function(looks_up(), rubrics="item", length="item")
    for columns, field in (
        ({}, "rubrics"),
        ({"rubrics": [RUBRICS]}, "rubrics"),
        ({"rubrics": [[{"weight": 1}]] * 2}, "rubrics"),
        ({"rubrics": [RUBRICS] * 2, "target_words": [-1, 2]}, "target_words"),
    ):
        with pytest.raises(DataError, match=field):
            reward([PROMPT] * 2, ["a", "b"], **columns)
