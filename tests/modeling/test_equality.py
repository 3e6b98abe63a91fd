"""A shared prefix computes what separate sequences compute: scores, log-probabilities and every gradient."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from longrm.modeling import attention, shared_prefix
from longrm.modeling.attention_cuda import sees_of
from longrm.modeling.attention_varlen import AttentionSpec
from longrm.modeling.shapes import PackedLayout, TokenTree, TreeShape
from longrm.modeling.shared_prefix import Packed, pack

from .conftest import CONFIGS, VOCABULARY, make_pair

TOLERANCE = 2e-5  # fp32, relative to the largest value
SHAPES = [
    TreeShape(501, (61, 37, 90, 5)),  # nothing aligned
    TreeShape(83, (19, 7)),
    TreeShape(83, (19, 7)),  # twins: computed as a batch
    TreeShape(40, (1, 1, 1)),
    TreeShape(1, (13,)),
]


def make_trees(shapes: list[TreeShape] = SHAPES) -> list[TokenTree]:
    draw = random.Random(7)
    ids = lambda n: [draw.randrange(3, VOCABULARY) for _ in range(n)]  # noqa: E731
    return [TokenTree(ids(s.prefix), [ids(n) for n in s.branches]) for s in shapes]


def separate(model: Any, kind: str, trees: list[TokenTree]) -> list[Tensor]:
    """The independent truth: one plain forward of transformers a branch."""
    results = []
    for tree in trees:
        for branch in tree.branches:
            ids = torch.tensor([[*tree.prefix, *branch]])
            if kind == "scores":
                results.append(model(input_ids=ids).logits[0])
            else:
                logits = model(input_ids=ids).logits[0, len(tree.prefix) - 1 : -1]
                results.append(logits.log_softmax(-1).gather(1, torch.tensor(branch)[:, None])[:, 0])
    return results


def shared(model: Any, kind: str, packed: Packed) -> list[Tensor]:
    if kind == "scores":
        return list(shared_prefix.scores(model, packed).split(1))
    return shared_prefix.response_logprobs(model, packed)


def values_and_gradients(model: Any, results: list[Tensor]) -> dict[str, Tensor]:
    # Different weights for every result, so that gradients of different branches cannot cancel unseen.
    loss = sum(((1 + i) * r.mean() for i, r in enumerate(results)), torch.zeros(()))
    model.zero_grad()
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"values": torch.cat(results).detach(), **found}


def deviation(found: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    """The largest difference over all tensors, each relative to its largest element."""
    assert found.keys() == truth.keys()
    return max(float((found[k] - truth[k]).abs().max() / truth[k].abs().max()) for k in truth)


@pytest.mark.parametrize("kind", ["scores", "logprobs"])
@pytest.mark.parametrize("family", CONFIGS)
def test_shared_prefix_equals_separate_sequences(family: str, kind: str):
    stock, ours = make_pair(family, kind)
    trees = make_trees()
    truth = values_and_gradients(stock, separate(stock, kind, trees))
    found = values_and_gradients(ours, shared(ours, kind, pack(trees)))
    assert deviation(found, truth) < TOLERANCE


def test_the_last_layer_is_asked_for_the_ends_alone_where_scores_are_read(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def recorded(
        q: Tensor, k: Tensor, v: Tensor, layout: PackedLayout, spec: AttentionSpec, ends: bool
    ) -> Tensor:
        asked.append(ends)
        output = right(q, k, v, layout, spec, ends)
        zero = [index for index in range(layout.tokens) if not output[0, index].any()]
        others = [index for index in range(layout.tokens) if index not in layout.branch_ends()]
        assert zero == (others if ends else [])
        return output

    right = attention.packed_attention
    monkeypatch.setattr(attention, "packed_attention", recorded)
    for kind in ("scores", "logprobs"):
        _, ours = make_pair("llama", kind)
        with torch.no_grad():
            shared(ours, kind, pack(make_trees()))
    layers = ours.config.num_hidden_layers
    assert asked == [*[False] * (layers - 1), True, *[False] * layers]


def plain_causal(layout: PackedLayout) -> Tensor:
    """What an ordinary sequence sees: every branch also sees the branches before it."""
    return torch.ones(layout.tokens, layout.tokens, dtype=torch.bool).tril()


def leaking(layout: PackedLayout) -> Tensor:
    """Every branch sees itself and the last token of the branch before it."""
    tokens = torch.arange(layout.tokens)
    sees = sees_of(layout, tokens.device)(tokens, tokens, tokens[:, None], tokens)
    (_, first, _), *later = layout.branches()
    for _, begin, end in later:
        sees[begin:end, begin - 1] = True
    assert first < begin
    return sees


def positions_run_on(packed: Packed) -> Packed:
    return Packed(packed.input_ids, torch.arange(packed.layout.tokens)[None], packed.layout)


@pytest.mark.parametrize("kind", ["scores", "logprobs"])
@pytest.mark.parametrize("fault", [plain_causal, leaking, positions_run_on])
def test_faults_are_a_hundred_times_beyond_the_tolerance(
    kind: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    stock, ours = make_pair("llama", kind)
    trees = make_trees(SHAPES[:1])
    packed = pack(trees)
    if fault is positions_run_on:
        packed = positions_run_on(packed)
    else:
        sees = fault(packed.layout)

        def masked(
            q: Tensor, k: Tensor, v: Tensor, layout: PackedLayout, spec: AttentionSpec, *_: Any
        ) -> Tensor:
            return attention.sdpa(q, k, v, spec.scale, attn_mask=sees).transpose(1, 2)

        monkeypatch.setattr(attention, "packed_attention", masked)
    with torch.no_grad():
        found = {"values": torch.cat(shared(ours, kind, packed))}
        truth = {"values": torch.cat(separate(stock, kind, trees))}
    assert deviation(found, truth) > 100 * TOLERANCE


def test_scores_do_not_depend_on_packing_or_order():
    _, ours = make_pair("llama", "scores")
    trees = make_trees()
    with torch.no_grad():
        together = shared_prefix.scores(ours, pack(trees))
        alone = torch.cat(
            [shared_prefix.scores(ours, pack([TokenTree(t.prefix, [b])])) for t in trees for b in t.branches]
        )
        backwards = shared_prefix.scores(
            ours, pack([TokenTree(t.prefix, t.branches[::-1]) for t in trees[::-1]])
        ).flip(0)
    torch.testing.assert_close(together, alone, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(together, backwards, rtol=0, atol=TOLERANCE)
    assert together.std() > 100 * TOLERANCE


def test_head_is_fp32_in_a_bf16_model():
    stock, ours = make_pair("llama", "scores")
    ours.model.bfloat16()
    packed = pack(make_trees(SHAPES[1:2]))
    hidden = shared_prefix.hidden_states(ours, packed)
    assert hidden.dtype == torch.bfloat16
    ends = hidden[packed.layout.branch_ends()].double()
    exact = (ends @ stock.score.weight.double().T)[:, 0]
    error = (shared_prefix.branch_scores(ours, hidden, packed) - exact).abs().max()
    rounded = (ends.bfloat16() @ stock.score.weight.bfloat16().T)[:, 0]
    assert error < 1e-6
    assert (rounded - exact).abs().max() > 1e-4  # what a bf16 head would have lost
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (shared_prefix.branch_scores(ours, hidden, packed) - exact).abs().max() < 1e-6


def test_auxiliary_next_token_loss_of_a_classifier_uses_tied_embeddings():
    stock, ours = make_pair("llama", "scores")
    tree = make_trees(SHAPES[1:2])[0]
    packed = pack([tree])
    begin = next(packed.layout.branches())[1]
    targets = [begin, begin + 4]  # the first token is predicted from the end of the prefix
    found = shared_prefix.token_logprobs(ours, shared_prefix.hidden_states(ours, packed), packed, targets)
    ids = torch.tensor([[*tree.prefix, *tree.branches[0]]])
    states = stock.model(input_ids=ids).last_hidden_state[0]
    logits = states @ stock.model.embed_tokens.weight.T
    truth = logits.log_softmax(-1)[[t - 1 for t in targets], ids[0, targets]]
    torch.testing.assert_close(found, truth, rtol=TOLERANCE, atol=TOLERANCE)
