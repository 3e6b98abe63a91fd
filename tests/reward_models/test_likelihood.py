import math
import shutil
from dataclasses import replace

import pytest
import torch

import longrm
from longrm.errors import ConfigError, DataError, ModelError
from longrm.modeling import shared_prefix
from longrm.reward_models import ModelSettings, pinned
from longrm.reward_models import packed as likelihoods
from longrm.types import Outcome, Query

from .tiny_models import Plain, bytes_tokenizer, make_model, queries

TOLERANCE = 5e-4  # of sums of some dozen log-probabilities, computed in fp32
SHAPES = [(30, 2), (200, 7), (12, 1), (90, 4), (150, 3), (11, 5), (40, 6)]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp(request.param) / "model", request.param)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("reference") / "model", seed=1)


def plain_scores(plain, query, reduce=math.fsum):
    return [reduce(plain.logprobs(query.prompt, response)) for response in query.responses]


def mean(values):
    return math.fsum(values) / len(values)


@pytest.mark.parametrize(("how", "reduce"), [("sum", math.fsum), ("mean", mean)])
def test_scores_are_those_of_a_plain_loop(folder, how, reduce):
    model, plain = (
        longrm.load(f"likelihood:{folder}", model_args=ModelSettings(likelihood=how)),
        Plain(folder),
    )
    asked = [*queries(*SHAPES), *queries((60, 2), (80, 3), per_document=3, seed=1)]
    judged = model.judge(asked)
    assert [judgment.outcome for judgment in judged] == [Outcome.ANSWERED] * len(asked)
    for query, judgment in zip(asked, judged, strict=True):
        assert list(judgment.scores) == pytest.approx(plain_scores(plain, query, reduce), abs=TOLERANCE)
    assert model.scale == ("logit" if how == "sum" else "none")
    assert not model.sees_order


def test_a_loop_that_errs_is_told_from_one_that_does_not(folder):
    """The control: what a wrong mask, wrong places or other tokens would give is far from it."""
    plain, (query,) = Plain(folder), queries((60, 3))
    (judgment,) = longrm.load(f"likelihood:{folder}").judge([query])
    truth = plain_scores(plain, query)
    faults = {
        "without the closing tokens": plain_scores(plain, query, lambda own: math.fsum(own[:-2])),
        "without the first token": plain_scores(plain, query, lambda own: math.fsum(own[1:])),
        "means": plain_scores(plain, query, mean),
        "without the context": plain_scores(
            plain, replace(query, prompt=({"role": "user", "content": "?"},))
        ),
    }
    assert list(judgment.scores) == pytest.approx(truth, abs=TOLERANCE)
    for fault, found in faults.items():
        apart = max(abs(one - other) for one, other in zip(found, judgment.scores, strict=True))
        assert apart > 100 * TOLERANCE, fault


def test_questions_share_the_encoding_of_their_document(folder, monkeypatch):
    read, real = [], likelihoods.response_logprobs

    def watched(model, packed, written):
        read.append(packed.layout.tokens)
        return real(model, packed, written)

    monkeypatch.setattr(likelihoods, "response_logprobs", watched)
    model, asked = longrm.load(f"likelihood:{folder}"), queries((200, 3), per_document=4)
    items = [item for query in asked for item in model._items(query)]
    model.judge(asked)
    assert sum(read) < sum(item.size for item in items) / 2
    assert min(len(item.prompt) for item in items) < sum(read)


def test_logits_are_only_computed_at_the_responses_and_in_slices(folder, monkeypatch):
    rows, real = [], shared_prefix._linear
    monkeypatch.setattr(
        shared_prefix, "_linear", lambda states, head: rows.append(len(states)) or real(states, head)
    )
    monkeypatch.setattr(shared_prefix, "LOGITS_AT_ONCE", 16 * bytes_tokenizer().vocab_size)
    asked = queries((200, 4), (60, 2))
    model = longrm.load(f"likelihood:{folder}")
    expected = sum(sum(map(len, item.completion_tokens)) for query in asked for item in model._items(query))
    sliced = model.judge(asked)
    assert sum(rows) == expected
    assert max(rows) == 16
    monkeypatch.undo()
    for one, other in zip(sliced, model.judge(asked), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=TOLERANCE)


def test_the_implicit_reward_is_the_difference_to_the_reference(folder, reference):
    model = longrm.load(f"likelihood:{folder}#{reference}")
    asked, trained, started = queries((80, 3), (80, 2), per_document=2), Plain(folder), Plain(reference)
    for query, judgment in zip(asked, model.judge(asked), strict=True):
        pairs = zip(plain_scores(trained, query), plain_scores(started, query), strict=True)
        assert list(judgment.scores) == pytest.approx([one - other for one, other in pairs], abs=TOLERANCE)
    assert model.name == f"likelihood:{folder}#{reference}"
    assert model.scale == "none"
    (itself,) = longrm.load(f"likelihood:{folder}#{folder}").judge(asked[:1])
    assert itself.scores == pytest.approx([0.0] * 3, abs=1e-6)


def test_a_reference_with_another_tokenizer_is_refused(folder, tmp_path):
    other = make_model(tmp_path / "other", tokenizer=bytes_tokenizer(merges=("No", "Yes")))
    with pytest.raises(ModelError, match="vocabularies"):
        longrm.load(f"likelihood:{folder}#{other}")
    same_words = tmp_path / "same words"
    shutil.copytree(folder, same_words)
    file = same_words / "tokenizer.json"
    file.write_text(file.read_text().replace('"add_prefix_space": false', '"add_prefix_space": true'))
    (query,) = queries((20, 2))
    said_yes = replace(query, responses=(({"role": "assistant", "content": "Yes"},), query.responses[1]))
    model = longrm.load(f"likelihood:{folder}#{same_words}")
    with pytest.raises(ModelError, match="tokenizers of model and reference .* '20 words, 2"):
        model.judge([said_yes])


def test_without_a_chat_template_the_end_token_closes(tmp_path):
    folder = make_model(tmp_path / "base", tokenizer=bytes_tokenizer(None))
    plain, (query,) = Plain(folder), queries((20, 2))
    (judgment,) = longrm.load(f"likelihood:{folder}").judge([query])
    tokenizer = bytes_tokenizer(None)
    start = tokenizer.encode(query.prompt[0]["content"])
    for response, score in zip(query.responses, judgment.scores, strict=True):
        whole = [*start, *tokenizer.encode(response[0]["content"]), tokenizer.eos_id]
        with torch.inference_mode():
            table = plain.model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
        truth = math.fsum(table[at - 1, whole[at]].item() for at in range(len(start), len(whole)))
        assert score == pytest.approx(truth, abs=TOLERANCE)


def test_what_does_not_fit_is_counted_or_cut(folder):
    (short, long) = queries((20, 2), (600, 2))
    counted = longrm.load(f"likelihood:{folder}", model_args=ModelSettings(max_length=500))
    judged = counted.judge([long, short])
    assert [judgment.outcome for judgment in judged] == [Outcome.TOO_LONG, Outcome.ANSWERED]
    assert "> 500 tokens;" in judged[0].detail
    cutting = longrm.load(f"likelihood:{folder}", model_args=ModelSettings(max_length=500, cut="middle"))
    (judgment,) = cutting.judge([long])
    assert judgment.cut.policy == "middle"
    (item,) = cutting._items(long)
    assert item.longest > 500
    assert 440 < judgment.prompt_tokens < 500


def test_memory_that_runs_out_and_numbers_that_are_none_are_those_of_one_query(folder, monkeypatch):
    model, real = longrm.load(f"likelihood:{folder}"), likelihoods.response_logprobs
    small, large, other = queries((20, 2), (300, 2), (30, 2))

    def limited(model, packed, written):
        if packed.layout.tokens > 600:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(model, packed, written)

    monkeypatch.setattr(likelihoods, "response_logprobs", limited)
    outcomes = [judgment.outcome for judgment in model.judge([small, large, other])]
    assert outcomes == [Outcome.ANSWERED, Outcome.ERROR, Outcome.ANSWERED]
    monkeypatch.setattr(likelihoods, "response_logprobs", real)
    poisoned = replace(other, responses=(({"role": "assistant", "content": "~"},), other.responses[1]))
    with torch.no_grad():
        model._model.get_input_embeddings().weight[bytes_tokenizer().encode("~")[0]] = math.nan
    trials = model.judge_in_all_orders([small, poisoned])
    assert [trial.outcome for trial in trials] == [Outcome.ANSWERED, Outcome.UNPARSED]
    assert trials[1].detail == "the score of response 1 of 2 is nan"


def test_names(folder, reference):
    assert pinned(f"likelihood:{folder}#{reference}") == f"likelihood:{folder}#{reference}"
    assert pinned(f"compress:likelihood:{folder}") == f"compress:likelihood:{folder}"
    assert pinned("likelihood:openai:http://x/v1#acme/judge") == "likelihood:openai:http://x/v1#acme/judge"
    with pytest.raises(ConfigError, match="write it as likelihood:MODEL, or likelihood:MODEL#REFERENCE"):
        longrm.load("likelihood:")
    with pytest.raises(ModelError, match="no such model folder"):
        longrm.load("likelihood:/nowhere")


def test_a_response_without_a_token_is_an_error_of_its_own(tmp_path):
    folder = make_model(tmp_path / "base", tokenizer=bytes_tokenizer("{{ messages[0].content }}"))
    query = Query("q", ({"role": "user", "content": "x"},), (({"role": "assistant", "content": "a"},),))
    (judgment,) = longrm.load(f"likelihood:{folder}").judge([query])
    assert judgment.outcome is Outcome.ERROR
    with pytest.raises(DataError, match="gave no scores"):
        longrm.load(f"likelihood:{folder}").score("x", ["a"])
