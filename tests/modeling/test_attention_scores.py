"""FR and IG of regions, against the equations written out in loops over full matrices."""

import copy
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import LlamaForSequenceClassification

from longrm.data.joining import encode
from longrm.modeling.attended_regions import (
    IRRELEVANT,
    SUPPORTING,
    AttendedComparison,
    RegionAttention,
    context_regions,
)
from longrm.modeling.attention_scores import (
    AttentionRow,
    attended,
    embedding_gradient_norms,
    region_scores,
    token_attention,
)
from longrm.modeling.loading import Scorer, new_scorer
from longrm.modeling.shapes import ModelShape
from longrm.types import Comparison, Query, Span, message_text
from longrm.worlds import WorldPlan, generate, words_tokenizer

K = 9
TOLERANCE = 1e-5
SHAPE = ModelShape(layers=3, heads=4, kv_heads=2, head_dim=8, hidden=32, intermediate=48, init_std=0.3)


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return new_scorer(SHAPE, words_tokenizer(), seed=1)


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
    return list(generate(WorldPlan("records", 96, responses=3), 4, words_tokenizer()))


def first_sentence(comparison: Comparison) -> Span:
    return Span(0, 0, message_text(comparison.prompt[0]).index(".") + 1)


def query_of(comparison: Comparison) -> Query:
    return Query(comparison.id, comparison.prompt, comparison.responses)


def stock_of(scorer: Scorer) -> Any:
    stock = LlamaForSequenceClassification(copy.deepcopy(scorer.model.config))
    stock.load_state_dict(scorer.model.state_dict())
    stock.set_attn_implementation("eager")
    return stock.eval()


def tokens_of(scorer: Scorer, comparison: Comparison, spans: list[Span]) -> list[int]:
    """By counting what precedes: this tokenizer has a token for every word and mark."""
    opening, text = scorer.tokenizer.opening(comparison.prompt), message_text(comparison.prompt[0])
    start = opening.index(text)
    counts = [
        (
            scorer.tokenizer.count(opening[: start + span.start]),
            scorer.tokenizer.count(text[span.start : span.end]),
        )
        for span in spans
    ]
    return [token for before, count in counts for token in range(before, before + count)]


def written_out(stock: Any, ids: list[int], region: list[int]) -> RegionAttention:
    """The equations, head by head and token by token, for the last row."""
    output = stock(input_ids=torch.tensor([ids]), output_attentions=True)
    gradients = torch.autograd.grad(output.logits[0, 0], output.attentions)
    fr, ig, mass = [], [], []
    for weights, gradient in zip(output.attentions, gradients, strict=True):
        heads = range(weights.shape[1])
        rows = [(weights[0, head, -1].tolist(), gradient[0, head, -1].tolist()) for head in heads]
        tops = [sorted(range(len(ids)), key=lambda at, row=row: -row[at])[:K] for row, _ in rows]
        fr.append(sum(len({*top} & {*region}) / len(region) for top in tops) / len(heads))
        flows = [sum(abs(row[at] * by[at]) for row, by in rows) / len(heads) for at in region]
        ig.append(sum(flows) / len(region))
        mass.append(sum(sum(row[at] for at in region) for row, _ in rows) / len(heads))
    return RegionAttention(len(region), tuple(fr), tuple(ig), tuple(mass))


def apart(found: RegionAttention, truth: RegionAttention) -> float:
    """The largest relative difference; infinite where the regions are not of one size."""
    if found.tokens != truth.tokens:
        return math.inf
    pairs = [
        (one, other)
        for name in ("fr", "ig", "mass")
        for one, other in zip(getattr(found, name), getattr(truth, name), strict=True)
    ]
    return max(abs(one - other) / max(abs(other), 1e-12) for one, other in pairs if one or other)


def test_regions_have_the_scores_of_the_equations(scorer, comparisons):
    stock = stock_of(scorer)
    for comparison in comparisons:
        regions = context_regions(comparison, [first_sentence(comparison)])
        found = region_scores(scorer, query_of(comparison), regions, k=K)
        encoded = encode(scorer.tokenizer, comparison.prompt, comparison.responses)
        for response, ids in zip(found, encoded.responses, strict=True):
            whole = [*encoded.prompt, *ids]
            assert response.tokens == len(whole)
            assert response.chance == K / len(whole)
            assert response.score == pytest.approx(
                stock(input_ids=torch.tensor([whole])).logits.item(), abs=1e-5
            )
            for name, spans in regions.items():
                tokens = tokens_of(scorer, comparison, spans)
                assert apart(response.regions[name], written_out(stock, whole, tokens)) < TOLERANCE
        # The controls: the region one token further on, and the other response's row.
        evidence = tokens_of(scorer, comparison, regions[SUPPORTING])
        moved = written_out(stock, whole, [token + 1 for token in evidence])
        assert apart(found[-1].regions[SUPPORTING], moved) > 100 * TOLERANCE
        assert apart(found[0].regions[SUPPORTING], written_out(stock, whole, evidence)) > 100 * TOLERANCE


def test_a_closed_form():
    """Two heads, one row, four tokens: [1/2, 1/4, 1/8, 1/8] and [1/8, 1/8, 1/4, 1/2], with gradients of 1 and -2."""
    weights = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.125, 0.125, 0.25, 0.5]])
    gradients = torch.stack([torch.ones(4), torch.full((4,), -2.0)])
    fr, ig, mass = token_attention(AttentionRow(weights, gradients), 2)
    assert fr.tolist() == [0.5, 0.5, 0.5, 0.5]
    tied, *_ = token_attention(AttentionRow(weights, gradients), 3)
    assert tied.tolist() == [1.0, 0.5, 1.0, 0.5]  # the earlier of equal weights
    assert mass.tolist() == [0.3125, 0.1875, 0.1875, 0.3125]
    assert ig.tolist() == [0.375, 0.25, 0.3125, 0.5625]


def test_gradients_by_embeddings_are_those_of_the_margin(scorer, comparisons):
    comparison = comparisons[1]
    stock, regions = stock_of(scorer), context_regions(comparison)
    pair = replace(query_of(comparison), responses=comparison.responses[:2])
    encoded = encode(scorer.tokenizer, pair.prompt, pair.responses)
    total = 0.0
    for sign, ids in zip((1, -1), encoded.responses, strict=True):
        embedded = (
            stock.get_input_embeddings()(torch.tensor([[*encoded.prompt, *ids]])).detach().requires_grad_()
        )
        stock.config.pad_token_id = None
        stock(inputs_embeds=embedded).logits[0, 0].backward()
        total = total + sign * embedded.grad[0, : len(encoded.prompt)]
    norms = total.abs().sum(-1)
    found = embedding_gradient_norms(scorer, pair, regions)
    assert found.keys() == {SUPPORTING, IRRELEVANT}
    for name, value in found.items():
        assert value == pytest.approx(
            norms[tokens_of(scorer, comparison, regions[name])].mean().item(), rel=1e-4
        )
    alone = embedding_gradient_norms(scorer, replace(pair, responses=pair.responses[:1]), regions)
    assert abs(alone[SUPPORTING] / found[SUPPORTING] - 1) > 0.01


def test_a_comparison_is_right_where_its_best_response_leads(scorer, comparisons):
    comparison = comparisons[2]
    found = attended(scorer, comparison, k=K, gradients=True)
    assert isinstance(found, AttendedComparison)
    values = [one.score for one in found.responses]
    order = sorted(range(3), key=lambda at: -values[at])
    ranks = [order.index(at) + 1 for at in range(3)]
    assert attended(scorer, replace(comparison, ranks=tuple(ranks)), k=K).right
    wrong = replace(comparison, ranks=tuple(4 - rank for rank in ranks))
    assert not attended(scorer, wrong, k=K).right
    tied = replace(wrong, responses=(comparison.responses[0],) * 3)
    assert not attended(scorer, tied, k=K).right
    assert found.embedding_gradient.keys() == {SUPPORTING, IRRELEVANT}
    assert attended(scorer, comparison, k=K).embedding_gradient is None


def test_the_margin_is_that_of_the_best_over_the_highest_of_lower_rank(scorer, comparisons):
    comparison = comparisons[2]
    values = [one.score for one in attended(scorer, comparison, k=K).responses]
    first, second, last = sorted(range(3), key=lambda at: -values[at])
    ranks = tuple(2 if at == last else 1 for at in range(3))
    found = attended(scorer, replace(comparison, ranks=ranks), k=K, gradients=True)
    assert found.right
    norms = [
        embedding_gradient_norms(
            scorer,
            replace(query_of(comparison), responses=tuple(comparison.responses[at] for at in (first, other))),
            context_regions(comparison),
        )
        for other in (last, second)
    ]
    assert found.embedding_gradient == pytest.approx(norms[0])
    assert abs(norms[1][SUPPORTING] / norms[0][SUPPORTING] - 1) > 0.01


def test_regions_share_no_character_and_leave_out_the_question(comparisons):
    comparison = comparisons[3]
    regions = context_regions(comparison, [first_sentence(comparison)])
    spans = [span for named in regions.values() for span in named]
    covered = sorted((span.start, span.end) for span in spans)
    assert all(one[1] <= other[0] for one, other in pairwise(covered))
    (context,) = comparison.context
    within = replace(comparison, context=(Span(0, 0, comparison.question.end),))
    assert context_regions(within)[IRRELEVANT][-1].end == comparison.question.start
    assert sum(end - start for start, end in covered) == context.end - context.start
