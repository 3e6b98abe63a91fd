import dataclasses
import json
import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import longrm
from longrm.data.joining import encode
from longrm.errors import DataError
from longrm.judging import truncate_context
from longrm.reward_models import ModelSettings
from longrm.reward_models.packed import DiscriminativeRewardModel
from longrm.types import Outcome, Query, presented_order, query_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

from .tiny_models import make_scorer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_scorer(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def model(folder):
    return longrm.load(str(folder))


def plain_score(folder, prompt, response):
    """What a user of transformers alone would compute: one sequence a response, the whole prompt every time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    classifier = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = tokenizer.apply_chat_template([*prompt, *response], return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        return classifier(ids).logits.item()


def queries(n=12, per_group=3, length=100, responses=2):
    rows = generate(
        WorldPlan("records", length, responses=responses, per_group=per_group), n, words_tokenizer()
    )
    return [query_of(row, presented_order(row, 0)) for row in rows]


def test_scores_equal_those_of_transformers_on_separate_sequences(folder, model):
    some = queries(n=4, per_group=2)
    apart = []
    for query, judgment in zip(some, model.judge(some), strict=True):
        expected = [plain_score(folder, query.prompt, response) for response in query.responses]
        assert list(judgment.scores) == pytest.approx(expected, abs=1e-4)
        apart.append(max(expected) - min(expected))
    assert min(apart) > 1e-3, "the responses must be told apart for this to mean anything"
    assert max(apart) > 1e-2


def test_scores_do_not_depend_on_the_batch(model):
    some = queries()
    together = model.judge(some)
    for query, judgment in zip(some, together, strict=True):
        (alone,) = model.judge([query])
        assert list(alone.scores) == pytest.approx(judgment.scores, abs=1e-5)
        assert alone.prompt_tokens == judgment.prompt_tokens
    turned = model.judge(some[::-1])[::-1]
    for one, other in zip(together, turned, strict=True):
        assert list(one.scores) == pytest.approx(other.scores, abs=1e-5)


def test_the_token_that_transformers_reads_is_read_where_padding_is_the_end_token(folder, model, tmp_path):
    confused = tmp_path / "confused"
    shutil.copytree(folder, confused)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = json.loads((confused / "config.json").read_text())
    (confused / "config.json").write_text(json.dumps(config | {"pad_token_id": tokenizer.eos_token_id}))
    (query,) = queries(n=1, per_group=1)
    (judgment,) = longrm.load(str(confused)).judge([query])
    early = [plain_score(confused, query.prompt, response) for response in query.responses]
    assert list(judgment.scores) == pytest.approx(early, abs=1e-4)
    (late,) = model.judge([query])
    assert min(abs(one - other) for one, other in zip(judgment.scores, late.scores, strict=True)) > 1e-3


def test_what_the_model_cannot_read_is_counted_and_not_cut(model):
    short, long = queries(n=1, per_group=1)[0], queries(n=1, per_group=1, length=700)[0]
    judged = model.judge([long, short])
    assert [judgment.outcome for judgment in judged] == [Outcome.TOO_LONG, Outcome.ANSWERED]
    assert "> 600 tokens; " in judged[0].detail
    assert judged[1].cut is None
    with pytest.raises(DataError, match="> 600 tokens; "):
        model.score(long.prompt, long.responses)


@pytest.mark.parametrize("policy", ["middle", "left", "right"])
def test_a_named_policy_cuts_the_context_and_says_so(folder, policy):
    cutting = DiscriminativeRewardModel.load(str(folder), ModelSettings(cut=policy))
    tokenizer = cutting.tokenizer
    short, long = queries(n=1, per_group=1)[0], queries(n=1, per_group=1, length=700)[0]

    def measure(query):
        return encode(tokenizer, query.prompt, query.responses).longest

    cut_query, cut = truncate_context(long, measure, 600, tokenizer, policy)
    judged, whole = cutting.judge([long, short])
    assert judged.cut == cut
    assert cut.policy == policy
    assert cut.tokens > 100
    assert judged.prompt_tokens == len(tokenizer.prompt_ids(cut_query.prompt))
    assert 580 < measure(cut_query) <= 600
    expected = [plain_score(folder, cut_query.prompt, response) for response in long.responses]
    assert list(judged.scores) == pytest.approx(expected, abs=1e-4)
    assert whole.cut is None


def test_nothing_is_cut_where_the_context_is_not_known(folder):
    (query,) = queries(n=1, per_group=1, length=700)
    unknown = dataclasses.replace(query, context=())
    (judged,) = DiscriminativeRewardModel.load(str(folder), ModelSettings(cut="middle")).judge([unknown])
    assert judged.outcome is Outcome.TOO_LONG


def test_a_response_that_cannot_be_rendered_is_an_error_of_its_own(model):
    good = queries(n=1, per_group=1)[0]
    bad = Query("bad", good.prompt, (good.responses[0], ({"role": "system", "content": "x"},)))
    judged = model.judge([bad, good])
    assert [judgment.outcome for judgment in judged] == [Outcome.ERROR, Outcome.ANSWERED]


def test_plain_text_and_messages_score_alike(model):
    text = model.score("Who met again?", ["The committee.", "The sailor."])
    messages = model.score(
        [{"role": "user", "content": "Who met again?"}],
        [[{"role": "assistant", "content": "The committee."}], "The sailor."],
    )
    assert text == messages
    assert len(text) == 2


def test_a_token_without_an_embedding_fails_its_query_alone(folder, tmp_path):
    model_folder = shutil.copytree(folder, tmp_path / "model")
    file = model_folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"additional_special_tokens": ["<extra>"]}))
    one, other = queries(n=2, per_group=1)
    told = dataclasses.replace(one, prompt=({"role": "user", "content": "What is <extra>?"},))
    judgments = longrm.load(str(model_folder)).judge([told, other])
    assert [judgment.outcome for judgment in judgments] == [Outcome.ERROR, Outcome.ANSWERED]
    assert "outside the model's" in judgments[0].detail
