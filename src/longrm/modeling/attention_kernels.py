"""The choice of the kernel for attention over a shared prefix on a GPU: each is tried before it is trusted.

The order is a flash kernel for sequences of varying length, from flash-attn or from torch, then FlexAttention, and
scaled_dot_product_attention last, which copies a prefix's keys and values once a branch. A candidate must be there
and, on a small tree with heads as the model has them, agree forward and backward with attention that is written
out. One line of the log names the chosen kernel, and why none before it was taken.

Letters: S tokens of the packed sequence, H query heads, G key heads, D head size.

Kernels of the Hugging Face hub are no candidates: they are programs that the first attention would download and run
unasked, and torch brings the same flash kernel along.
"""

import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from longrm.errors import first_line
from longrm.modeling.attention_flex import flex_attention_of, sees_of
from longrm.modeling.attention_varlen import FlashAttnKernel, TorchKernel, varlen_attention
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.shapes import PackedLayout, TreeShape

_log = logging.getLogger(__name__)

AttentionFunction = Callable[[Tensor, Tensor, Tensor, PackedLayout, float | None], Tensor]
"""Query, key and value of heads first, a layout and the scale to the output of tokens first."""

TRIAL = PackedLayout((TreeShape(150, (7, 33)), TreeShape(150, (7, 33)), TreeShape(41, (130,))))
"""The layout that a candidate is tried on: twins, no length aligned to a block, segments that cross blocks."""

ONE_TOKEN = PackedLayout((TreeShape(301, (1,)), TreeShape(40, (1,))))
"""The second such layout: flash kernels compute single queries, here all branches, in a way of their own."""

TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""The largest deviation of output and gradients from what is written out in fp32, relative to the largest element.
In bf16 rounding makes up to 8e-3, and one key too many or too few for every query of a branch at least 6e-2."""


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The heads that attention is computed for: one choice holds for all layers of a model."""

    device: torch.device
    dtype: torch.dtype
    queries: int  # heads
    keys: int  # heads
    size: int  # of a head


@dataclass(frozen=True, slots=True)
class KernelCandidate:
    """A kernel that may be installed, under its name in the log."""

    name: str
    missing: Callable[
        [AttentionHeads], str | None
    ]  # what it lacks for these heads; None where it can be tried
    make: Callable[[], AttentionFunction]


def kernel_for(query: Float[Tensor, "1 H S D"], key: Float[Tensor, "1 G S D"]) -> AttentionFunction | None:
    """Returns the kernel for a model's heads; None where only scaled_dot_product_attention works, as on a CPU."""
    if query.device.type != "cuda":
        return None
    _, queries, _, size = query.shape
    return _chosen(AttentionHeads(query.device, query.dtype, queries, key.shape[1], size))


@lru_cache(maxsize=8)
def _chosen(heads: AttentionHeads) -> AttentionFunction | None:
    return choose_kernel(heads, CANDIDATES)


def choose_kernel(heads: AttentionHeads, candidates: Sequence[KernelCandidate]) -> AttentionFunction | None:
    """Returns the first candidate that is installed and computes what it should; logs which it is and why."""
    against: list[str] = []
    for candidate in candidates:
        reason = candidate.missing(heads)
        if reason is None:
            attend, reason = _tried(candidate, heads)
            if attend is not None:
                _log.info("attention over a shared prefix: %s%s", candidate.name, _because(against))
                return attend
        against.append(f"{candidate.name}: {reason}")
    _log.warning(
        "attention over a shared prefix: scaled_dot_product_attention, which copies a prefix's keys and values once "
        "a response%s",
        _because(against),
    )
    return None


def _because(against: Sequence[str]) -> str:
    return f" (not {'; not '.join(against)})" if against else ""


def _tried(candidate: KernelCandidate, heads: AttentionHeads) -> tuple[AttentionFunction | None, str]:
    try:
        attend = candidate.make()
        off = _largest([deviation(attend, heads, layout) for layout in (TRIAL, ONE_TOKEN)])
    # Whatever a kernel of another version or another device raises, the next candidate may do.
    except Exception as error:
        if is_out_of_memory(error):  # no fault of the kernel, and the choice is kept for good
            raise
        return None, f"it failed on a small tree ({first_line(error)})"
    # With TF32, which has the mantissa of fp16, what is written out is rounded as well.
    tf32 = heads.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    if not off < TOLERANCE[torch.float16 if tf32 else heads.dtype]:
        return None, f"it was off by {off:.2g} on a small tree"
    return attend, ""


def deviation(attend: AttentionFunction, heads: AttentionHeads, layout: PackedLayout = TRIAL) -> float:
    """Returns how far output and gradients are from attention written out in fp32, relative to the largest."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> Tensor:
        states = torch.randn(1, count, layout.tokens, heads.size, generator=generator)
        return states.to(heads.device, heads.dtype)

    states = [draw(count) for count in (heads.queries, heads.keys, heads.keys)]
    grad = draw(heads.queries).transpose(1, 2)
    truth = _values_and_gradients(_written_out, [state.float() for state in states], grad.float(), layout)
    found = _values_and_gradients(attend, states, grad, layout)
    pairs = zip(found, truth, strict=True)
    return _largest([float((own.float() - true).abs().max() / true.abs().max()) for own, true in pairs])


def _largest(values: Sequence[float]) -> float:
    # Python's own would pass over a NaN that is not the first.
    return float(np.max(values))


def _values_and_gradients(
    attend: AttentionFunction, states: Sequence[Tensor], grad: Tensor, layout: PackedLayout
) -> list[Tensor]:
    # The first attention may be computed in inference or under autocast: the trial is not. And what it keeps for its
    # backward pass is no concern of the checkpoint round a layer, whose hooks would compute the layer again.
    own_backward = torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept)
    plain = torch.autocast(grad.device.type, enabled=False)
    with torch.inference_mode(False), torch.enable_grad(), plain, own_backward:
        leaves = [state.clone().requires_grad_() for state in states]
        query, key, value = leaves
        output = attend(query, key, value, layout, None)
        return [output.detach(), *torch.autograd.grad(output, leaves, grad.clone())]


def _written_out(q: Tensor, k: Tensor, v: Tensor, layout: PackedLayout, scaling: float | None) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = (states.repeat_interleave(group, dim=1) for states in (k, v))
    tokens = torch.arange(layout.tokens, device=q.device)
    sees = sees_of(layout, q.device)(tokens, tokens, tokens[:, None], tokens)
    logits = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    return (logits.masked_fill(~sees, -torch.inf).softmax(dim=-1) @ v).transpose(1, 2)


def _no_flash(heads: AttentionHeads) -> str | None:
    """Returns what a device or dtype lacks for every flash kernel."""
    if heads.dtype not in (torch.float16, torch.bfloat16):
        return f"it computes in half precision, and this is {str(heads.dtype).removeprefix('torch.')}"
    if torch.cuda.get_device_capability(heads.device) < (8, 0):
        return "it needs a GPU of compute capability 8.0 or later"
    return None


def _no_flash_attn(heads: AttentionHeads) -> str | None:
    return "not installed" if importlib.util.find_spec("flash_attn") is None else _no_flash(heads)


def _no_flex(heads: AttentionHeads) -> str | None:
    return "triton is not installed" if importlib.util.find_spec("triton") is None else None


CANDIDATES = (
    KernelCandidate(
        "the varlen kernel of flash-attn",
        _no_flash_attn,
        lambda: partial(varlen_attention, FlashAttnKernel()),
    ),
    KernelCandidate(
        "the varlen kernel of torch", _no_flash, lambda: partial(varlen_attention, TorchKernel())
    ),
    KernelCandidate("FlexAttention", _no_flex, lambda: flex_attention_of),
)
"""In the order in which they are tried."""
