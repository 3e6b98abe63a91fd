"""Attention over a shared prefix in two calls of a flash kernel for sequences of varying length.

The first call: every prefix and every branch attends to itself, causally; a prefix that has one branch is one sequence
with it, and done. The second: the branches of a tree attend to their prefix, without a mask, all of them as one
sequence of queries. Both softmaxes are put together by their log-sum-exps, as flash attention does with blocks (Dao et
al. 2022) and ring attention with devices (Liu et al. 2023). So the prefix's keys and values are read where they lie
and copied for no branch, and no mask is made.

Autograd cannot do this by itself: the kernels give no gradient of a log-sum-exp. None is needed: a backward that is
given the output and the log-sum-exp of the whole returns for each part its share of the gradient of the whole.

Letters: S tokens of the packed sequence, N branch tokens of all trees, P prefix tokens of all trees, T tokens of a
call's queries, U of its keys, H query heads, G key heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longrm.modeling.shapes import PackedLayout


@dataclass(frozen=True, slots=True, eq=False)
class SequenceBounds:
    """The bounds of the sequences in one call of a kernel: the index of every one's first query and key.

    One past the last of all follows these. Where the call is causal, a query sees the keys up to its own place only,
    else all keys of its sequence.
    """

    queries: Int[Tensor, " sequences+1"]
    keys: Int[Tensor, " sequences+1"]
    longest_queries: int
    longest_keys: int
    causal: bool

    @property
    def positional(self) -> tuple[Tensor, Tensor, int, int]:
        """The bounds and the longest lengths, in the order in which kernels take them."""
        return self.queries, self.keys, self.longest_queries, self.longest_keys


@dataclass(frozen=True, slots=True, eq=False)
class PrefixCall:
    """The call in which the tokens of `branches` are the queries, and those of `prefixes` the keys.

    Where there is one tree, both are slices, which copy nothing.
    """

    bounds: SequenceBounds
    branches: Int[Tensor, " N"] | slice
    prefixes: Int[Tensor, " P"] | slice


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """The calls for a layout.

    `own` is that of every sequence on itself, `before` that of branches on prefixes that have several, if any has;
    `ends` are the tokens that ask, if not all do.
    """

    own: SequenceBounds
    before: PrefixCall | None
    ends: Int[Tensor, " branches"] | None = None


class ForwardTensors(NamedTuple):
    """Inputs and results of a call, from which its gradients follow; `lse` are the log-sum-exps of the scores."""

    query: Float[Tensor, "T H D"]
    key: Float[Tensor, "U G D"]
    value: Float[Tensor, "U G D"]
    output: Float[Tensor, "T H D"]
    lse: Float[Tensor, "H T"]


class VarlenKernel(Protocol):
    """A flash kernel for sequences of varying length, laid end to end."""

    def forward(
        self,
        query: Float[Tensor, "T H D"],
        key: Float[Tensor, "U G D"],
        value: Float[Tensor, "U G D"],
        bounds: SequenceBounds,
        scale: float,
    ) -> tuple[Float[Tensor, "T H D"], Float[Tensor, "H T"]]:
        """Computes the output and the log-sum-exp of every query's scores."""

    def backward(
        self, grad: Float[Tensor, "T H D"], known: ForwardTensors, bounds: SequenceBounds, scale: float
    ) -> tuple[Float[Tensor, "T H D"], Float[Tensor, "U G D"], Float[Tensor, "U G D"]]:
        """Computes the gradients of queries, keys and values, from the output and log-sum-exps that it is given."""


@lru_cache(maxsize=4)
def calls_of(layout: PackedLayout, device: torch.device, only_ends: bool = False) -> Calls:
    """Returns the calls for a layout, computed once for all layers; with `only_ends` every branch's last token asks."""
    seen = [
        n for tree in layout.trees for n in ((tree.prefix, *tree.branches) if tree.forks else (tree.tokens,))
    ]
    asking, ends = seen, None
    if only_ends:  # the last token of a sequence sees all of it
        counts = [len(tree.branches) for tree in layout.trees]
        asking = [n for count in counts for n in ((0, *[1] * count) if count > 1 else (count,))]
        ends = torch.tensor(layout.branch_ends(), device=device)
    own = _bounds(asking, seen, device, causal=not only_ends)
    forks = [(start, tree) for start, tree in zip(layout.roots(), layout.trees, strict=True) if tree.forks]
    if not forks:
        return Calls(own, None, ends)
    queries, branches = _asking_branches(layout, only_ends)
    prefixes = [range(start, start + tree.prefix) for start, tree in forks]
    bounds = _bounds(queries, [len(prefix) for prefix in prefixes], device, causal=False)
    return Calls(own, PrefixCall(bounds, rows_at(branches, device), rows_at(prefixes, device)), ends)


def _asking_branches(layout: PackedLayout, only_ends: bool) -> tuple[list[int], list[range]]:
    """How many tokens of every fork's branches ask, and where they stand among all that ask."""
    places, start = [], 0
    for tree in layout.trees:
        count = len(tree.branches) if only_ends else tree.branch_tokens
        start += 0 if only_ends else tree.prefix
        if tree.forks:
            places.append(range(start, start + count))
        start += count
    return [len(place) for place in places], places


def _bounds(
    queries: Sequence[int], keys: Sequence[int], device: torch.device, *, causal: bool
) -> SequenceBounds:
    """The bounds of sequences of so many queries and keys."""
    of_queries, of_keys = (
        torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device) for counts in (queries, keys)
    )
    return SequenceBounds(of_queries, of_keys, max(queries), max(keys), causal)


def rows_at(places: Sequence[range], device: torch.device | None = None) -> Int[Tensor, " rows"] | slice:
    """A slice where the places follow upon each other, which copies nothing."""
    if all(one.stop == other.start for one, other in pairwise(places)):
        return slice(places[0].start, places[-1].stop)
    return torch.tensor([row for place in places for row in place], device=device)


@lru_cache(maxsize=4)
def _calls_after(before: int, lengths: tuple[int, ...], device: torch.device, only_ends: bool) -> Calls:
    """Returns the two calls for segments that continue the same tokens, of which none asks."""
    asking = tuple(1 for _ in lengths) if only_ends else lengths
    own = _bounds((0, *asking), (before, *lengths), device, causal=not only_ends)
    bounds = _bounds([sum(asking)], [before], device, causal=False)
    ends = torch.tensor([end - 1 for end in accumulate(lengths)], device=device) if only_ends else None
    return Calls(own, PrefixCall(bounds, slice(None), slice(before)), ends)


def segment_attention(
    kernel: VarlenKernel,
    query: Float[Tensor, "1 H R D"],
    key: Float[Tensor, "1 G S D"],
    value: Float[Tensor, "1 G S D"],
    lengths: Sequence[int],
    scaling: float | None,
    only_ends: bool = False,
) -> Float[Tensor, "1 R H D"]:
    """Computes the attention of segments, the last R of S tokens, to all tokens before them and each to itself.

    With `only_ends` it is computed for the last token of every segment, and zero elsewhere. The kernel must take
    sequences without queries.
    """
    with torch.inference_mode(False):
        calls = _calls_after(key.shape[2] - sum(lengths), tuple(lengths), query.device, only_ends)
    return _two_calls(kernel, query, key, value, calls, scaling)


def varlen_attention(
    kernel: VarlenKernel,
    query: Float[Tensor, "1 H S D"],
    key: Float[Tensor, "1 G S D"],
    value: Float[Tensor, "1 G S D"],
    layout: PackedLayout,
    scaling: float | None,
    only_ends: bool = False,
) -> Float[Tensor, "1 S H D"]:
    """Computes the attention of a packed sequence by a kernel for sequences of varying length.

    With `only_ends` it is computed for the last token of every branch, and zero elsewhere; the kernel must then take
    sequences without queries.
    """
    # A tensor that is made in inference mode would be refused later, when the cached calls serve training.
    with torch.inference_mode(False):
        calls = calls_of(layout, query.device, only_ends)
    return _two_calls(kernel, query, key, value, calls, scaling)


def _two_calls(
    kernel: VarlenKernel,
    query: Float[Tensor, "1 H T D"],
    key: Float[Tensor, "1 G S D"],
    value: Float[Tensor, "1 G S D"],
    calls: Calls,
    scaling: float | None,
) -> Float[Tensor, "1 T H D"]:
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    asking = query if calls.ends is None else query[:, :, calls.ends]
    q, k, v = (states[0].transpose(0, 1) for states in (asking, key, value))
    output: Tensor = _TwoCalls.apply(q, k, v, kernel, calls, scale)  # type: ignore[no-untyped-call]  # torch's own
    if calls.ends is None:
        return output[None]
    return torch.zeros_like(query.transpose(1, 2)).index_copy(1, calls.ends, output[None])


class _TwoCalls(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Float[Tensor, "S H D"],
        key: Float[Tensor, "S G D"],
        value: Float[Tensor, "S G D"],
        kernel: VarlenKernel,
        calls: Calls,
        scale: float,
    ) -> Float[Tensor, "S H D"]:
        output, lse = kernel.forward(query, key, value, calls.own, scale)
        if calls.before is not None:
            rows, seen = calls.before.branches, calls.before.prefixes
            before, before_lse = kernel.forward(
                query[rows], key[seen], value[seen], calls.before.bounds, scale
            )
            own_lse = lse[:, rows]
            share = torch.sigmoid(before_lse - own_lse).T.unsqueeze(-1)
            output[rows] = (share * before + (1 - share) * output[rows]).to(output.dtype)
            lse[:, rows] = torch.logaddexp(own_lse, before_lse)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.kernel, ctx.calls, ctx.scale = kernel, calls, scale
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        known = ForwardTensors(*ctx.saved_tensors)
        (grad,) = grads
        kernel, calls, scale = ctx.kernel, ctx.calls, ctx.scale
        gradients = kernel.backward(grad, known, calls.own, scale)
        if calls.before is not None:
            rows, seen = calls.before.branches, calls.before.prefixes
            of_branches = ForwardTensors(
                known.query[rows],
                known.key[seen],
                known.value[seen],
                known.output[rows],
                known.lse[:, rows].contiguous(),
            )
            more = kernel.backward(grad[rows], of_branches, calls.before.bounds, scale)
            for whole, tokens, part in zip(gradients, (rows, seen, seen), more, strict=True):
                whole[tokens] += part
        return *gradients, None, None, None


class TorchKernel:
    """The kernel behind `torch.nn.attention.varlen`, which itself hands over no backward for a part of a softmax."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bounds: SequenceBounds, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `VarlenKernel`."""
        output, lse, *_ = torch.ops.aten._flash_attention_forward(
            query, key, value, *bounds.positional, 0.0, bounds.causal, False, scale=scale
        )
        return output, lse

    def backward(
        self, grad: Tensor, known: ForwardTensors, bounds: SequenceBounds, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `VarlenKernel`."""
        # The state of dropout, of which there is none.
        state = torch.zeros(2, dtype=torch.uint64, device=grad.device)
        unused = torch.empty(0, device=grad.device)
        of_query, of_key, of_value = torch.ops.aten._flash_attention_backward(
            grad, *known, *bounds.positional, 0.0, bounds.causal, state, unused, scale=scale
        )
        return of_query, of_key, of_value


class FlashAttnKernel:
    """The kernel of the package flash-attn, 2.7 or later."""

    def __init__(self) -> None:
        from flash_attn import flash_attn_interface  # late: few machines have it

        self._interface: Any = flash_attn_interface

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bounds: SequenceBounds, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `VarlenKernel`."""
        output, lse, *_ = self._interface._flash_attn_varlen_forward(
            query, key, value, *bounds.positional, dropout_p=0.0, softmax_scale=scale, causal=bounds.causal
        )
        return output, lse

    def backward(
        self, grad: Tensor, known: ForwardTensors, bounds: SequenceBounds, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `VarlenKernel`."""
        of_query, of_key, of_value = (torch.empty_like(states) for states in known[:3])
        self._interface._flash_attn_varlen_backward(
            grad,
            *known,
            of_query,
            of_key,
            of_value,
            *bounds.positional,
            dropout_p=0.0,
            softmax_scale=scale,
            causal=bounds.causal,
            window_size_left=-1,
            window_size_right=-1,
            softcap=0.0,
            alibi_slopes=None,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        return of_query, of_key, of_value
