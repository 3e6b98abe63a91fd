"""Judges of three kinds say with kept prefixes what they say without, whatever was asked before."""

import math
import random
from dataclasses import replace

import pytest
import torch

import longrm
from longrm.reward_models import packed
from longrm.types import Outcome

from .tiny_models import bytes_tokenizer, make_model, make_scorer, queries

TOLERANCE = 5e-5


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    make_scorer(folder / "scalar", positions=4096, tokenizer=bytes_tokenizer())
    make_scorer(folder / "mlp", positions=4096, tokenizer=bytes_tokenizer(), head="mlp")
    make_model(folder / "writer")
    make_model(folder / "before", seed=1)
    make_model(folder / "hybrid", "qwen3.5")
    make_model(folder / "hybrid-before", "qwen3.5", seed=1)
    return {
        "scalar": str(folder / "scalar"),
        "mlp": str(folder / "mlp"),
        "likelihood": f"likelihood:{folder}/writer",
        "implicit reward": f"likelihood:{folder}/writer#{folder}/before",
        "tokens": f"tokens:{folder}/writer",
        "recurrent": f"likelihood:{folder}/hybrid#{folder}/hybrid-before",
    }


@pytest.mark.parametrize("kind", ["scalar", "mlp", "likelihood", "implicit reward", "tokens", "recurrent"])
def test_scores_are_those_without_a_cache_in_any_order(names, kind):
    settings = {"model_args": {"likelihood": "mean"}, "judge": {"format": "pointwise"}}
    plain, caching = (longrm.load(names[kind], **settings) for _ in range(2))
    caching.keep_prefixes(2**19)
    asked = queries((40, 2), (90, 3), (5, 2), (60, 4), per_document=2)
    truth = {query.id: judgment for query, judgment in zip(asked, plain.judge(asked), strict=True)}
    draw, cached = random.Random(0), 0
    for _ in range(12):
        some = draw.sample(asked, draw.randint(1, 4))
        for query, judgment in zip(some, caching.judge(some), strict=True):
            expected = truth[query.id]
            assert list(judgment.scores) == pytest.approx(expected.scores, abs=TOLERANCE)
            assert replace(judgment, scores=(), explanation="", cached_tokens=0) == replace(
                expected, scores=(), explanation=""
            )
            cached += judgment.cached_tokens
    assert cached > 500
    assert caching.prefix_cache.table.blocks * caching.prefix_cache.block_bytes <= 2**19


def test_questions_about_a_new_document_wait_for_it_or_are_one_tree(names):
    for name, together in (("scalar", [0]), ("recurrent", [0, 1])):
        model = longrm.load(names[name])
        model.keep_prefixes(2**22)
        opened = [model.open(query) for query in queries((80, 2), per_document=2)]
        assert model.choose(opened) == together
        judged = [*model.read([opened[at] for at in together]), *model.judge([opened[1].query])]
        assert judged[0].cached_tokens == 0
        assert judged[-1].cached_tokens > 300


@pytest.mark.parametrize("kind", ["scalar", "recurrent"])
def test_the_same_prompt_is_read_once(names, kind):
    model = longrm.load(names[kind])
    model.keep_prefixes(2**22)
    (query,) = queries((80, 3))
    alone = [replace(query, responses=(response,)) for response in query.responses]
    first, *others = [model.judge([one])[0] for one in alone]
    assert first.cached_tokens == 0
    assert {one.cached_tokens for one in others} == {(first.prompt_tokens - 1) // 16 * 16}


def test_large_scores_differ_by_rounding_too(names):
    plain, caching = longrm.load(names["scalar"]), longrm.load(names["scalar"])
    caching.keep_prefixes(2**22)
    with torch.no_grad():
        for model in (plain, caching):
            model._model.score.weight *= 10
    asked = queries(*((words, 2) for words in (40, 90, 60, 200)), per_document=3)
    found, truth = ([model.judge([query])[0] for query in asked] for model in (caching, plain))
    sizes = [abs(score) for one in truth for score in one.scores]
    differences = [
        abs(score - expected) / max(1.0, abs(expected))
        for one, other in zip(found, truth, strict=True)
        for score, expected in zip(one.scores, other.scores, strict=True)
    ]
    assert max(differences) < TOLERANCE
    assert max(sizes) > 5
    assert sum(one.cached_tokens for one in found) > 1000, "or there is nothing to compare"


def test_a_number_that_is_none_is_not_kept(names):
    model = longrm.load(names["scalar"])
    model.keep_prefixes(2**22)
    (query,) = queries((80, 2))
    weight = model._model.score.weight
    with torch.no_grad():
        before = weight.clone()
        weight.fill_(math.nan)
        (broken,) = model.judge([query])
        weight.copy_(before)
    assert all(map(math.isnan, broken.scores))
    (whole,) = model.judge([query])
    assert whole.cached_tokens == 0
    assert whole.outcome is Outcome.ANSWERED


@pytest.mark.real_model
@pytest.mark.parametrize("kind", ["likelihood", "tokens"])
def test_a_real_model_says_the_same_over_kept_prefixes(real_model, kind):
    name = f"{kind}:{real_model}"
    plain, caching = longrm.load(name), longrm.load(name)
    caching.keep_prefixes(2**28)
    asked = queries((120, 2), per_document=3)
    judged = [caching.judge([query])[0] for query in asked]
    for expected, found in zip(plain.judge(asked), judged, strict=True):
        size = max(1.0, *map(abs, expected.scores))
        assert list(found.scores) == pytest.approx(expected.scores, abs=TOLERANCE * size)
    assert [judgment.cached_tokens > 100 for judgment in judged] == [False, True, True]


def test_memory_that_runs_out_while_prompts_are_laid_out_is_the_outcome_of_one_query(names, monkeypatch):
    model = longrm.load(names["scalar"])
    asked = queries((40, 2), (300, 2), (60, 2))
    truth = [judgment.scores for judgment in model.judge(asked)]
    model.keep_prefixes(2**19)
    lay_out = model.prefix_cache.pack

    def narrow(trees):
        if len(trees) > 1 or len(trees[0].tokens) > 290:
            raise MemoryError
        return lay_out(trees)

    monkeypatch.setattr(model.prefix_cache, "pack", narrow)
    judged = model.judge(asked)
    assert [judgment.outcome for judgment in judged] == [Outcome.ANSWERED, Outcome.ERROR, Outcome.ANSWERED]
    assert "out of memory" in judged[1].detail
    for place in (0, 2):
        assert judged[place].scores == pytest.approx(truth[place], abs=TOLERANCE)


@pytest.mark.parametrize(("device", "expected"), [("cuda", 30 * 2**30), ("cpu", 2**30)])
def test_the_default_size_is_half_of_a_gpus_free_memory(names, monkeypatch, device, expected):
    model = longrm.load(names["scalar"])
    budgets = []
    monkeypatch.setattr(packed, "PrefixCache", lambda models, budget: budgets.append(budget))
    monkeypatch.setattr(type(model._model), "device", torch.device(device))
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda place: (60 * 2**30, 80 * 2**30))
    model.keep_prefixes()
    model.keep_prefixes(123)
    assert budgets == [expected, 123]
