from itertools import accumulate

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from longrm.modeling import attention
from longrm.modeling.attention import packed_attention
from longrm.modeling.attention_cuda import TorchKernel
from longrm.modeling.attention_varlen import AttentionSpec, PlainKernel, plan_ranges, varlen_ranges
from longrm.modeling.shapes import PackedLayout, TreeShape


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
