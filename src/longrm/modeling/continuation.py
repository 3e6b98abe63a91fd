"""Attention of a sequence whose first tokens are read already, and of several branches that continue the same tokens.

Letters: S tokens of the sequence, P tokens before, R tokens that are read now, H query heads, G key heads, D head size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

from longrm.errors import ModelError
from longrm.modeling.attention import SHARED_PREFIX, as_values, refuse_unsupported, sdpa

CONTINUATION = "longrm_continuation"
"""The `attn_implementation` under which transformers finds the attention of a continued sequence."""


def continuation_attention(
    module: nn.Module,
    query: Float[Tensor, "1 H R D"],
    key: Float[Tensor, "1 G S D"],
    value: Float[Tensor, "1 G S D"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **extra: Any,
) -> tuple[Float[Tensor, "1 R H D"], None]:
    """Computes the causal attention of the last R of S tokens; registered under `CONTINUATION`.

    Unlike transformers' own it needs no mask: kernels on a GPU know `causal_lower_right`, and on a CPU, where that
    would become a dense mask, what came before and the tokens themselves are computed apart.

    Raises:
        ModelError: the call is of a packed sequence, which is not read causally throughout, or the model asks for
            something else that changes attention and is not computed here.
    """
    if extra.get("layout") is not None:
        raise ModelError(
            f"{CONTINUATION} attention reads one sequence, and this call packs several over shared prefixes: load the "
            f"model with packed=True, or call model.set_attn_implementation('{SHARED_PREFIX}')"
        )
    refuse_unsupported(module, dropout, {"attention_mask": attention_mask, **extra})
    assert len(query) == 1, "padding would be ignored: one sequence at a time"
    query, key = as_values(query, key, value)
    last, tokens = query.shape[2], key.shape[2]
    if last in (1, tokens):
        return sdpa(query, key, value, scaling, is_causal=last > 1).transpose(1, 2), None
    if query.device.type == "cpu":
        before, own = zip(
            *(torch.split(part, [tokens - last, last], dim=2) for part in (key, value)), strict=True
        )
        return over_before(query, before, own, [last], scaling).transpose(1, 2), None
    mask = causal_lower_right(last, tokens)
    return sdpa(query, key, value, scaling, attn_mask=mask).transpose(1, 2), None


def over_before(
    q: Float[Tensor, "1 H R D"],
    before: Sequence[Float[Tensor, "1 G P D"]],
    own: Sequence[Float[Tensor, "1 G R D"]],
    lengths: Sequence[int],
    scaling: float | None,
) -> Float[Tensor, "1 H R D"]:
    """Attends from segments to all tokens before them and, causally, each to its own tokens.

    Args:
        q: The queries of all segments, one segment after the other.
        before: Keys and values of what every segment continues: one token at least.
        own: Keys and values of the segments' own tokens.
        lengths: Tokens of each segment.
        scaling: The factor of the logits; None stands for one over the square root of D.
    """
    if q.device.type == "cpu":
        return _joined_by_sums(q, before, own, lengths, scaling)
    return _one_by_one(q, before, own, lengths, scaling)


def _one_by_one(
    q: Float[Tensor, "1 H R D"],
    before: Sequence[Float[Tensor, "1 G P D"]],
    own: Sequence[Float[Tensor, "1 G R D"]],
    lengths: Sequence[int],
    scaling: float | None,
) -> Float[Tensor, "1 H R D"]:
    """Computes `over_before` by one attention a segment, with a mask that kernels of a GPU know."""
    outputs = []
    for queries, *keys_values in zip(
        *(torch.split(part, list(lengths), dim=2) for part in (q, *own)), strict=True
    ):
        k, v = (torch.cat(parts, dim=2) for parts in zip(before, keys_values, strict=True))
        mask = causal_lower_right(queries.shape[2], k.shape[2])
        outputs.append(sdpa(queries, k, v, scaling, attn_mask=mask))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def _joined_by_sums(
    q: Float[Tensor, "1 H R D"],
    before: Sequence[Float[Tensor, "1 G P D"]],
    own: Sequence[Float[Tensor, "1 G R D"]],
    lengths: Sequence[int],
    scaling: float | None,
) -> Float[Tensor, "1 H R D"]:
    """Computes `over_before` without a mask, what came before and the segments' own tokens apart.

    Both softmaxes are put together by their log-sum-exps, as flash attention does with blocks (Dao et al. 2022).
    """
    # The kernel that scaled_dot_product_attention calls on a CPU; only it hands over the log-sum-exps.
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    (heads, rows), (k, v) = q.shape[1:3], before
    group = heads // k.shape[1]
    # Without a mask the query heads that share keys are rows of one; the few keys of the own part are repeated.
    stacked = q.reshape(1, k.shape[1], group * rows, -1)
    earlier, earlier_lse = kernel(stacked, k, v, scale=scaling)
    repeated = (part.repeat_interleave(group, dim=1) for part in own)
    segments = zip(*(torch.split(part, list(lengths), dim=2) for part in (q, *repeated)), strict=True)
    found = [kernel(*segment, is_causal=True, scale=scaling) for segment in segments]
    latest, latest_lse = (torch.cat(parts, dim=2) for parts in zip(*found, strict=True))
    share = torch.sigmoid(earlier_lse.reshape(latest_lse.shape) - latest_lse).unsqueeze(-1)
    mixed: Tensor = share * earlier.reshape(latest.shape) + (1 - share) * latest
    return mixed.to(q.dtype)


AttentionInterface.register(CONTINUATION, continuation_attention)
