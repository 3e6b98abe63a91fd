"""Query heads that share keys: which kernels of a GPU take them, as tensors that have a device and no values show."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from longrm.modeling import attention
from longrm.modeling.attention import continuation_attention
from longrm.modeling.shapes import TreeShape

HEADS, GROUPS, SIZE = 8, 2, 64
TREE = TreeShape(40, (7, 9))


class Calls:
    """What scaled_dot_product_attention was asked for, and what flash was asked whether it takes it."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, int, bool]] = []
        self.asked: list[Any] = []

    def attend(self, q: Any, k: Any, v: Any, *, enable_gqa: bool, **how: Any) -> Any:
        assert k.shape == v.shape
        self.heads.append((q.shape[1], k.shape[1], enable_gqa))
        return torch.empty_like(q)

    def flash(self, params: Any) -> bool:
        """As flash has it: half precision alone, and no mask."""
        self.asked.append(params)
        return params.dtype in (torch.float16, torch.bfloat16)


@pytest.fixture
def calls(monkeypatch):
    calls = Calls()
    monkeypatch.setattr(functional, "scaled_dot_product_attention", calls.attend)
    monkeypatch.setattr(attention, "can_use_flash_attention", calls.flash, raising=False)
    named = ("query", "key", "value", "mask", "dropout", "causal", "grouped")

    def params(*given):
        told = dict(zip(named, given, strict=True))
        return SimpleNamespace(**told, dtype=told["query"].dtype)

    monkeypatch.setattr(attention, "SDPAParams", params, raising=False)
    return calls


def states(dtype: torch.dtype, device: str, *shapes: tuple[int, int]) -> list[torch.Tensor]:
    """Tensors of so many heads and tokens, which have a device and no values."""
    with FakeTensorMode():  # only here: the bias that stands for a mask is made of a tensor with values
        return [torch.empty(1, *shape, SIZE, dtype=dtype, device=device) for shape in shapes]


def continued(last: int, groups: int, dtype: torch.dtype, device: str) -> None:
    q, k = states(dtype, device, (HEADS, last), (groups, 60))
    continuation_attention(nn.Module(), q, k, k, None)


def shared(groups: int, dtype: torch.dtype, device: str) -> None:
    q, k = states(dtype, device, (HEADS, TREE.tokens), (groups, TREE.tokens))
    attention._tree_batch(q, k, k, TREE, 0.125)


WAYS = {
    "one token": lambda *how: continued(1, *how),
    "a block": lambda *how: continued(20, *how),
    "from the start": lambda *how: continued(60, *how),
    "shared prefix": shared,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("dtype", "keys"), [(torch.float32, HEADS), (torch.bfloat16, GROUPS), (torch.float16, GROUPS)]
)
def test_on_a_gpu_keys_are_repeated_where_flash_does_not_compute(calls, way, dtype, keys):
    WAYS[way](GROUPS, dtype, "cuda")
    assert set(calls.heads) == {(HEADS, keys, keys != HEADS)}
    assert {(one.mask, one.dropout, one.causal, one.grouped) for one in calls.asked} == {
        (None, 0.0, False, True)
    }


@pytest.mark.parametrize("last", [1, 20, 60])
def test_what_is_repeated_computes_the_same(monkeypatch, last):
    monkeypatch.setattr(attention, "_takes_groups", lambda q, k, v: False)
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, n, size, SIZE, generator=draw)
        for n, size in ((HEADS, last), (GROUPS, 60), (GROUPS, 60))
    )
    found = attention.sdpa(q, k, v, None, attn_mask=causal_lower_right(last, 60))
    mask = torch.ones(last, 60, dtype=torch.bool).tril(60 - last)
    grouped = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(found, grouped, atol=2e-6, rtol=2e-5)
    other_keys = scaled_dot_product_attention(q, k.repeat(1, 4, 1, 1), v.repeat(1, 4, 1, 1), attn_mask=mask)
    assert (found - other_keys).abs().max() > 1e-2, (
        "the control: heads with the keys of other heads are far off"
    )
