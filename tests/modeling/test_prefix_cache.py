"""What is read over kept keys and values equals what plain transformers computes of each whole sequence."""

import random
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from longrm.errors import ConfigError
from longrm.modeling import attention, attention_cuda, prefix_cache, shared_prefix
from longrm.modeling.attention_varlen import AttentionSpec, PlainKernel, varlen_attention
from longrm.modeling.prefix_cache import BLOCK, PrefixCache, PrefixTable, block_keys
from longrm.modeling.recurrent import LayerStates
from longrm.modeling.shapes import PackedLayout, TokenTree, TreeShape
from longrm.modeling.shared_prefix import pack
from tests.modeling.test_shared_prefix import sequences

from . import test_recurrent
from .conftest import FAMILIES, ROUNDING, SCORERS, VOCABULARY, distance, make_pair

DRAW = random.Random(3)
PROMPTS = [[DRAW.randrange(3, VOCABULARY) for _ in range(length)] for length in (200, 83, 15, 40)]


def tree(prompt, *lengths, seed=0):
    draw = random.Random(seed)
    return TokenTree(prompt, [[draw.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths])


FORWARDS = [
    [tree(PROMPTS[0], 7, 30, 1)],
    [tree(PROMPTS[0], 5, 5, seed=1)],  # the same prompt
    [tree([*PROMPTS[0][:120], *PROMPTS[1]], 9, seed=2), tree(PROMPTS[2], 4), tree(PROMPTS[2], 4, seed=3)],
    [tree(PROMPTS[3], 3), tree([*PROMPTS[0][:120], *PROMPTS[1]], 8), tree([*PROMPTS[0], 5, 6], 1, 2)],
    [tree([*PROMPTS[3], *PROMPTS[0]], 3), tree([*PROMPTS[3], *PROMPTS[1]], 2)],  # both begin with what is new
    [TokenTree(PROMPTS[0], [tree(PROMPTS[1], 30, 2, seed=4), tree([7, 8], 5, 9, seed=5), [4]])],
    [tree(PROMPTS[3][: 2 * BLOCK], 6)],  # the whole prompt is kept, and its last token is read again
]


@torch.inference_mode()
def computed(model, packed, kind):
    if kind == "scores":
        return shared_prefix.scores(model, packed)
    if kind == "next":
        return shared_prefix.next_logprobs(model, packed, [5, 9]).flatten()
    return torch.cat(shared_prefix.response_logprobs(model, packed))


@torch.inference_mode()
def expected(model, trees, kind):
    """The independent truth: one plain forward of transformers a branch."""
    found = []
    for one in trees:
        leaves = pack([one]).layout.leaves()
        for sequence, leaf in zip(sequences(one), leaves, strict=True):
            output = model(torch.tensor([sequence])).logits[0]
            if kind == "scores":
                found.append(output)
                continue
            table = output.log_softmax(-1)
            if kind == "next":
                found.append(table[-1, [5, 9]])
            else:
                own = leaf.end - leaf.begin
                found.append(table[torch.arange(-own - 1, -1), torch.tensor(sequence[-own:])])
    return torch.cat(found)


@pytest.mark.parametrize("kind", ["scores", "logprobs", "next"])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_over_cached_prefixes_equal_separate_sequences(family, kind):
    if kind == "scores" and family not in SCORERS:
        pytest.skip("no sequence classifier")
    stock, ours = make_pair(family, "scores" if kind == "scores" else "logprobs")
    stock.eval(), ours.eval()
    kept, cached = PrefixCache([ours], 2**20), []
    for trees in FORWARDS:
        packed = kept.pack(trees)
        found = computed(ours, packed, kind)
        kept.keep(packed)
        assert distance(found, expected(stock, trees, kind)) < ROUNDING
        assert distance(found, computed(ours, pack(trees), kind)) < ROUNDING
        cached.append([shape.cached for shape in packed.layout.trees])
    assert cached == [[0], [192], [112, 0, 0], [0, 192, 192], [32, 32], [192], [16]]


@pytest.mark.parametrize("kind", ["scores", "logprobs", "next"])
@pytest.mark.parametrize("family", test_recurrent.WRITERS)
@torch.inference_mode()
def test_recurrent_layers_continue_cached_states(family, kind):
    if kind == "scores" and family not in ("qwen3.5", "qwen3-next", "zamba2"):
        pytest.skip("no sequence classifier")
    auto = AutoModelForSequenceClassification if kind == "scores" else AutoModelForCausalLM
    stock = test_recurrent.make(family, auto).eval()
    ours = test_recurrent.packed(stock).eval()
    kept, cached = PrefixCache([ours], 2**20), []
    for trees in [*FORWARDS, FORWARDS[2], [tree([*PROMPTS[0][:120], 7], 3), tree(PROMPTS[3], 1)]]:
        packed = kept.pack(trees)
        found = computed(ours, packed, kind)
        kept.keep(packed)
        size = max(1.0, float(found.abs().max()))
        assert distance(found, expected(stock, trees, kind)) < 5 * ROUNDING * size
        assert distance(found, computed(ours, pack(trees), kind)) < 2 * ROUNDING * size  # without AVX512: 1.1
        cached.append([shape.cached for shape in packed.layout.trees])
    # An exact repetition and a longer prompt are hits at once; one that parts from another is, the second time.
    assert cached == [[0], [192], [0, 0, 0], [0, 192, 192], [32, 32], [192], [0], [192, 0, 0], [112, 32]]
    trees = [tree(PROMPTS[0][: 3 * BLOCK + 1], 1, 2)]  # scored soon after the states
    right = computed(ours, packed := kept.pack(trees), kind)
    kept.keep(packed)
    for states in kept._states.values():
        for own in states.values():
            for part in (*own.conv.values(), *own.recurrent.values()):
                part.neg_()
    assert distance(computed(ours, kept.pack(trees), kind), right) > 500 * ROUNDING * size


def test_states_take_half_of_the_budget_and_the_least_recently_used_are_dropped():
    stock = test_recurrent.make("falcon-h1").eval()
    ours = test_recurrent.packed(stock).eval()
    of_one = PrefixCache([ours], 2**20)
    budget = 9 * of_one.state_bytes
    kept = PrefixCache([ours], budget)
    draw, hits = random.Random(0), 0
    for _ in range(40):
        trees = draw.choice(FORWARDS)
        packed = kept.pack(trees)
        hits += sum(shape.cached for shape in packed.layout.trees)
        found, size = computed(ours, packed, "logprobs"), 10
        assert distance(found, expected(stock, trees, "logprobs")) < 5 * ROUNDING * size
        kept.keep(packed)
        assert len(kept._states) <= 4
        sizes = [LayerStates(states).nbytes for states in kept._states.values()]
        assert set(sizes) == {kept.state_bytes}
        assert sum(sizes) <= budget // 2
        assert kept.table.blocks * kept.block_bytes + 4 * kept.state_bytes <= budget
    assert hits > 200
    with pytest.raises(ConfigError, match="16 tokens"):
        PrefixCache([ours], kept.block_bytes + kept.state_bytes - 1)


def test_the_cache_is_used_and_wrong_contents_are_far_off():
    _, ours = make_pair("llama", "scores")
    kept = PrefixCache([ours.eval()], 2**20)
    right = computed(ours, packed := kept.pack(FORWARDS[0]), "scores")
    kept.keep(packed)
    for keys_values in next(iter(kept._pools.values()))._layers:
        for part in keys_values:
            part.copy_(part.nan_to_num().clamp(-9, 9).roll(1, dims=1))  # free slots have any contents
    wrong = computed(ours, kept.pack(FORWARDS[0]), "scores")
    assert distance(right, wrong) > 100 * ROUNDING


@pytest.mark.parametrize("place", ["pack", "keep"])
def test_a_failure_gives_no_slot_to_two_prefixes(place, monkeypatch):
    stock, ours = make_pair("llama", "scores")
    stock.eval(), ours.eval()
    kept = PrefixCache([ours], 14 * PrefixCache([ours], 2**20).block_bytes)
    kept.pack(FORWARDS[0])  # its forward fails

    def fails(*_, **__):
        raise MemoryError

    owner, name = (prefix_cache, "pack") if place == "pack" else (kept, place)
    if place == "keep":
        owner, name = kept.table, "use"  # fails once the places are entered
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails)
        with pytest.raises(MemoryError):
            kept.keep(kept.pack(FORWARDS[2]))
    for trees in (*FORWARDS, *FORWARDS):
        packed = kept.pack(trees)
        assert distance(computed(ours, packed, "scores"), expected(stock, trees, "scores")) < ROUNDING
        kept.keep(packed)
        held = [*kept.table._slots.values(), *kept.table._free]
        assert len(held) == len(set(held)) <= kept.table.blocks


def test_a_small_budget_is_never_exceeded_and_changes_no_score():
    stock, ours = make_pair("llama", "scores")
    stock.eval(), ours.eval()
    kept = PrefixCache([ours], 5 * PrefixCache([ours], 2**20).block_bytes + 1)
    assert kept.table.blocks == 5
    layers = next(iter(kept._pools.values()))._layers
    assert sum(part.nbytes for pair in layers for part in pair) == 5 * kept.block_bytes
    draw = random.Random(0)
    for _ in range(30):
        trees = draw.choice(FORWARDS)
        packed = kept.pack(trees)
        assert distance(computed(ours, packed, "scores"), expected(stock, trees, "scores")) < ROUNDING
        kept.keep(packed)
        assert len(kept.table) <= 5
    with pytest.raises(ConfigError, match="16 tokens"):
        PrefixCache([ours], kept.block_bytes - 1)


def test_a_prompt_that_ends_in_padding_is_scored_where_transformers_scores_it():
    stock, ours = make_pair("llama", "scores")
    stock.eval(), ours.eval()
    kept = PrefixCache([ours], 2**20)
    trees = [TokenTree([*PROMPTS[3][:20], *[0] * 40], [[0, 0], [5, 0], [0, 7]])]
    for _ in range(2):
        packed = kept.pack(trees)
        assert distance(computed(ours, packed, "scores"), expected(stock, trees, "scores")) < ROUNDING
        kept.keep(packed)
    assert packed.layout.trees[0].cached == BLOCK


def enter(table, keys):
    """Enters what is not there, as a forward does."""
    found = table.count(keys)
    in_use = set(table.use(keys[:found]))
    reserved = []
    for key in keys[found:]:
        place = table.reserve(in_use)
        if place is None:
            break
        reserved.append((key, place))
    table.keep(reserved, [keys])
    return found


def test_a_key_identifies_a_block_and_all_before_it():
    ids = list(range(3 * BLOCK + 5))
    keys = block_keys(ids)
    assert len(keys) == len(set(keys)) == 3
    assert block_keys([*ids[: 2 * BLOCK], 7])[:2] == keys[:2]
    assert block_keys([9, *ids[1:]])[1:] != keys[1:], "another first token changes every key"
    assert block_keys(ids[: BLOCK - 1]) == []
    assert not set(block_keys(ids, "salt")) & set(keys), "another salt changes every key"
    assert block_keys(ids, "salt") == block_keys(ids, "salt") != block_keys(ids, "pepper")


def test_the_least_recently_used_is_evicted_from_its_end():
    table = PrefixTable(4)
    old, new = block_keys([1] * 3 * BLOCK), block_keys([2] * 3 * BLOCK)
    assert enter(table, old) == 0
    assert enter(table, new) == 0
    assert table.count(new) == 3
    assert table.count(old) == 1, "its first block is the last to go"
    assert len(table) == 4


def test_slots_are_never_given_twice_and_never_lost():
    draw, table = random.Random(0), PrefixTable(20)
    for _ in range(2000):
        start, length = draw.randrange(6), draw.randrange(1, 25)
        ids = [
            token
            for number in range(length)
            for token in [start if number < 3 else draw.randrange(2)] * BLOCK
        ]
        keys = block_keys(ids)
        enter(table, keys)
        places = [*table._slots.values(), *table._free]
        assert sorted(places) == list(range(20))
        found = table.count(keys)
        assert not any(key in table._slots for key in keys[found:]), "nothing is kept whose beginning is gone"


def test_segments_over_a_cache_take_the_chosen_kernel_and_copy_no_prefix(monkeypatch):
    class Recorded(PlainKernel):
        def forward(self, query, key, value, bounds, spec):
            calls.append((len(query), len(key)))
            return super().forward(query, key, value, bounds, spec)

    calls, before, lengths = [], 40, [3, 1, 5, 2, 4, 6, 7]
    torch.manual_seed(0)
    q = torch.randn(1, 4, sum(lengths), 8)
    k, v = (torch.randn(1, 2, before + sum(lengths), 8) for _ in "kv")
    given = (q, k, v, PackedLayout((TreeShape(0, tuple(lengths), cached=before),)), AttentionSpec(8**-0.5))
    plain = attention.packed_attention(*given)
    assert calls == []
    # As on a GPU: the kernel that was chosen for packed sequences.
    chosen = partial(varlen_attention, Recorded())
    monkeypatch.setattr(attention_cuda, "kernel_for", lambda query, key, spec: chosen)
    torch.testing.assert_close(attention.packed_attention(*given), plain)
    assert calls == [(sum(lengths), sum(lengths)), (sum(lengths), before)]
    # FlexAttention has masks for packed sequences only.
    monkeypatch.setattr(
        attention_cuda, "kernel_for", lambda query, key, spec: attention_cuda.flex_packed_attention
    )
    torch.testing.assert_close(attention.packed_attention(*given), plain)
    assert len(calls) == 2
