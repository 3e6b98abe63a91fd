from itertools import accumulate

import pytest
import torch
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from longrm.modeling import attention
from longrm.modeling.attention import continuation_attention, segment_attention
from longrm.modeling.attention_varlen import AttentionSpec


def dense(q, k, v, scaling=None):
    """The last tokens of a sequence, with their mask written out."""
    last, tokens = q.shape[2], k.shape[2]
    mask = torch.ones(last, tokens, dtype=torch.bool).tril(tokens - last)
    group = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling).transpose(1, 2)


def states(heads, groups, last, tokens, size=16, dtype=torch.float32):
    draw = torch.Generator().manual_seed(last)
    shapes = [(1, heads, last, size), (1, groups, tokens, size), (1, groups, tokens, size)]
    return [3 * torch.randn(shape, generator=draw).to(dtype) for shape in shapes]


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize(("last", "tokens"), [(1, 77), (77, 77), (37, 501), (64, 65), (500, 501)])
@pytest.mark.parametrize("scaling", [None, 0.1])
def test_the_last_tokens_attend_as_with_a_mask(heads, groups, last, tokens, scaling):
    q, k, v = states(heads, groups, last, tokens)
    found, _ = continuation_attention(nn.Module(), q, k, v, None, scaling=scaling)
    expected = dense(q, k, v, scaling)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-4)
    if last > 1:
        shifted = dense(q, k.roll(1, dims=2), v.roll(1, dims=2), scaling)
        assert (found - shifted).abs().max() > 1e-2, "a control that sees other keys is far off"


@pytest.mark.parametrize("lengths", [[37], [1], [5, 1, 20], [16, 16]])
def test_segments_continue_the_same_tokens_and_do_not_see_each_other(lengths):
    q, k, v = states(6, 2, sum(lengths), 100 + sum(lengths))
    before, own = zip(*(part.split([100, sum(lengths)], dim=2) for part in (k, v)), strict=True)
    spec = AttentionSpec(0.25)
    found = segment_attention(q, k, v, lengths, spec)
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
    asked = segment_attention(q, k, v, lengths, spec, only_ends=True)
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
