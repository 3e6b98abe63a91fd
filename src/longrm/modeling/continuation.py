"""Attention of a sequence whose first tokens are read already, and of several branches that continue the same tokens.

Letters: S tokens of the sequence, R tokens that are read now, H query heads, G key heads, D head size.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

from longrm.errors import ModelError
from longrm.modeling.attention import SHARED_PREFIX, as_values, per_segment, refuse_unsupported, sdpa
from longrm.modeling.attention_cpu import CpuKernel
from longrm.modeling.attention_varlen import segment_attention

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
        return over_before(query, key, value, [last], scaling), None
    mask = causal_lower_right(last, tokens)
    return sdpa(query, key, value, scaling, attn_mask=mask).transpose(1, 2), None


def over_before(
    q: Float[Tensor, "1 H R D"],
    k: Float[Tensor, "1 G S D"],
    v: Float[Tensor, "1 G S D"],
    lengths: Sequence[int],
    scaling: float | None,
    only_ends: bool = False,
) -> Float[Tensor, "1 R H D"]:
    """Attends from segments to all tokens before them and, causally, each to its own tokens.

    Args:
        q: The queries of all segments, one segment after the other: the last R of S tokens.
        k: The keys of what every segment continues, one token at least, and then of the segments.
        v: The values likewise.
        lengths: Tokens of each segment.
        scaling: The factor of the logits; None stands for one over the square root of D.
        only_ends: The output of all but the last token of every segment may be anything: a CPU leaves it at zero.
    """
    if q.device.type == "cpu":
        return segment_attention(CpuKernel(), q, k, v, lengths, scaling, only_ends)
    return per_segment(q, k, v, lengths, scaling)


AttentionInterface.register(CONTINUATION, continuation_attention)
