"""The flash kernel that torch has for a CPU, for sequences of varying length laid end to end.

Sequences of equal lengths are computed as a batch. Without a mask, query heads that share keys
are rows of one head; causally, the keys are repeated for them.

Letters: T tokens of a call's queries, U of its keys, H query heads, G key heads, D head size, B equal sequences.
"""

from collections import defaultdict
from functools import lru_cache
from itertools import pairwise, starmap

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longrm.modeling.attention_varlen import ForwardTensors, SequenceBounds, rows_at

_Rows = slice | Int[Tensor, " rows"]


class CpuKernel:
    """What scaled_dot_product_attention calls on a CPU; asked directly, it hands over the log-sum-exps."""

    def forward(
        self,
        query: Float[Tensor, "T H D"],
        key: Float[Tensor, "U G D"],
        value: Float[Tensor, "U G D"],
        bounds: SequenceBounds,
        scale: float,
    ) -> tuple[Float[Tensor, "T H D"], Float[Tensor, "H T"]]:
        """See `VarlenKernel`."""
        output = torch.empty_like(query)
        # The kernel's log-sum-exps are fp32 but for fp64.
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        lse = torch.empty(query.shape[1], len(query), dtype=dtype)
        group = query.shape[1] // key.shape[1]
        for count, rows, seen in _runs(bounds):
            q, k, v = _batch(query[rows], count), _batch(key[seen], count), _batch(value[seen], count)
            # The kernel is a tenth slower where the tokens of a head lie apart. A backward pass has no memory to spare.
            q, k, v = (states.contiguous() for states in _one_to_one(q, k, v, group, bounds.causal))
            found, found_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, is_causal=bounds.causal, scale=scale
            )
            heads = query.shape[1]
            output[rows] = found.reshape(count, heads, -1, found.shape[-1]).transpose(1, 2).flatten(0, 1)
            lse[:, rows] = found_lse.reshape(count, heads, -1).transpose(0, 1).flatten(1)
        return output, lse

    def backward(
        self, grad: Float[Tensor, "T H D"], known: ForwardTensors, bounds: SequenceBounds, scale: float
    ) -> tuple[Float[Tensor, "T H D"], Float[Tensor, "U G D"], Float[Tensor, "U G D"]]:
        """See `VarlenKernel`."""
        gradients = tuple(torch.zeros_like(states) for states in known[:3])  # no query asks for some keys
        heads, groups = known.query.shape[1], known.key.shape[1]
        group = heads // groups
        for count, rows, seen in _runs(bounds):
            q, k, v = (
                _batch(states, count) for states in (known.query[rows], known.key[seen], known.value[seen])
            )
            q, k, v = _one_to_one(q, k, v, group, bounds.causal)
            above, output = (_batch(states[rows], count).reshape(q.shape) for states in (grad, known.output))
            lse = known.lse[:, rows].reshape(heads, count, -1).transpose(0, 1).reshape(q.shape[:3])
            of_query, *of_keys = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                above, q, k, v, output, lse, 0.0, bounds.causal, scale=scale
            )
            gradients[0][rows] = of_query.reshape(count, heads, -1, q.shape[-1]).transpose(1, 2).flatten(0, 1)
            for whole, part in zip(gradients[1:], of_keys, strict=True):
                summed = part.unflatten(1, (groups, -1)).sum(2) if part.shape[1] != groups else part
                whole[seen] = summed.transpose(1, 2).flatten(0, 1)
        return gradients[0], gradients[1], gradients[2]


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _runs(bounds: SequenceBounds) -> tuple[tuple[int, _Rows, _Rows], ...]:
    """The sequences by their lengths: how many are alike, and where their queries and keys lie."""
    alike: dict[tuple[int, int], list[tuple[range, range]]] = defaultdict(list)
    for own, seen in zip(
        *(starmap(range, pairwise(ends.tolist())) for ends in (bounds.queries, bounds.keys)), strict=True
    ):
        alike[len(own), len(seen)].append((own, seen))
    return tuple(
        (len(found), rows_at([own for own, _ in found]), rows_at([seen for _, seen in found]))
        for (queries, _), found in alike.items()
        if queries
    )


def _batch(states: Float[Tensor, "T H D"], count: int) -> Float[Tensor, "B H R D"]:
    return states.reshape(count, -1, *states.shape[1:]).transpose(1, 2)


def _one_to_one(
    q: Float[Tensor, "B H R D"],
    k: Float[Tensor, "B G K D"],
    v: Float[Tensor, "B G K D"],
    group: int,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gives every query head keys of its own, or stacks those that share keys, where their order is free."""
    if group == 1:
        return q, k, v
    if causal:
        return q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return q.reshape(len(q), k.shape[1], group * q.shape[2], -1), k, v
