"""Attention over a shared prefix, as a function that transformers calls by name.

A token sees all nodes above its own, and its own up to itself. Calls of a flash kernel, one for all nodes and one for
each level of the tree, compute that and are merged (`attention_varlen`); on CUDA, `attention_cuda` chooses the kernel,
or FlexAttention. Without one the scores are written out a part at a time. No mask over pairs of tokens is built, so
memory is linear in the prefix.

Transformers passes to an attention function whatever a model's architecture needs: windows, soft caps, sinks. Ignoring
one would be silently wrong, so what is not computed here is refused at the call, and mostly earlier (`loading`). The
call also decides what a layer computes (`AttentionSpec`): some configs state features that their layers do not have.

Shapes: S tokens of the packed sequence or of a tree, R tokens read now, H query heads, G key heads, D head size.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn import functional
from transformers import AttentionInterface

from longrm.errors import ModelError
from longrm.modeling.attention_cuda import kernel_for, segment_kernel_for
from longrm.modeling.attention_varlen import (
    AttentionSpec,
    FlatKeys,
    Keys,
    Output,
    PlainKernel,
    Queries,
    RangeCalls,
    varlen_attention,
    varlen_ranges,
)
from longrm.modeling.folders import layer_kinds
from longrm.modeling.sequence_parallel import SequenceGroup, over_heads, over_tokens, own_part
from longrm.modeling.shapes import PackedLayout
from longrm.modeling.shared_prefix import SHARED_PREFIX as SHARED_PREFIX
from longrm.modeling.shared_prefix import LayerAttention, Packed, TransformersModel, hidden_states

LayerKeys = Float[Tensor, "G S D"]

_UNSUPPORTED = {
    "attention_mask": "an attention mask of its own",
    "position_bias": "a position bias",
    "head_mask": "a head mask",
}
"""Keyword arguments of transformers' models that change attention and are not computed here."""


def shared_prefix_attention(
    module: nn.Module,
    query: Queries,
    key: Keys,
    value: Keys,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    layout: PackedLayout | None = None,
    sequence: SequenceGroup | None = None,
    only_ends: bool = False,
    layer_attention: LayerAttention | None = None,
    **extra: Any,
) -> tuple[Output, None]:
    """Computes the attention of a packed sequence; registered with transformers as `SHARED_PREFIX`.

    The arguments before `layout` are transformers' own: queries and keys are rotated by position, and there is no mask,
    as transformers makes none for an attention that it does not know. The others come from `hidden_states`:

    - `sequence`: the processes that share the sequence. All tensors then hold the process's own tokens.
    - `only_ends`: the last hidden states are read at the ends of branches only, and without a kernel of CUDA the others
      of the last layer stay zero. In all other layers every token is a key of later ones.
    - `layer_attention`: computes the attention in place of `packed_attention`.

    An argument that changes attention and is not computed here is a `ModelError`.
    """
    if layout is None:
        raise ModelError(
            f"{type(module).__name__} got no layout of packed sequences. A plain forward pass needs "
            "model.set_attn_implementation('sdpa'); a model whose layers do not pass keyword arguments on to their "
            "attention is not supported"
        )
    spec = _spec(module, query, dropout, scaling, {"attention_mask": attention_mask, **extra})
    query, key = query.to(value.dtype), key.to(value.dtype)  # rotation and norms leave fp32 under autocast
    if sequence is not None:
        query, key, value = over_heads(query, key, value, layout.tokens, sequence)
        if spec.sinks is not None:
            spec = replace(spec, sinks=own_part(spec.sinks, sequence))
    assert (query.shape[0], query.shape[2]) == (1, layout.tokens), "the layout does not fit the sequence"
    layer: Any = module
    only_ends = only_ends and layer.layer_idx == layer.config.num_hidden_layers - 1
    if layer_attention is not None:
        return layer_attention(layer.layer_idx, query, key, value, layout, spec, only_ends), None
    output = packed_attention(query, key, value, layout, spec, only_ends)
    return (output if sequence is None else over_tokens(output, sequence)), None


AttentionInterface.register(SHARED_PREFIX, shared_prefix_attention)


def _spec(
    module: nn.Module, query: Queries, dropout: float, scaling: float | None, given: Mapping[str, Any]
) -> AttentionSpec:
    """Reads from the arguments of a call what the layer computes; refuses what is not supported here."""
    if dropout:
        raise ModelError("this attention does not support dropout: set attention_dropout to 0")
    for name, what in _UNSUPPORTED.items():
        if given.get(name) is not None:
            raise ModelError(f"{type(module).__name__} uses {what}, which this attention does not support")
    layer: Any = module
    window, config = given.get("sliding_window"), getattr(layer, "config", None)
    stated = getattr(config, "sliding_window", None)
    # Some layers get their window from a mask alone, which transformers makes for its own attention only.
    if stated not in (None, window) and layer_kinds(config)[layer.layer_idx] == "sliding_attention":
        raise ModelError(
            f"{type(module).__name__} does not pass its window of {stated} tokens to its attention: not supported"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return AttentionSpec(scale, window, given.get("softcap"), given.get("s_aux"))


def packed_attention(
    query: Queries, key: Keys, value: Keys, layout: PackedLayout, spec: AttentionSpec, only_ends: bool = False
) -> Output:
    """Computes the attention of a packed sequence as the device needs; `only_ends` as in the registered function.

    The keys and values of a tree with cached tokens begin with theirs.
    """
    spec = spec.within(layout.longest)
    if layout.trees[0].cached:
        varlen = segment_kernel_for(query, key, spec)
        if varlen is not None:
            return varlen_attention(varlen, query, key, value, layout, spec)
        return varlen_attention(PlainKernel(), query, key, value, layout, spec, only_ends)
    kernel = kernel_for(query, key, spec)
    if kernel is not None:
        return kernel(query, key, value, layout, spec)
    if spec.plain and len(layout.trees) == 1 and not layout.trees[0].forks and not only_ends:
        return sdpa(query, key, value, spec.scale, is_causal=True).transpose(1, 2)  # one plain sequence
    return varlen_attention(PlainKernel(), query, key, value, layout, spec, only_ends)


def range_attention(
    q: Float[Tensor, "1 H N D"], k: FlatKeys, v: FlatKeys, calls: RangeCalls, spec: AttentionSpec
) -> Float[Tensor, "1 N H D"]:
    """Attends from N tokens of different sequences to the ranges of keys that each one sees (`plan_ranges`)."""
    kernel = segment_kernel_for(q, k.transpose(0, 1)[None], spec)
    return varlen_ranges(kernel or PlainKernel(), q, k, v, calls, spec)


def sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float | None, **options: Any) -> Tensor:
    """Torch's `scaled_dot_product_attention`, with query heads that may share keys; heads come before tokens."""
    grouped = q.shape[1] != k.shape[1]
    if grouped and not _takes_groups(q, k, v):
        k, v = (states.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for states in (k, v))
        grouped = False
    return functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped, **options)


def _takes_groups(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a kernel of linear memory takes query heads that share keys.

    A CPU has one. On CUDA flash does, in half precision. For the rest (fp32, older GPUs) `enable_gqa` would pass over
    the memory-efficient kernel for one that writes out all scores, so keys are repeated instead.
    """
    if q.device.type != "cuda":
        return True
    # Without mask and `is_causal`: so torch decides for `causal_lower_right`, which is both.
    return bool(can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, True)))


@torch.no_grad()
def keys_and_values(
    model: TransformersModel, packed: Packed, **layers_for: Any
) -> list[tuple[LayerKeys, LayerKeys]]:
    """Returns the keys and values of every layer with attention, as it sees them (rotated), by one forward pass.

    Other arguments are those of `Packed.layers_for`.
    """
    layers: list[tuple[Tensor, Tensor]] = []

    def record(layer: int, query: Queries, key: Keys, value: Keys, *options: Any) -> Output:
        layers.append((key[0], value[0]))
        return packed_attention(query, key, value, *options)  # layout, spec, only_ends

    hidden_states(model, replace(packed, layers_for=lambda model: {"layer_attention": record, **layers_for}))
    return layers
