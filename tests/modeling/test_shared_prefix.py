import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from longrm.data.joining import Encoded, encode
from longrm.errors import ModelError
from longrm.modeling import attention, shared_prefix
from longrm.modeling.attention import packed_attention
from longrm.modeling.attention_cuda import TorchKernel, sees_of
from longrm.modeling.attention_varlen import AttentionSpec, PlainKernel, plan_ranges, varlen_ranges
from longrm.modeling.shapes import PackedLayout, TokenTree, TreeShape, build_trees, within_budget
from longrm.modeling.shared_prefix import Packed, pack
from longrm.worlds import WorldPlan, generate, words_tokenizer

from .conftest import CONFIGS, FAMILIES, SCORERS, VOCABULARY, make_pair

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=6)
trees = st.lists(
    st.builds(
        TokenTree,
        tokens,
        st.lists(
            st.recursive(tokens, lambda own: st.builds(TokenTree, tokens, st.lists(own, max_size=3))),
            min_size=1,
            max_size=4,
        ),
    ),
    min_size=1,
    max_size=4,
)


def sequences(tree: TokenTree | Sequence[int]) -> list[list[int]]:
    """The sequence of every leaf."""
    if not isinstance(tree, TokenTree):
        return [list(tree)]
    below = [own for branch in tree.branches for own in sequences(branch)]
    return [[*tree.tokens, *own] for own in below or [[]]]


@given(trees)
def test_every_branch_can_be_read_back_from_the_layout(given_trees: list[TokenTree]):
    packed = pack(given_trees)
    ids = packed.input_ids[0].tolist()
    positions = packed.position_ids[0].tolist()
    paths = packed.layout.paths()
    wanted = [sequence for tree in given_trees for sequence in sequences(tree)]
    assert len(paths) == len(wanted)
    for path, sequence in zip(paths, wanted, strict=True):
        places = [*chain.from_iterable(path)]
        assert [ids[place] for place in places] == sequence
        # Read along the branch, positions count on without a gap, as in a sequence of its own.
        assert [positions[place] for place in places] == list(range(len(sequence)))
        assert packed.layout.predictors(places[1:]) == places[:-1]
    assert packed.layout.branch_ends() == [path[-1][-1] for path in paths]
    assert packed.layout.written_tokens([range(-len(sequence), 0) for sequence in wanted]) == [
        [*chain.from_iterable(path)] for path in paths
    ]
    assert packed.layout.tokens == len(ids)
    for tree, shape in zip(given_trees, packed.layout.trees, strict=True):
        lengths = [*map(len, sequences(tree))]
        assert (shape.leaves, shape.longest, shape.tokens) == (lengths, max(lengths), tree.size)
        assert shape.pairs() == sum(at + 1 for own in pack([tree]).position_ids.tolist() for at in own)


def test_the_first_token_of_a_prefix_has_no_predictor():
    layout = pack([TokenTree([1, 2], [[3]]), TokenTree([4], [[5]])]).layout
    for target in (0, 3, 5, -1):
        with pytest.raises(ValueError, match="no predictor"):
            layout.predictors([target])
    assert layout.predictors([1, 2, 4]) == [0, 1, 3]


def test_attention_dropout_is_refused_in_training_only():
    _, ours = make_pair("llama", "scores")
    for layer in ours.model.layers:
        layer.self_attn.attention_dropout = 0.1
    packed = pack([TokenTree([3], [[4]])])
    arguments = {"position_ids": packed.position_ids, "layout": packed.layout}
    ours.eval().model(packed.input_ids, **arguments)
    with pytest.raises(ModelError, match="attention_dropout"):
        ours.train().model(packed.input_ids, **arguments)


def test_a_plain_forward_pass_is_refused_with_the_way_to_one():
    theirs, ours = make_pair("llama", "scores")
    packed = pack([TokenTree([3], [[4]])])
    with pytest.raises(ModelError, match="set_attn_implementation"):
        ours.model(packed.input_ids)
    theirs.model(packed.input_ids)  # the control: the same weights with attention of transformers


# --- A shared prefix computes what separate sequences compute: scores, log-probabilities and every gradient ---

TOLERANCE = 2e-5  # fp32, relative to the largest value
SHAPES = [
    TreeShape(501, (61, 37, 90, 5)),  # nothing aligned
    TreeShape(83, (19, 7)),
    TreeShape(83, (19, 7)),  # twins: computed as a batch
    TreeShape(40, (1, 1, 1)),
    TreeShape(1, (13,)),
    DEEP := TreeShape(60, (20, 31, 30, 9, 5), parents=(0, 1, 0, 3, 3)),
]


def make_trees(shapes: Sequence[TreeShape] = SHAPES) -> list[TokenTree]:
    draw = random.Random(7)

    def tree(shape: TreeShape) -> TokenTree:
        branches: list[list[TokenTree]] = [[] for _ in shape.nodes]
        made = [
            TokenTree([draw.randrange(3, VOCABULARY) for _ in range(length)], own)
            for (length, *_), own in zip(shape.nodes, branches, strict=True)
        ]
        for (_, parent, _), own in zip(shape.nodes[1:], made[1:], strict=True):
            branches[parent].append(own)
        return made[0]

    return [*map(tree, shapes)]


def separate(model: Any, kind: str, trees: list[TokenTree]) -> list[Tensor]:
    """The independent truth: one plain forward of transformers a branch; log-probabilities of its leaf's tokens."""
    results = []
    leaves = [len(path[-1]) for path in pack(trees).layout.paths()]
    for sequence, own in zip((ids for tree in trees for ids in sequences(tree)), leaves, strict=True):
        ids = torch.tensor([sequence])
        if kind == "scores":
            results.append(model(input_ids=ids).logits[0])
        else:
            own = len(sequence) - 1 if kind == "all logprobs" else own
            logits = model(input_ids=ids).logits[0, -own - 1 : -1]
            results.append(logits.log_softmax(-1).gather(1, ids[0, -own:, None])[:, 0])
    return results


def shared(model: Any, kind: str, packed: Packed) -> list[Tensor]:
    if kind == "scores":
        return list(shared_prefix.scores(model, packed).split(1))
    if kind == "all logprobs":  # of all tokens of a sequence but the first
        written = [range(1 - sum(map(len, path)), 0) for path in packed.layout.paths()]
        return shared_prefix.response_logprobs(model, packed, written)
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


def random_shape(seed: int, depth: int, nodes: int) -> TreeShape:
    """A tree with lengths from 1 to 300; short ones are as likely as long ones."""
    draw = random.Random(seed)
    path, parents = [0], []
    for number in range(1, nodes):
        level = draw.randrange(1, min(depth, len(path) + 1))
        parents.append(path[level - 1])
        path = [*path[:level], number]
    length, *lengths = (round(300 ** draw.random()) for _ in range(nodes))
    return TreeShape(length, tuple(lengths), parents=tuple(parents))


TREES = [
    random_shape(seed, depth, nodes)
    for seed, (depth, nodes) in enumerate([(1, 1), (2, 3), (3, 6), (4, 9), (5, 40)])
]


def in_double(monkeypatch: pytest.MonkeyPatch, *models: Any) -> None:
    """Transformers' norms and our heads are fp32 in a model of any precision; here they are fp64, too."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    for model in models:
        model.double()
        if hasattr(model.config, "num_local_experts"):
            model.set_experts_implementation("eager")  # torch's grouped products are not of fp64


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_in_trees_are_those_of_separate_sequences(
    family: str, monkeypatch: pytest.MonkeyPatch
):
    stock, ours = make_pair(family, "all logprobs")
    in_double(monkeypatch, stock, ours)
    trees = make_trees(TREES)
    truth = values_and_gradients(stock, separate(stock, "all logprobs", trees))
    found = values_and_gradients(ours, shared(ours, "all logprobs", pack(trees)))
    assert deviation(found, truth) < 1e-9


@pytest.mark.parametrize("family", SCORERS)
def test_scores_in_trees_are_those_of_separate_sequences(family: str):
    stock, ours = make_pair(family, "scores")
    trees = make_trees(TREES)
    truth = values_and_gradients(stock, separate(stock, "scores", trees))
    found = values_and_gradients(ours, shared(ours, "scores", pack(trees)))
    assert deviation(found, truth) < 1e-5


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


def sees_its_sibling(layout: PackedLayout) -> Tensor:
    """Every branch also sees the sibling before it."""
    tokens = torch.arange(layout.tokens)
    sees = sees_of(layout, tokens.device)(tokens, tokens, tokens[:, None], tokens)
    for sibling, leaf in pairwise(layout.leaves()):
        if sibling.parent == leaf.parent:
            sees[leaf.begin : leaf.end, sibling.begin : sibling.end] = True
    return sees


def positions_run_on(packed: Packed) -> Packed:
    return replace(packed, position_ids=torch.arange(packed.layout.tokens)[None])


def positions_of_another_parent(packed: Packed) -> Packed:
    """The last branch continues the node above its parent."""
    leaf, nodes = packed.layout.leaves()[-1], packed.layout.nodes()
    assert leaf.parent is not None
    positions = packed.position_ids.clone()
    positions[0, leaf.begin : leaf.end] -= nodes[leaf.parent].end - nodes[leaf.parent].begin
    return replace(packed, position_ids=positions)


@pytest.mark.parametrize("kind", ["scores", "logprobs"])
@pytest.mark.parametrize(
    ("fault", "shape"),
    [
        *((fault, SHAPES[0]) for fault in (plain_causal, sees_its_sibling, positions_run_on)),
        *((fault, DEEP) for fault in (plain_causal, sees_its_sibling, positions_of_another_parent)),
    ],
)
def test_faults_are_a_hundred_times_beyond_the_tolerance(
    kind: str, fault: Callable[..., Any], shape: TreeShape, monkeypatch: pytest.MonkeyPatch
):
    stock, ours = make_pair("llama", kind)
    trees = make_trees([shape])
    packed = pack(trees)
    if fault in (positions_run_on, positions_of_another_parent):
        packed = fault(packed)
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


def mirrored(tree: TokenTree | Sequence[int]) -> TokenTree:
    assert isinstance(tree, TokenTree)
    return TokenTree(tree.tokens, [*map(mirrored, tree.branches[::-1])])


def test_scores_do_not_depend_on_packing_or_order():
    _, ours = make_pair("llama", "scores")
    trees = make_trees()
    with torch.no_grad():
        together = shared_prefix.scores(ours, pack(trees))
        alone = torch.cat(
            [shared_prefix.scores(ours, pack([TokenTree(t.tokens, [b])])) for t in trees for b in t.branches]
        )
        backwards = shared_prefix.scores(ours, pack([mirrored(tree) for tree in trees[::-1]])).flip(0)
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
    begin = packed.layout.leaves()[0].begin
    targets = [begin, begin + 4]  # the first token is predicted from the end of the prefix
    found = shared_prefix.token_logprobs(ours, shared_prefix.hidden_states(ours, packed), packed, targets)
    ids = torch.tensor(sequences(tree)[:1])
    states = stock.model(input_ids=ids).last_hidden_state[0]
    logits = states @ stock.model.embed_tokens.weight.T
    truth = logits.log_softmax(-1)[[t - 1 for t in targets], ids[0, targets]]
    torch.testing.assert_close(found, truth, rtol=TOLERANCE, atol=TOLERANCE)


def dense(q, k, v, scaling=None):
    """The last tokens of a sequence, with their mask written out."""
    last, tokens = q.shape[2], k.shape[2]
    mask = torch.ones(last, tokens, dtype=torch.bool).tril(tokens - last)
    group = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling).transpose(1, 2)


def segments(q, k, v, lengths, spec, only_ends=False):
    """Attention of branches, the last tokens of a sequence, over a prefix that is cached."""
    layout = PackedLayout((TreeShape(0, tuple(lengths), cached=k.shape[2] - sum(lengths)),))
    return packed_attention(q, k, v, layout, spec, only_ends)


def states(heads, groups, last, tokens, size=16, dtype=torch.float32):
    draw = torch.Generator().manual_seed(last)
    shapes = [(1, heads, last, size), (1, groups, tokens, size), (1, groups, tokens, size)]
    return [3 * torch.randn(shape, generator=draw).to(dtype) for shape in shapes]


@pytest.mark.parametrize("lengths", [[37], [1], [5, 1, 20], [16, 16]])
def test_segments_continue_the_same_tokens_and_do_not_see_each_other(lengths):
    q, k, v = states(6, 2, sum(lengths), 100 + sum(lengths))
    before, own = zip(*(part.split([100, sum(lengths)], dim=2) for part in (k, v)), strict=True)
    spec = AttentionSpec(0.25)
    found = segments(q, k, v, lengths, spec)
    begin, expected, mixed = 0, [], []
    for length in lengths:
        end = begin + length
        keys, values = (
            torch.cat([one, part[:, :, begin:end]], dim=2) for one, part in zip(before, own, strict=True)
        )
        expected.append(dense(q[:, :, begin:end], keys, values))
        keys, values = (part[:, :, : 100 + end] for part in (k, v))
        mixed.append(dense(q[:, :, begin:end], keys, values))
        begin = end
    torch.testing.assert_close(found, torch.cat(expected, dim=1), atol=2e-5, rtol=2e-4)
    if len(lengths) > 1:
        assert (found - torch.cat(mixed, dim=1)).abs().max() > 1e-2, (
            "a control that sees the others is far off"
        )
    ends = [end - 1 for end in accumulate(lengths)]
    asked = segments(q, k, v, lengths, spec, only_ends=True)
    torch.testing.assert_close(asked[:, ends], found[:, ends], atol=2e-5, rtol=2e-4)
    asked[:, ends] = 0
    assert not asked.any(), "the others are not computed"


@pytest.mark.parametrize("last", [1, 20, 60])
def test_repeated_keys_compute_what_grouped_heads_do(monkeypatch, last):
    monkeypatch.setattr(attention, "_takes_groups", lambda q, k, v: False)
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, size, 64, generator=draw) for n, size in ((8, last), (2, 60), (2, 60)))
    found = attention.sdpa(q, k, v, None, attn_mask=causal_lower_right(last, 60))
    mask = torch.ones(last, 60, dtype=torch.bool).tril(60 - last)
    grouped = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(found, grouped, atol=2e-6, rtol=2e-5)
    other_keys = scaled_dot_product_attention(q, k.repeat(1, 4, 1, 1), v.repeat(1, 4, 1, 1), attn_mask=mask)
    assert (found - other_keys).abs().max() > 1e-2, (
        "the control: heads with the keys of other heads are far off"
    )


@pytest.mark.parametrize("spec", ["plain", "sinks", "soft cap"])
@pytest.mark.parametrize("split", [None, 16])
def test_tokens_attend_to_the_ranges_that_each_one_sees(spec, split):
    """Ranges that are shared, nested, overlap or leave gaps, as those of continuations and of windows do."""
    heads, groups, size = 6, 2, 16
    seen = [
        [range(3, 40), range(40, 41)],
        [range(3, 30), range(50, 63)],
        [range(3, 30), range(50, 58), range(70, 90)],
        [range(12, 30), range(61, 62)],
        [range(95, 96)],
    ]
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        3 * torch.randn(shape, generator=draw) for shape in ((1, heads, 5, size), *[(100, groups, size)] * 2)
    )
    unseen = sorted(set(range(100)) - {at for ranges in seen for place in ranges for at in place})
    k[unseen] = v[unseen] = torch.nan
    sinks = torch.linspace(-2, 4, heads) if spec == "sinks" else None
    given = AttentionSpec(0.1, None, 2.0 if spec == "soft cap" else None, sinks)

    def alone(ranges, row):
        rows = [at for place in ranges for at in place]
        keys, values = (part[rows].transpose(0, 1)[:, None] for part in (k, v))  # [G, 1, K, D]
        grouped = q[0, :, row].reshape(groups, heads // groups, 1, size)
        weights = given.softmax(grouped @ keys.transpose(2, 3) * given.scale)
        return (weights @ values).reshape(heads, size)

    calls = plan_ranges(seen, torch.device("cpu"), split)
    found = varlen_ranges(PlainKernel(), q, k, v, calls, given)[0]
    expected = torch.stack([alone(ranges, row) for row, ranges in enumerate(seen)])
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-4)
    wrong = torch.stack([alone(seen[row - 1], row) for row in range(len(seen))])
    assert (found - wrong).abs().max() > 1e-2, "a control that sees what its neighbor sees is far off"


@pytest.mark.parametrize("gap", [0, 5])
def test_torch_s_kernel_takes_ranges(gap):
    """By its shapes alone."""
    q, k, v = (
        torch.empty(shape, device="meta", dtype=torch.bfloat16)
        for shape in ((1, 8, 2, 64), *[(100, 2, 64)] * 2)
    )
    calls = plan_ranges([[range(50)], [range(20), range(50 + gap, 90)]], torch.device("cpu"))
    assert (calls.bounds.used is None) == (not gap)
    assert varlen_ranges(TorchKernel(), q, k, v, calls, AttentionSpec(0.1)).shape == (1, 2, 8, 64)


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=8)
items = st.builds(
    Encoded, prompts, st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=2, max_size=3)
)


def texts(tree: TokenTree) -> list[list[int]]:
    """The tokens of every path from the root to a leaf."""
    below = [texts(branch) if isinstance(branch, TokenTree) else [[*branch]] for branch in tree.branches]
    return [[*tree.tokens, *rest] for branch in below for rest in branch] or [[*tree.tokens]]


@given(st.lists(items, min_size=1, max_size=6))
def test_every_response_follows_its_whole_prompt_in_order(given_items: list[Encoded]):
    wanted = [[*item.prompt, *response] for item in given_items for response in item.responses]
    trees = build_trees(given_items)
    assert [text for tree in trees for text in texts(tree)] == wanted
    assert all(tokens for tree in trees for tokens, _ in tree.nodes())


def test_questions_about_one_context_share_it_and_other_contexts_do_not():
    rows = list(generate(WorldPlan("records", 300, per_group=3), 6, words_tokenizer()))
    tokenizer = words_tokenizer()
    trees = build_trees([encode(tokenizer, row.prompt, row.responses) for row in rows])
    assert [len(texts(tree)) for tree in trees] == [6, 6]
    context = tokenizer.count("".join(rows[0].prompt[0]["content"].split("\n\n")[0]))
    assert len(trees[0].tokens) >= context
    alone = build_trees([encode(tokenizer, rows[0].prompt, rows[0].responses)])
    assert len(alone[0].tokens) == len(tokenizer.prompt_ids(rows[0].prompt))


@given(st.lists(items, min_size=1, max_size=6), st.integers(1, 40))
def test_sharing_saves_tokens_and_keeps_to_a_budget(given_items: list[Encoded], budget: int):
    assert sum(tree.size for tree in build_trees(given_items)) <= sum(item.size for item in given_items)
    most = max(budget, *(item.size for item in given_items), 1)
    assert all(tree.size <= most for tree in build_trees(given_items, budget))


@given(st.lists(prompts, min_size=1, max_size=12))
def test_no_token_that_sorted_prompts_share_is_read_twice(ends: list[list[int]]):
    given_items = [Encoded([0] * 8 + end, [[2], [2, 3]]) for end in sorted(ends)]
    (tree,) = build_trees(given_items)
    beginnings = {tuple(item.prompt[:end]) for item in given_items for end in range(1, len(item.prompt) + 1)}
    assert tree.size == len(beginnings) + 3 * len(given_items)
    assert len(texts(tree)) == 2 * len(given_items)


def test_a_trajectory_of_a_thousand_turns_is_one_tree():
    (tree,) = build_trees([Encoded([0] * turn, [[1]]) for turn in range(10, 1011)])
    assert pack([tree]).layout.trees[0].leaves == [*range(11, 1012)]


def test_runs_stay_within_the_budget_and_a_larger_tree_is_a_run_of_its_own():
    trees = [TokenTree([0] * size, [[1]]) for size in (3, 4, 20, 2, 2)]
    runs = list(within_budget(trees, 10))
    assert [[len(tree.tokens) for tree in run] for run in runs] == [[3, 4], [20], [2, 2]]
    assert [tree for run in runs for tree in run] == trees
