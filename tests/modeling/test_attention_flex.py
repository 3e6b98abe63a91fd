"""FlexAttention, as far as a CPU can tell: the masks of blocks, and what it is compiled for."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from longrm.modeling import attention_cuda
from longrm.modeling.attention_cuda import TRIAL, block_mask, blocks_of, sees_of
from longrm.modeling.attention_varlen import AttentionSpec
from longrm.modeling.shapes import PackedLayout, TreeShape

from .test_attention_kernels import CPU, HEADS, KINDS, LAYOUTS, path_a


@pytest.mark.parametrize("window", [None, 1, 40, 128, 300])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_block_masks_are_what_looking_at_every_pair_gives(layout, window):
    size = layout.tokens
    truth = create_block_mask(sees_of(layout, CPU, window), None, None, size, size, device="cpu")
    found = block_mask(layout, CPU, window)
    for counts, indices in (
        ("kv_num_blocks", "kv_indices"),
        ("full_kv_num_blocks", "full_kv_indices"),
        ("q_num_blocks", "q_indices"),
        ("full_q_num_blocks", "full_q_indices"),
    ):
        assert torch.equal(getattr(found, counts), getattr(truth, counts)), counts
        for row, count in enumerate(getattr(truth, counts)[0, 0].tolist()):
            first = slice(count)
            assert torch.equal(
                getattr(found, indices)[0, 0, row, first], getattr(truth, indices)[0, 0, row, first]
            )


@pytest.mark.parametrize("window", [None, 1, 40, 128, 300])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_what_a_token_sees_is_what_is_before_it_in_its_own_sequence_by_counting(layout, window):
    tokens = torch.arange(layout.tokens)
    found = sees_of(layout, CPU, window)(tokens, tokens, tokens[:, None], tokens)
    truth = torch.zeros_like(found)
    for path in layout.paths():
        places = torch.tensor([index for part in path for index in part])
        truth[places[:, None], places] = torch.ones(len(places), len(places), dtype=torch.bool).tril()
    if window is not None:  # by position, whatever is between a node and its parent
        positions = torch.tensor(layout.position_ids())
        truth &= positions[:, None] - positions < window
    assert torch.equal(found, truth)


def test_a_long_block_mask_takes_no_pairs_of_tokens():
    layout = PackedLayout((TreeShape(131_072, (500, 500, 500, 500)),))
    some, every = blocks_of(layout)
    assert some.shape == every.shape == (1040, 1040)
    # Every block of branches sees all of the prefix: 1,024 full blocks, and little of the branches.
    assert (every[-1].sum(), every[1024].sum()) == (0, 1024)
    assert 1024 < some[-1].sum() < 1030


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_flex_attention_computes_windows_soft_caps_and_sinks(kind, monkeypatch):
    layout, spec = TRIAL, replace(HEADS, **kind).trial_spec()
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, layout.tokens, 16, generator=generator) for heads in (4, 2, 2))
    monkeypatch.setattr(attention_cuda, "_compiled_flex", lambda: flex_attention)
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    found = attention_cuda.flex_packed_attention(q, k, v, layout, spec)
    truth = attention_cuda.written_out(torch.arange(layout.tokens), q, k, v, layout, spec)
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)
    plain = attention_cuda.flex_packed_attention(q, k, v, layout, AttentionSpec(spec.scale))
    assert (plain - truth).abs().max() > 1e-2


def test_flex_attention_with_these_masks_is_path_a():
    layout = LAYOUTS["one"]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, layout.tokens, 16, generator=generator) for heads in (4, 2, 2))
    # Not compiled, as a CPU cannot, it is a plain computation with the mask written out from the blocks' function.
    with pytest.warns(UserWarning, match="flex_attention called without torch.compile"):
        found = flex_attention(q, k, v, block_mask=block_mask(layout, CPU), enable_gqa=True)
    truth = path_a(q, k, v, layout, AttentionSpec(0.25))
    torch.testing.assert_close(found.transpose(1, 2), truth, rtol=1e-5, atol=1e-5)


def test_gradients_arrive_with_contiguous_heads(monkeypatch):
    calls = []

    def recorded(graph, inputs):
        def run(*given):
            tensors = [one for one in given if isinstance(one, torch.Tensor) and one.is_floating_point()]
            calls.append([one.stride() for one in tensors if one.ndim == 4])
            return graph(*given)

        return make_boxed_func(run)

    backend = aot_autograd(fw_compiler=recorded, bw_compiler=recorded)
    torch._dynamo.reset()
    flex = torch.compile(flex_attention, dynamic=True, fullgraph=True, backend=backend)
    monkeypatch.setattr(attention_cuda, "_compiled_flex", lambda: flex)
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)  # refuses gradients on a CPU
    tokens = TRIAL.tokens
    states = [torch.randn(1, heads, tokens, 16, requires_grad=True) for heads in (4, 2, 2)]
    output = attention_cuda.flex_packed_attention(*states, TRIAL, AttentionSpec(0.25))
    torch.autograd.grad(output, states, torch.randn(1, tokens, 4, 16))
    torch._dynamo.reset()
    _, backward = calls
    assert len(backward) == 5  # query, key, value, output and its gradient
    assert {strides[1:] for strides in backward} == {(tokens * 16, 16, 1)}


@pytest.fixture
def compiled(monkeypatch):
    """Counts what FlexAttention is compiled for; runs it as it was traced."""
    counter = CompileCounterWithBackend("eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    torch._dynamo.reset()
    attention_cuda._compiled_flex.cache_clear()
    yield counter
    torch._dynamo.reset()
    attention_cuda._compiled_flex.cache_clear()


def flex(layout, scale=0.5):
    states = (torch.randn(1, heads, layout.tokens, 16) for heads in (4, 2, 2))
    return attention_cuda.flex_packed_attention(*states, layout, AttentionSpec(scale))


def test_flex_attention_is_compiled_for_no_length_no_tree_and_no_precision(compiled):
    with torch.no_grad():
        flex(TRIAL, 0.25)
        for name in ("one", "tiny", "aligned"):
            flex(LAYOUTS[name])
        with torch.autocast("cpu", torch.bfloat16):
            assert flex(LAYOUTS["one token"]).dtype == torch.float32
    assert compiled.frame_count == 2  # sequences of one block, and longer ones
    with torch.inference_mode():
        flex(TRIAL)
    assert compiled.frame_count == 3


def test_flex_attention_is_never_computed_uncompiled(compiled, monkeypatch):
    monkeypatch.setattr(attention_cuda, "MAX_COMPILED", 1)
    with torch.no_grad():
        flex(TRIAL)
    with torch.inference_mode(), pytest.raises(FailOnRecompileLimitHit):
        flex(TRIAL)
