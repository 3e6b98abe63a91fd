"""The kernel for attention over a shared prefix on CUDA, tried on a small tree before it is trusted.

It is torch's varlen flash kernel (that of the package flash-attn). It must be available and agree, forward and
backward, with attention that is written out, for heads as the model has them. Otherwise `attention` falls back to
`scaled_dot_product_attention`, which copies a prefix's keys and values once per branch. One log line names the choice
and its reason.

Kernels of the Hugging Face Hub are not tried: they are programs that the first attention would download and run, and
torch ships the same flash kernel.

Shapes: S tokens of the packed sequence, T query tokens of a call, H query heads, G key heads, D head size.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from longrm.errors import first_line
from longrm.modeling.attention_varlen import Attended, Keys, Queries, SequenceBounds, varlen_attention
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.shapes import PackedLayout, TreeShape

_log = logging.getLogger(__name__)

AttentionFunction = Callable[[Tensor, Tensor, Tensor, PackedLayout, float], Tensor]
"""Query, key and value (heads before tokens), layout and scale to the output (tokens before heads)."""


class TorchKernel:
    """The kernel behind `torch.nn.attention.varlen`: its public function has no backward for part of a softmax."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bounds: SequenceBounds, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `VarlenKernel`."""
        output, lse, *_ = torch.ops.aten._flash_attention_forward(
            query, key, value, *bounds.positional, 0.0, bounds.causal, False, scale=scale
        )
        return output, lse

    def backward(
        self, grad: Tensor, attended: Attended, bounds: SequenceBounds, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `VarlenKernel`."""
        rng_state = torch.zeros(2, dtype=torch.uint64, device=grad.device)  # of dropout, which is 0
        unused = torch.empty(0, device=grad.device)
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
            grad, *attended, *bounds.positional, 0.0, bounds.causal, rng_state, unused, scale=scale
        )
        return found


def sees_of(layout: PackedLayout, device: torch.device) -> Bool[Tensor, "S S"]:
    """Which tokens (rows) see which keys: those up to themselves, in their own segment or the prefix of their tree."""
    rows = []  # for every segment: its first token, the first of its tree, one past its tree's prefix, and its length
    for root, tree in zip(layout.roots(), layout.trees, strict=True):
        begin, fork = root, root + tree.prefix
        for length in (tree.prefix, *tree.branches):
            rows.append((begin, root, fork, length))
            begin += length
    *parts, lengths = torch.tensor(rows, device=device).T
    own, root_of, fork_of = (part.repeat_interleave(lengths)[:, None] for part in parts)
    key = torch.arange(layout.tokens, device=device)
    seen: Tensor = (key <= key[:, None]) & ((key >= own) | (key >= root_of) & (key < fork_of))
    return seen


TRIAL = PackedLayout((TreeShape(150, (7, 33)), TreeShape(150, (7, 33)), TreeShape(41, (130,))))
"""The layout that the kernel is tried on: twins, no length aligned to a block, segments that cross blocks."""

ONE_TOKEN = PackedLayout((TreeShape(301, (1,)), TreeShape(40, (1,))))
"""The second one: flash kernels compute single queries, here all branches, by another method."""

TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""The largest deviation of output and gradients from fp32, relative to the largest element. In bf16 rounding makes up
to 8e-3, and one key too many or too few for every query of a branch at least 6e-2."""


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The heads of a model; a kernel is chosen once for all of its layers."""

    device: torch.device
    dtype: torch.dtype
    queries: int
    keys: int
    size: int


def kernel_for(query: Queries, key: Keys) -> AttentionFunction | None:
    """Returns the kernel for a model's heads; None on other devices than CUDA, and where it does not work."""
    if query.device.type != "cuda":
        return None
    _, queries, _, size = query.shape
    return _chosen(AttentionHeads(query.device, query.dtype, queries, key.shape[1], size))


@lru_cache(maxsize=8)
def _chosen(heads: AttentionHeads) -> AttentionFunction | None:
    attend = partial(varlen_attention, TorchKernel())
    if heads.dtype not in (torch.float16, torch.bfloat16):
        problem = f"it computes in half precision, and this is {str(heads.dtype).removeprefix('torch.')}"
    elif torch.cuda.get_device_capability(heads.device) < (8, 0):
        problem = "it needs a GPU of compute capability 8.0 or later"
    else:
        problem = problem_of(attend, heads)
    if not problem:
        _log.info("attention over a shared prefix: the varlen kernel of torch")
        return attend
    _log.warning(
        "attention over a shared prefix: scaled_dot_product_attention, which copies a prefix's keys and values once "
        "per response (not the varlen kernel of torch: %s)",
        problem,
    )
    return None


def problem_of(attend: AttentionFunction, heads: AttentionHeads) -> str:
    """Why an attention is not to be trusted with these heads; empty if it computes the right values."""
    try:
        # np.max, as Python's own max skips a NaN that is not the first value.
        off = float(np.max([deviation(attend, heads, layout) for layout in (TRIAL, ONE_TOKEN)]))
    except Exception as error:  # whatever a kernel of another version or device raises
        if is_out_of_memory(error):  # not a defect of the kernel, and the choice is kept for good
            raise
        return f"it failed on a small tree ({first_line(error)})"
    # Not "off > ...", which would accept a NaN.
    return "" if off < TOLERANCE[heads.dtype] else f"it was off by {off:.2g} on a small tree"


def deviation(attend: AttentionFunction, heads: AttentionHeads, layout: PackedLayout = TRIAL) -> float:
    """Returns how far output and gradients are from attention written out in fp32, relative to the largest element."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> Tensor:
        states = torch.randn(1, count, layout.tokens, heads.size, generator=generator)
        return states.to(heads.device, heads.dtype)

    states = [draw(count) for count in (heads.queries, heads.keys, heads.keys)]
    grad = draw(heads.queries).transpose(1, 2)
    truth = _values_and_gradients(_written_out, [state.float() for state in states], grad.float(), layout)
    found = _values_and_gradients(attend, states, grad, layout)
    pairs = zip(found, truth, strict=True)
    return float(np.max([float((own.float() - true).abs().max() / true.abs().max()) for own, true in pairs]))


def _values_and_gradients(
    attend: AttentionFunction, states: Sequence[Tensor], grad: Tensor, layout: PackedLayout
) -> list[Tensor]:
    # A model's first attention may run in inference mode, under autocast or inside a checkpoint. The trial must not: a
    # checkpoint's hooks would see the tensors that it saves, and compute the layer again.
    own_backward = torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved)
    plain = torch.autocast(grad.device.type, enabled=False)
    with torch.inference_mode(False), torch.enable_grad(), plain, own_backward:
        leaves = [state.clone().requires_grad_() for state in states]
        query, key, value = leaves
        output = attend(query, key, value, layout, query.shape[-1] ** -0.5)
        return [output.detach(), *torch.autograd.grad(output, leaves, grad.clone())]


def _written_out(q: Tensor, k: Tensor, v: Tensor, layout: PackedLayout, scale: float) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = (states.repeat_interleave(group, dim=1) for states in (k, v))
    logits = (q @ k.transpose(-1, -2)) * scale
    return (logits.masked_fill(~sees_of(layout, q.device), -torch.inf).softmax(dim=-1) @ v).transpose(1, 2)
