"""Likelihoods and token scores of a pretrained model are those of a plain loop with transformers over it."""

import math

import pytest

import longrm
from longrm.data.tokenizing import Tokenizer
from longrm.judging import TOKEN_FORMATS
from longrm.reward_models import JudgeSettings
from longrm.types import query_of
from longrm.worlds import WorldPlan, generate

from .tiny_models import Plain

pytestmark = pytest.mark.real_model

TOLERANCE = 1e-3  # of sums of some dozen log-probabilities, thirty layers in fp32


@pytest.fixture(scope="module")
def plain(real_model):
    return Plain(real_model)


def asked(real_model, length, responses, questions=1):
    plan = WorldPlan("records", length, responses=responses, per_group=questions)
    rows = generate(plan, questions, Tokenizer.load(real_model))
    return [query_of(row, range(responses)) for row in rows]


@pytest.mark.parametrize(("length", "responses", "questions"), [(500, 7, 1), (400, 2, 3), (2000, 2, 1)])
def test_likelihoods(real_model, plain, length, responses, questions):
    queries = asked(real_model, length, responses, questions)
    for query, judgment in zip(queries, longrm.load(f"likelihood:{real_model}").judge(queries), strict=True):
        own = [plain.logprobs(query.prompt, response) for response in query.responses]
        assert list(judgment.scores) == pytest.approx([math.fsum(values) for values in own], abs=TOLERANCE)
        without_end = [math.fsum(values[:-2]) for values in own]
        assert max(abs(a - b) for a, b in zip(without_end, judgment.scores, strict=True)) > 10 * TOLERANCE


def test_a_model_that_is_its_own_reference_says_nothing(real_model):
    (query,) = asked(real_model, 100, 3)
    (judgment,) = longrm.load(f"likelihood:{real_model}#{real_model}").judge([query])
    assert judgment.scores == pytest.approx([0.0] * 3, abs=1e-6)


@pytest.mark.parametrize(
    ("length", "form", "responses"), [(400, "pairwise", 2), (300, "listwise", 5), (100, "pointwise", 3)]
)
def test_token_scores(real_model, plain, length, form, responses):
    queries = asked(real_model, length, responses, 2)
    model = longrm.load(f"tokens:{real_model}", judge=JudgeSettings(format=form))
    format = TOKEN_FORMATS[form]()
    for query, judgment in zip(queries, model.judge(queries), strict=True):
        rows = [plain.first(prompt, format.tokens) for prompt in format.render(query)]
        assert list(judgment.scores) == pytest.approx(format.scores(rows, responses), abs=TOLERANCE)
        assert max(judgment.scores) - min(judgment.scores) > 2 * TOLERANCE
