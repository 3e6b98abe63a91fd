"""The rows of attention that scores are read from, against full matrices of transformers' eager attention."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from longrm.modeling import attention_scores as module
from longrm.modeling.attention_scores import AttentionRow, attention_rows, embedding_gradients
from longrm.modeling.attention_varlen import AttentionSpec
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import branch_scores, pack, scores
from tests.modeling.test_shared_prefix import sequences

from .conftest import SCORERS, VOCABULARY, make_pair

TOLERANCE = 1e-5  # fp32, relative to the largest element
FAULT = 100 * TOLERANCE
SHAPES = [(61, (7, 13, 1)), (5, (4,)), (1, (3, 9))]  # nothing aligned; one branch; a prefix of one token


def make_trees(padded: bool = False) -> list[TokenTree]:
    draw = torch.Generator().manual_seed(3)
    ids = lambda n: torch.randint(3, VOCABULARY, (n,), generator=draw).tolist()  # noqa: E731
    # The config's padding, after which nothing is scored; a branch of nothing else is scored above it.
    end, more = ([0, 0], [[0]]) if padded else ([], [])
    trees = [TokenTree(ids(prefix), [*([*ids(n), *end] for n in own), *more]) for prefix, own in SHAPES]
    deep = TokenTree(ids(5), [[*ids(2), *end], TokenTree(ids(30), [[*ids(3), *end], *more])])
    return [*trees, TokenTree(ids(20), [deep, *more])]


def reference(stock: Any, ids: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Every layer's whole matrix [H, S, S], and the gradient of the score by it, of a sequence alone."""
    stock.set_attn_implementation("eager")
    output = stock(input_ids=torch.tensor([ids]), output_attentions=True)
    gradients = torch.autograd.grad(output.logits[0, 0], output.attentions)
    return [(w[0].detach(), gradient[0]) for w, gradient in zip(output.attentions, gradients, strict=True)]


def references(stock: Any, trees: list[TokenTree]) -> list[tuple[list[tuple[Tensor, Tensor]], int]]:
    """The reference and the scored token of every branch."""
    return [
        (reference(stock, ids), max(at for at, token in enumerate(ids) if token))
        for tree in trees
        for ids in sequences(tree)
    ]


def apart(found: Tensor, truth: Tensor) -> float:
    if found.shape != truth.shape:
        return torch.inf
    return float((found - truth).abs().max() / truth.abs().max())


def deviation(found: list[AttentionRow], truth: list[tuple[Tensor, Tensor]], row: int) -> float:
    """The largest deviation of weights or gradients in any layer from a row of the whole matrices."""
    return max(
        apart(one, whole[:, row, : one.shape[-1]])
        for layer, matrices in zip(found, truth, strict=True)
        for one, whole in zip((layer.weights, layer.gradients), matrices, strict=True)
    )


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", SCORERS)
def test_rows_and_gradients_are_those_of_full_matrices(family: str, padded: bool):
    stock, ours = (model.eval() for model in make_pair(family, "scores"))
    trees = make_trees(padded)
    values, found = attention_rows(ours, pack(trees))
    truth = references(stock, trees)
    for rows, (matrices, last) in zip(found, truth, strict=True):
        assert deviation(rows, matrices, last) < TOLERANCE
        assert rows[0].weights.shape == (4, last + 1)
    with torch.no_grad():
        assert apart(values, scores(ours, pack(trees))) < TOLERANCE
    matrices, last = truth[0]
    assert deviation(found[0], matrices, last - 1) > FAULT, "the control: the row before is far off"


def swapped_keys(query: Tensor, keys: Any, values: Any, spec: Any) -> Any:
    (first, *others) = keys
    return RIGHT(query, [first.roll(1, dims=1), *others], values, spec)


def swapped_heads(query: Tensor, keys: Any, values: Any, spec: Any) -> Any:
    return RIGHT(query, [states.flip(0) for states in keys], values, spec)


RIGHT = module._written_out


@pytest.mark.parametrize("fault", [swapped_keys, swapped_heads])
def test_faults_are_a_hundred_times_beyond_the_tolerance(fault: Any, monkeypatch: pytest.MonkeyPatch):
    stock, ours = (model.eval() for model in make_pair("qwen3", "scores"))
    trees = make_trees()[:1]
    ((matrices, last), *_) = references(stock, trees)
    monkeypatch.setattr(module, "_written_out", fault)
    _, (rows, *_) = attention_rows(ours, pack(trees))
    assert deviation(rows, matrices, last) > FAULT


def test_a_branch_that_saw_the_one_before_it_is_far_off(monkeypatch: pytest.MonkeyPatch):
    stock, ours = (model.eval() for model in make_pair("llama", "scores"))
    trees = [TokenTree(make_trees()[0].tokens, [[5, 6, 7], [8, 9, 10]])]
    (_, (matrices, last)) = references(stock, trees)
    right = module._tokens_before

    def leaking(layout: Any, scored: Any) -> Any:
        first, (prefix, _) = right(layout, scored)
        return [first, (prefix, first[1])]  # the other branch's tokens in place of its own

    monkeypatch.setattr(module, "_tokens_before", leaking)
    _, rows = attention_rows(ours, pack(trees))
    assert deviation(rows[1], matrices, last) > FAULT


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_gradients_by_embeddings_are_those_of_separate_sequences(family: str):
    stock, ours = (model.eval() for model in make_pair(family, "scores"))
    tree = make_trees()[0]
    signs = torch.tensor([1.0, -1.0, 0.5])
    hooked, *others = ours.base_model.layers
    # As libraries do that place layers on devices.
    hooked.forward = hook = partial(type(hooked).forward, hooked)
    found = embedding_gradients(
        ours, pack([tree]), lambda hidden, packed: signs * branch_scores(ours, hidden, packed)
    )
    embeddings = stock.get_input_embeddings()
    wanted = torch.zeros(len(tree.tokens), found.shape[1])
    for sign, branch in zip(signs, tree.branches, strict=True):
        states = embeddings(torch.tensor([[*tree.tokens, *branch]])).detach().requires_grad_()
        stock.config.pad_token_id = None  # it cannot be seen in embeddings; no branch ends in it
        stock(inputs_embeds=states).logits[0, 0].backward()
        wanted += sign * states.grad[0, : len(tree.tokens)]
    assert apart(found[: len(tree.tokens)], wanted) < TOLERANCE
    assert apart(found[1 : len(tree.tokens)], wanted[:-1]) > FAULT
    assert hooked.forward is hook
    assert all("forward" not in vars(layer) for layer in others), "the layers are as they were"


def test_weights_of_a_closed_form():
    """Two heads share a key head; logits 0, ln 2 and ln 4 give weights of 1, 2 and 4 sevenths."""
    logits = torch.tensor([0.0, 2.0, 4.0]).clamp(min=1).log()
    keys = logits[None, :, None].expand(1, 3, 1)
    values = torch.tensor([[[7.0], [0.0], [14.0]]])
    query = torch.tensor([[[1.0]], [[2.0]]])
    weights, output = module._written_out(
        query, [keys[:, :2], keys[:, 2:]], [values[:, :2], values[:, 2:]], AttentionSpec(1.0)
    )
    torch.testing.assert_close(
        weights, torch.tensor([[[1, 2, 4], [1, 4, 16]]]) / torch.tensor([[[7.0], [21.0]]])
    )
    torch.testing.assert_close(output, torch.tensor([[[1.0 + 8.0]], [[1 / 3 + 32 / 3]]]))
