"""How far a scalar head is from random ones, against plain transformers and against random heads themselves."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import longrm
from longrm.attribution.attribute import attribute
from longrm.attribution.records import Target
from longrm.types import query_of
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_scorer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_scorer(tmp_path_factory.mktemp("model") / "tiny", positions=256)


@pytest.fixture(scope="module")
def query():
    (row,) = generate(WorldPlan("records", 64), 1, words_tokenizer())
    return query_of(row, row.best_first())


def states(folder, query):
    """The last hidden states of both responses, each as a sequence of its own."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for response in query.responses:
        ids = tokenizer.apply_chat_template(
            [*query.prompt, *response], return_tensors="pt", return_dict=True
        )["input_ids"]
        with torch.no_grad():
            found.append(model.model(ids).last_hidden_state[0, -1])
    return found, model.score.weight[0].detach()


def test_head_deviation_is_the_lead_over_the_spread_of_random_heads(folder, query):
    (first, second), weight = states(folder, query)
    drawn = torch.randn(4000, len(weight), generator=torch.Generator().manual_seed(0))
    leads = drawn / drawn.norm(dim=1, keepdim=True) * weight.norm() @ (first - second)
    model = longrm.load(str(folder))
    better, worse = model.score(query.prompt, query.responses)
    assert float(leads.mean()) == pytest.approx(0, abs=0.06 * float(leads.std()))
    assert model.head_deviation(query) == pytest.approx((better - worse) / float(leads.std()), rel=0.05)
    swapped = replace(query, responses=query.responses[::-1])
    assert model.head_deviation(swapped) == pytest.approx(-model.head_deviation(query), rel=1e-4)


def test_a_head_along_the_difference_of_two_states_deviates_most(folder, query):
    (first, second), weight = states(folder, query)
    model = longrm.load(str(folder))
    head = model._model.score.weight
    with torch.no_grad():
        head.copy_((first - second)[None])
    assert model.head_deviation(query) == pytest.approx(math.sqrt(len(weight)), rel=1e-3)
    record = attribute(model, query, Target(0, 1))
    assert "random head" not in record.trust.reason


def test_a_random_head_is_named_as_the_reason(folder, query):
    model = longrm.load(str(folder))
    assert abs(model.head_deviation(query)) < 3
    record = attribute(model, query, Target(0, 1))
    assert not record.trust.shown
    assert "a random head would score similarly" in record.trust.reason
