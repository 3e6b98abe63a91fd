"""Kernels for attention over a shared prefix on CUDA, each tried on a small tree before it is trusted.

In order of preference: FlashAttention-3 and -4 where they are installed, torch's own varlen flash kernel (that of the
package flash-attn), and FlexAttention with a block mask made from the layout. If none works, the scores
are written out, a part at a time. A candidate must be available and agree, forward and backward, with attention that is
written out, for heads as the model has them. One log line names the chosen kernel and why those before it were not
taken.

Kernels of the Hugging Face Hub are no candidates: they are programs that the first attention would download and run,
and torch ships the same flash kernel.

Shapes: S tokens of the packed sequence, B blocks of them, T query tokens of a call, H query heads, G key heads, D
head size.
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.attention import (
    activate_flash_attention_impl,
    current_flash_attention_impl,
    restore_flash_attention_impl,
)
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from longrm.errors import first_line
from longrm.modeling.attention_varlen import (
    Attended,
    AttentionSpec,
    Keys,
    Output,
    Queries,
    SequenceBounds,
    VarlenKernel,
    using_results,
    varlen_attention,
)
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.shapes import PackedLayout, TreeShape

_log = logging.getLogger(__name__)

AttentionFunction = Callable[[Tensor, Tensor, Tensor, PackedLayout, AttentionSpec], Tensor]
"""Query, key and value (heads before tokens), layout and spec to the output (tokens before heads)."""


class TorchKernel:
    """The kernel behind `torch.nn.attention.varlen`: its public function has no backward for part of a softmax.

    A replacement ("FA3" or "FA4") takes its place for the whole process, whenever this one computes.
    """

    def __init__(self, replacement: str | None = None) -> None:
        self._replacement = replacement

    def _activate(self) -> None:
        active = current_flash_attention_impl()
        if self._replacement and active != self._replacement:
            # torch warns that kernels change, which is intended.
            with warnings.catch_warnings(action="ignore"):
                activate_flash_attention_impl(self._replacement)
        elif active and not self._replacement:
            restore_flash_attention_impl()

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bounds: SequenceBounds, spec: AttentionSpec
    ) -> tuple[Tensor, Tensor]:
        """See `VarlenKernel`."""
        self._activate()
        output, lse, *_ = torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            *bounds.positional,
            0.0,
            bounds.causal,
            False,
            scale=spec.scale,
            **_window(bounds),
            **({} if bounds.used is None else {"seqused_k": bounds.used}),
        )
        return output, lse

    def backward(
        self, grad: Tensor, attended: Attended, bounds: SequenceBounds, spec: AttentionSpec
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `VarlenKernel`."""
        self._activate()
        rng_state = torch.zeros(2, dtype=torch.uint64, device=grad.device)  # of dropout, which is 0
        unused = torch.empty(0, device=grad.device)
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
            grad,
            *attended,
            *bounds.positional,
            0.0,
            bounds.causal,
            rng_state,
            unused,
            scale=spec.scale,
            **_window(bounds),
        )
        return found


def _window(bounds: SequenceBounds) -> dict[str, int]:
    """The window as flash kernels take it: how many keys a query sees to the left of its own, and to the right."""
    if bounds.window is None:
        return {}
    return {"window_size_left": bounds.window - 1, "window_size_right": 0}


# FlexAttention

BLOCK = 128

MAX_COMPILED = 64
"""How many kinds of calls may be compiled. A model has up to six: in training, without gradients and in inference mode,
each for sequences of one block and of several. Lengths and trees are not compiled for."""

Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Batch, head, query and key index to whether the query sees the key: a `mask_mod` of FlexAttention."""


def flex_packed_attention(
    query: Queries, key: Keys, value: Keys, layout: PackedLayout, spec: AttentionSpec
) -> Output:
    """Computes the attention of a packed sequence by FlexAttention, compiled once for any length.

    From 2^31 elements on (512K tokens of 32 heads of 128), torch compiles it once more, with 64-bit offsets of heads.
    Offsets within a head may stay 32-bit, which is enough for 16M tokens: heads are contiguous here, and so are those
    of gradients, which AOTAutograd lays out as the outputs.
    """
    # The cached mask may serve training later, where tensors made in inference mode are refused.
    with torch.inference_mode(False):
        mask = block_mask(layout, query.device, spec.window)
    # Every stride of a view and every state of autocast would be compiled for. Autocast changes nothing here, as all
    # dtypes are equal.
    states = (part.contiguous() for part in (query, key, value))
    plain = torch.autocast(query.device.type, torch.bfloat16, enabled=False, cache_enabled=False)
    with plain, torch._dynamo.config.patch(recompile_limit=MAX_COMPILED):
        found = _compiled_flex()(
            *states,
            score_mod=None if spec.softcap is None else _cap(spec.softcap),
            block_mask=mask,
            scale=spec.scale,
            enable_gqa=query.shape[1] != key.shape[1],
            return_aux=None if spec.sinks is None else AuxRequest(lse=True),
        )
    output: Tensor = found if spec.sinks is None else _with_sinks(found[0], found[1].lse, spec.sinks)
    return output.transpose(1, 2)


def _with_sinks(output: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    # The share that a sink leaves: exp(lse) / (exp(lse) + exp(sink)). FlexAttention's lse has a gradient.
    return (output * torch.sigmoid(lse - sinks.to(lse.dtype)[:, None])[..., None]).to(output.dtype)


@lru_cache(maxsize=4)
def _cap(softcap: float) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    def score_mod(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return score_mod


@lru_cache(maxsize=1)
def _compiled_flex() -> Any:
    # Without `fullgraph`, a call beyond dynamo's limit would run uncompiled, with the scores of all pairs in memory.
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


@lru_cache(maxsize=4)
def block_mask(layout: PackedLayout, device: torch.device, window: int | None = None) -> BlockMask:
    """Returns the mask of a layout, computed once for all layers of a kind in a forward pass.

    torch's own `create_block_mask` looks at every pair of tokens, 16 GiB of them at 128K.
    """
    some, every = blocks_of(layout, window)
    partial_blocks, full_blocks = _listed(some & ~every, device), _listed(every, device)
    size = layout.tokens
    return BlockMask.from_kv_blocks(
        *partial_blocks,
        *full_blocks,
        BLOCK_SIZE=BLOCK,
        mask_mod=sees_of(layout, device, window),
        seq_lengths=(size, size),
    )


def sees_of(layout: PackedLayout, device: torch.device, window: int | None = None) -> Sees:
    """Returns the mask function: a key is seen from its own token on, up to the last descendant of its node.

    With a window, a query sees only the last `window` of the keys of its own sequence, as positions count them.
    """
    nodes = layout.nodes()
    lengths = [node.end - node.begin for node in nodes]
    reach = torch.from_numpy(np.repeat(np.array([node.reach for node in nodes], np.int32), lengths)).to(
        device
    )

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < reach[key])

    if window is None:
        return sees
    position = torch.tensor(layout.position_ids(), dtype=torch.int32, device=device)

    def sees_window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < reach[key]) & (position[query] - position[key] < window)

    return sees_window


def blocks_of(
    layout: PackedLayout, window: int | None = None
) -> tuple[Bool[np.ndarray, "B B"], Bool[np.ndarray, "B B"]]:
    """Returns for every block of queries and every block of keys whether some pair, and whether every pair, is seen.

    Both are cut at the bounds of blocks and of nodes. Of two such pieces, either all keys before a query are seen or
    none, but for the window, for which first and last positions are compared: whatever their size.
    """
    size, nodes = layout.tokens, layout.nodes()
    begins, positions, reach = np.array(
        [(node.begin, node.position, node.reach) for node in nodes], np.int32
    ).T
    blocks = np.arange(0, size, BLOCK, dtype=np.int32)
    first = np.union1d(blocks, begins)  # the first token of every piece
    last = np.append(first[1:], size) - 1
    node = np.searchsorted(begins, first, side="right") - 1
    # Queries are rows, and keys columns. A piece before that of the queries is a piece of keys before all of them.
    query, position = first[:, None], first - begins[node] + positions[node]
    some = (first <= query) & (query < reach[node])
    every = some & (last <= query)
    if window is not None:
        end = position + last - first
        some &= (position - window)[:, None] < end
        every &= (end - window)[:, None] < position
    pieces = np.searchsorted(first, blocks)  # the first piece of every block
    for axis in (0, 1):
        some = np.logical_or.reduceat(some, pieces, axis)
        every = np.logical_and.reduceat(every, pieces, axis)
    if size % BLOCK:
        every[-1] = every[:, -1] = False  # there is nothing beyond the sequence
    return some, every


def _listed(
    dense: Bool[np.ndarray, "B B"], device: torch.device
) -> tuple[Int[Tensor, "1 1 B"], Int[Tensor, "1 1 B B"]]:
    """Counts and lists the marked key blocks of every query block, as BlockMask wants them: marked ones first."""
    marked = torch.from_numpy(dense).to(device)
    order = torch.argsort(marked, dim=-1, descending=True, stable=True)
    counts = marked.sum(dim=-1)
    return counts.to(torch.int32)[None, None], order.to(torch.int32)[None, None].contiguous()


# The choice

TRIAL = PackedLayout(
    (
        TreeShape(150, (7, 33)),
        TreeShape(150, (7, 33)),
        TreeShape(41, (130,)),
        TreeShape(60, (20, 9, 31, 5), parents=(0, 1, 1, 0)),
    )
)
"""The layout that a candidate is tried on: twins, no length aligned to a block, nodes that cross blocks, two levels."""

ONE_TOKEN = PackedLayout((TreeShape(301, (1,)), TreeShape(40, (1,))))
"""The second one: flash kernels compute single queries, here all branches, by another method."""

LONG = PackedLayout((TreeShape(4_500, (300, 7)),))
"""The third one: long enough for kernels to split keys between their programs."""

QUERIES = 128
"""Of how many queries, drawn at random, output and gradients are compared: all queries of a long layout have
gigabytes of scores."""

TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""The largest deviation of output and gradients from fp32, relative to the largest element. In bf16 rounding makes up
to 8e-3, and one key too many or too few for every query of a branch at least 6e-2."""


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The heads of a layer; a kernel is chosen once for all layers of a kind."""

    device: torch.device
    dtype: torch.dtype
    queries: int
    keys: int
    size: int
    window: bool = False
    softcap: bool = False
    sinks: bool = False

    @property
    def features(self) -> str:
        """What its layers have besides a softmax of scores, for messages."""
        named = {"a window": self.window, "a soft cap": self.softcap, "sinks": self.sinks}
        found = " and ".join(name for name, has in named.items() if has)
        return f" with {found}" if found else ""

    def trial_spec(self) -> AttentionSpec:
        """The spec of such a layer, with values that make a difference on a small tree."""
        sinks = torch.linspace(-2.0, 4.0, self.queries, device=self.device) if self.sinks else None
        return AttentionSpec(
            self.size**-0.5, 40 if self.window else None, 2.0 if self.softcap else None, sinks
        )


Candidate = Callable[[AttentionHeads], AttentionFunction | str]
"""Returns a kernel for heads, or what it lacks for them."""


def kernel_for(query: Queries, key: Keys, spec: AttentionSpec) -> AttentionFunction | None:
    """Returns the kernel for a model's heads; None on other devices than CUDA, and where no kernel works."""
    if query.device.type != "cuda":
        return None
    _, queries, _, size = query.shape
    features = (part is not None for part in (spec.window, spec.softcap, spec.sinks))
    return _chosen(AttentionHeads(query.device, query.dtype, queries, key.shape[1], size, *features))


def segment_kernel_for(query: Queries, key: Keys, spec: AttentionSpec) -> VarlenKernel | None:
    """Returns the kernel for segments over a cache: the chosen one if that is a varlen kernel, else None."""
    chosen = kernel_for(query, key, spec)
    if not isinstance(chosen, partial) or chosen.func is not varlen_attention:
        return None
    kernel: VarlenKernel = chosen.args[0]
    return kernel


@lru_cache(maxsize=8)
def _chosen(heads: AttentionHeads) -> AttentionFunction | None:
    return choose_kernel(heads, CANDIDATES)


def choose_kernel(heads: AttentionHeads, candidates: Mapping[str, Candidate]) -> AttentionFunction | None:
    """Returns the first candidate that is available and computes the right values; logs the choice and its reasons."""
    rejected: list[str] = []
    reasons = ""
    for name, candidate in candidates.items():
        attend = _try_candidate(candidate, heads)
        if not isinstance(attend, str):
            _log.info("attention over a shared prefix%s: %s%s", heads.features, name, reasons)
            return attend
        rejected.append(f"{name}: {attend}")
        reasons = f" (not {'; not '.join(rejected)})"
    way = "scores of all pairs, a part at a time, which is slow"
    _log.warning("attention over a shared prefix%s: %s%s", heads.features, way, reasons)
    return None


def _try_candidate(candidate: Candidate, heads: AttentionHeads) -> AttentionFunction | str:
    try:
        attend = candidate(heads)
        if isinstance(attend, str):
            return attend
        # np.max, as Python's own max skips a NaN that is not the first value.
        off = float(np.max([deviation(attend, heads, layout) for layout in (TRIAL, ONE_TOKEN, LONG)]))
    except Exception as error:  # whatever a kernel of another version or device raises, the next may work
        if is_out_of_memory(error):  # not a defect of the kernel, and the choice is kept for good
            raise
        return f"it failed on a small tree ({first_line(error)})"
    # TF32 has the mantissa of fp16, and then the written-out attention is rounded, too.
    tf32 = heads.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    if not off < TOLERANCE[torch.float16 if tf32 else heads.dtype]:
        return f"it was off by {off:.2g} on a small tree"
    return attend


@torch.inference_mode(False)
def deviation(attend: AttentionFunction, heads: AttentionHeads, layout: PackedLayout = TRIAL) -> float:
    """Returns how far output and gradients are from attention written out in fp32, relative to the largest element.

    Of many queries only some, and always the last of every branch, have a gradient and are compared.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> Tensor:
        states = torch.randn(1, count, layout.tokens, heads.size, generator=generator)
        return states.to(heads.device, heads.dtype)

    states, spec = [draw(count) for count in (heads.queries, heads.keys, heads.keys)], heads.trial_spec()
    some = torch.randperm(layout.tokens, generator=generator)[:QUERIES]
    rows = torch.tensor(sorted({*some.tolist(), *layout.branch_ends()}), device=heads.device)
    grad = draw(heads.queries).transpose(1, 2)
    of_rows = torch.zeros_like(grad).index_copy(1, rows, grad[:, rows])
    exact = [state.float() for state in states]
    truth = _values_and_gradients(partial(written_out, rows), exact, grad[:, rows].float(), layout, spec)
    output, *gradients = _values_and_gradients(attend, states, of_rows, layout, spec)
    pairs = zip([output[:, rows], *gradients], truth, strict=True)
    return float(np.max([float((own.float() - true).abs().max() / true.abs().max()) for own, true in pairs]))


def _values_and_gradients(
    attend: AttentionFunction,
    states: Sequence[Tensor],
    grad: Tensor,
    layout: PackedLayout,
    spec: AttentionSpec,
) -> list[Tensor]:
    # A model's first attention may run in inference mode, under autocast or inside a checkpoint. The trial must not: a
    # checkpoint's hooks would see the tensors that it saves, and compute the layer again; its results may be kept.
    own_backward = torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved)
    plain = torch.autocast(grad.device.type, enabled=False)
    with torch.enable_grad(), plain, own_backward, using_results(None):
        sinks = () if spec.sinks is None else (spec.sinks,)
        leaves = [state.clone().requires_grad_() for state in (*states, *sinks)]
        query, key, value, *own_sinks = leaves
        output = attend(query, key, value, layout, replace(spec, sinks=own_sinks[0] if own_sinks else None))
        return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def written_out(
    rows: Int[Tensor, " rows"], q: Tensor, k: Tensor, v: Tensor, layout: PackedLayout, spec: AttentionSpec
) -> Tensor:
    """The attention of some queries by its definition, with all of their scores in memory."""
    group = q.shape[1] // k.shape[1]
    k, v = (states.repeat_interleave(group, dim=1) for states in (k, v))
    tokens = torch.arange(layout.tokens, device=q.device)
    sees = sees_of(layout, q.device, spec.window)(tokens, tokens, rows[:, None], tokens)
    return (spec.softmax(q[:, :, rows] @ k.transpose(-1, -2) * spec.scale, sees) @ v).transpose(1, 2)


def _flash(
    heads: AttentionHeads, replacement: str | None = None, package: str = "", capabilities: Sequence[int] = ()
) -> AttentionFunction | str:
    """Torch's flash kernel, or what replaces it; `capabilities` are the first numbers of a GPU's."""
    if heads.dtype not in (torch.float16, torch.bfloat16):
        return f"it computes in half precision, and this is {str(heads.dtype).removeprefix('torch.')}"
    if heads.softcap:
        return "it has no soft cap"
    if package and (find_spec(package.partition(".")[0]) is None or find_spec(package) is None):
        return f"the package {package} is not installed"
    capability = torch.cuda.get_device_capability(heads.device)[0]
    if capability not in capabilities if replacement else capability < 8:
        return f"it is not for GPUs of compute capability {capability}"
    return partial(varlen_attention, TorchKernel(replacement))


def _flex(heads: AttentionHeads) -> AttentionFunction | str:
    return "triton is not installed" if find_spec("triton") is None else flex_packed_attention


CANDIDATES: Mapping[str, Candidate] = {
    "FlashAttention-3": partial(_flash, replacement="FA3", package="flash_attn_interface", capabilities=(9,)),
    "FlashAttention-4": partial(_flash, replacement="FA4", package="flash_attn.cute", capabilities=(9, 10)),
    "the varlen kernel of torch": _flash,
    "FlexAttention": _flex,
}
"""In the order in which they are tried."""
