"""Attention over a shared prefix, as one function that transformers calls by name.

A prefix is read causally, and every branch against its prefix and itself: by two calls of a flash kernel whose
softmaxes are put together (`attention_varlen`), which copies nothing and needs no mask. A CPU has such a kernel, a GPU
one of several (`attention_kernels`). Where none works, there is one attention a branch, over copies of the prefix's
keys and values and its own. No way ever builds a mask over pairs of prefix tokens, so memory is linear in the prefix.

Letters: S tokens of the packed sequence, T trees of one shape, L tokens of a tree, R tokens of a branch, H query
heads, G key heads, D head size.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

from longrm.errors import ModelError
from longrm.modeling.attention_cpu import CpuKernel
from longrm.modeling.attention_kernels import kernel_for
from longrm.modeling.attention_varlen import varlen_attention
from longrm.modeling.sequence_parallel import SequenceGroup, over_heads, over_tokens
from longrm.modeling.shapes import PackedLayout, TreeShape

SHARED_PREFIX = "longrm_shared_prefix"
"""The `attn_implementation` under which transformers finds the attention of a shared prefix."""

# What a model may hand to its attention that changes the result and that neither path computes.
_UNSUPPORTED = {
    "attention_mask": "an attention mask of its own",
    "softcap": "soft-capped attention logits",
    "s_aux": "attention sinks",
    "position_bias": "a position bias",
    "sliding_window": "a sliding window",
    "head_mask": "a head mask",
}


class LayerByLayer(Protocol):
    """What computes the attention of each layer of a model by itself."""

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "1 H S D"],
        key: Float[Tensor, "1 G S D"],
        value: Float[Tensor, "1 G S D"],
        layout: PackedLayout,
        scaling: float | None,
        only_ends: bool,
    ) -> Float[Tensor, "1 S H D"]:
        """Computes the attention of one layer; layers count from 0."""
        ...


def shared_prefix_attention(
    module: nn.Module,
    query: Float[Tensor, "1 H S D"],
    key: Float[Tensor, "1 G S D"],
    value: Float[Tensor, "1 G S D"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    layout: PackedLayout | None = None,
    sequence: SequenceGroup | None = None,
    only_ends: bool = False,
    kept: LayerByLayer | None = None,
    **extra: Any,
) -> tuple[Float[Tensor, "1 S H D"], None]:
    """Computes the attention of a packed sequence; registered with transformers under `SHARED_PREFIX`.

    With `sequence`, the processes that share it, every tensor holds the tokens of a process's own share. With
    `only_ends` nobody reads the model's last states but at the last token of every branch: in the last layer a CPU
    leaves the others at zero. With `kept`, the keys and values of prefixes that were read before, that computes the
    attention.

    Raises:
        ModelError: the call has no layout (a plain forward, whose padding would be ignored), or the model
            asks for something that changes attention and is not computed here.
    """
    if layout is None:
        raise ModelError(
            f"{SHARED_PREFIX} attention computes packed sequences only: call longrm.modeling.heads, "
            "or model.set_attn_implementation('sdpa') for a plain forward"
        )
    refuse_unsupported(module, dropout, {"attention_mask": attention_mask, **extra})
    query, key = as_values(query, key, value)
    if sequence is not None:
        query, key, value = over_heads(query, key, value, layout.tokens, sequence)
    assert query.shape[:1] + query.shape[2:3] == (1, layout.tokens), "the layout does not fit the sequence"
    only_ends = only_ends and _is_last(module)
    if kept is not None:
        return kept.attend(_index(module), query, key, value, layout, scaling, only_ends), None
    output = over_layout(query, key, value, scaling, layout, only_ends)
    return (output if sequence is None else over_tokens(output, sequence)), None


def _index(layer: Any) -> int:
    return int(layer.layer_idx)


def _is_last(layer: Any) -> bool:
    return bool(_index(layer) == layer.config.num_hidden_layers - 1)


def over_layout(
    query: Float[Tensor, "1 H S D"],
    key: Float[Tensor, "1 G S D"],
    value: Float[Tensor, "1 G S D"],
    scaling: float | None,
    layout: PackedLayout,
    only_ends: bool = False,
) -> Float[Tensor, "1 S H D"]:
    """Computes the attention of a packed sequence; see `shared_prefix_attention`."""
    kernel = kernel_for(query, key)
    if kernel is not None:
        return kernel(query, key, value, layout, scaling)
    if len(layout.trees) == 1 and not layout.trees[0].forks and not only_ends:
        return sdpa(query, key, value, scaling, is_causal=True).transpose(1, 2)
    if query.device.type == "cpu" and query.shape[-1] == value.shape[-1]:
        return varlen_attention(CpuKernel(), query, key, value, layout, scaling, only_ends)
    return _by_branches(query, key, value, layout, scaling)


def _by_branches(
    query: Float[Tensor, "1 H S D"],
    key: Float[Tensor, "1 G S D"],
    value: Float[Tensor, "1 G S D"],
    layout: PackedLayout,
    scaling: float | None,
) -> Float[Tensor, "1 S H D"]:
    """Computes run by run of equal trees, which are viewed as a batch; copies a prefix's keys once a branch."""
    runs = list(layout.runs())
    sizes = [shape.tokens * count for shape, count in runs]
    # The backward of one split is one concatenation; slices would each fill a tensor of full size.
    parts = zip(*(torch.split(states, sizes, dim=2) for states in (query, key, value)), strict=True)
    outputs: list[Tensor] = []
    for (shape, count), part in zip(runs, parts, strict=True):
        q, k, v = (states.unflatten(2, (count, -1))[0].transpose(0, 1) for states in part)
        outputs.append(_per_branch(q, k, v, shape, scaling).flatten(0, 1)[None])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def refuse_unsupported(module: nn.Module, dropout: float, given: Mapping[str, Any]) -> None:
    """Refuses a call that asks for what changes attention and is not computed; the `ModelError` names it."""
    if dropout:
        raise ModelError("this attention does not support dropout: set attention_dropout to 0")
    for name, what in _UNSUPPORTED.items():
        if given.get(name) is not None:
            raise ModelError(f"{type(module).__name__} uses {what}, which this attention does not support")


def as_values(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Casts queries and keys to the dtype of values: under autocast rotation and norms leave them in fp32."""
    return query.to(value.dtype), key.to(value.dtype)


def sdpa(q: Tensor, k: Tensor, v: Tensor, scaling: float | None, **how: Any) -> Tensor:
    """Attention by a kernel of torch; query heads may share keys."""
    grouped = q.shape[1] != k.shape[1]
    if grouped and not _takes_groups(q, k, v):
        k, v = (states.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for states in (k, v))
        grouped = False
    return functional.scaled_dot_product_attention(q, k, v, scale=scaling, enable_gqa=grouped, **how)


def _takes_groups(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a kernel that never holds the scores of all pairs of tokens takes query heads that share keys.

    On a CPU there is one. On CUDA flash does, in half precision; with shared keys, the kernel that would compute
    fp32, or anything on an older GPU, is passed over for one that writes all scores out.
    """
    if q.device.type != "cuda":
        return True
    # Neither a mask nor `is_causal`: of `causal_lower_right`, which is both, torch asks the same.
    return bool(can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, True)))


def _per_branch(
    q: Float[Tensor, "T H L D"],
    k: Float[Tensor, "T G L D"],
    v: Float[Tensor, "T G L D"],
    shape: TreeShape,
    scaling: float | None,
) -> Float[Tensor, "T L H D"]:
    sizes = [shape.prefix, shape.branch_tokens]
    (q_prefix, q_own), (k_prefix, _), (v_prefix, _) = (
        torch.split(states, sizes, dim=2) for states in (q, k, v)
    )
    prefix = sdpa(q_prefix, k_prefix, v_prefix, scaling, is_causal=True).transpose(1, 2)
    return torch.cat([prefix, per_segment(q_own, k, v, shape.branches, scaling)], dim=1)


def per_segment(
    q: Float[Tensor, "T H R D"],
    k: Float[Tensor, "T G L D"],
    v: Float[Tensor, "T G L D"],
    lengths: Sequence[int],
    scaling: float | None,
) -> Float[Tensor, "T R H D"]:
    """Attends from segments, the last R of L tokens, to all tokens before them and, causally, each to its own.

    One attention a segment, over copies of what came before, with a mask that kernels of a GPU know.
    """
    before = k.shape[2] - q.shape[2]
    parts = [torch.split(states, [before, *lengths], dim=2) for states in (k, v)]
    (k_before, *k_own), (v_before, *v_own) = parts
    outputs = []
    for queries, keys, values in zip(torch.split(q, list(lengths), dim=2), k_own, v_own, strict=True):
        keys, values = torch.cat([k_before, keys], dim=2), torch.cat([v_before, values], dim=2)
        mask = causal_lower_right(queries.shape[2], keys.shape[2])
        outputs.append(sdpa(queries, keys, values, scaling, attn_mask=mask).transpose(1, 2))
    return torch.cat(outputs, dim=1)


AttentionInterface.register(SHARED_PREFIX, shared_prefix_attention)
