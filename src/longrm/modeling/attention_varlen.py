"""Attention over a shared prefix in two calls of a flash kernel for sequences of varying length, and that of CPUs.

**The calls.** First, every prefix and every branch attends causally to itself; a prefix with a single branch is one
plain sequence with it, and done. Second, the branches of a tree attend to their prefix without a mask, all of them as
one sequence of queries: every branch token sees the whole prefix, so causality needs no mask there. Thus the prefix's
keys and values are read where they are and copied for no branch, and no mask is built.

**The merge.** A query's scores over own keys (1) and prefix keys (2) are halves of one softmax. From each call come its
output o = sum_j softmax(s)_j v_j and lse = log sum_j exp(s_j). The softmax over both is their mean, weighted by
exp(lse):

    output = (exp(lse1) o1 + exp(lse2) o2) / (exp(lse1) + exp(lse2)) = (1 - share) o1 + share o2
    share  = sigmoid(lse2 - lse1)              lse = logaddexp(lse1, lse2)

as flash attention merges blocks (Dao et al. 2022) and ring attention merges devices (Liu et al. 2023).

**The gradient.** Autograd cannot differentiate this, as the kernels give no gradient of an lse. None is needed. Flash
attention's backward recomputes P = exp(s - lse) and dS = P * (dO v^T - rowsum(dO * O)). Given the output and lse of the
*whole* softmax, a call on some of the keys returns exactly their part of the whole gradient; parts are added.

To add to every path: a soft cap and a window are arguments of the kernels; for the second call a window has to be
shifted by the distance between branch and prefix. An attention sink is one more term of the merge, with lse = the sink
and o = 0.

Shapes: S tokens of the packed sequence, N branch tokens and P prefix tokens of trees that fork, T query tokens of a
call, U key tokens, H query heads, G key heads, D head size, B sequences of equal length.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, starmap
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longrm.modeling.shapes import PackedLayout

# Heads before tokens, as transformers calls attention; `Keys` is the type of values, too. The output has tokens first.
Queries = Float[Tensor, "1 H S D"]
Keys = Float[Tensor, "1 G S D"]
Output = Float[Tensor, "1 S H D"]

# Tokens before heads and no batch, as varlen kernels take them.
FlatQueries = Float[Tensor, "T H D"]
FlatKeys = Float[Tensor, "U G D"]
LogSumExps = Float[Tensor, "H T"]

Rows = Int[Tensor, " rows"] | slice
"""Indices of tokens; a slice where they are contiguous, which copies nothing."""


@dataclass(frozen=True, slots=True, eq=False)  # no eq: hashed by identity, as a key of caches
class SequenceBounds:
    """Where each sequence of a call begins among its queries and keys, with one past the last as a final entry.

    If `causal`, a query sees the keys up to its own position in the sequence, else all keys of its sequence.
    """

    queries: Int[Tensor, " sequences+1"]
    keys: Int[Tensor, " sequences+1"]
    longest_queries: int
    longest_keys: int
    causal: bool

    @property
    def positional(self) -> tuple[Tensor, Tensor, int, int]:
        """Bounds and longest lengths, in the order in which CUDA kernels take them."""
        return self.queries, self.keys, self.longest_queries, self.longest_keys


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """The calls for a layout."""

    own: SequenceBounds  # the first call: every sequence on itself
    # The second call: branches on prefixes that several branches continue; None if there is no such prefix.
    on_prefix: SequenceBounds | None
    branches: Rows  # the queries of the second call among those of the first
    prefixes: Rows  # the keys of the second call among those of the first
    ends: Int[Tensor, " branches"] | None  # the tokens that are queries, if not all are


class Attended(NamedTuple):
    """Inputs and results of a call, which its gradient is computed from."""

    query: FlatQueries
    key: FlatKeys
    value: FlatKeys
    output: FlatQueries
    lse: LogSumExps


class VarlenKernel(Protocol):
    """A flash kernel for sequences of varying length, laid end to end."""

    def forward(
        self, query: FlatQueries, key: FlatKeys, value: FlatKeys, bounds: SequenceBounds, scale: float
    ) -> tuple[FlatQueries, LogSumExps]:
        """Returns the output and the log-sum-exp of every query's scores."""

    def backward(
        self, grad: FlatQueries, attended: Attended, bounds: SequenceBounds, scale: float
    ) -> tuple[FlatQueries, FlatKeys, FlatKeys]:
        """Returns the gradients of queries, keys and values; output and lse may be those of more keys than these."""


def varlen_attention(
    kernel: VarlenKernel,
    query: Queries,
    key: Keys,
    value: Keys,
    layout: PackedLayout,
    scale: float,
    only_ends: bool = False,
) -> Output:
    """Computes the attention of a packed sequence.

    With `only_ends`, only for the last token of every branch: the rest of the output is zero, and the kernel must
    accept sequences without queries.
    """
    # The cached plan may serve training later, where tensors made in inference mode are refused.
    with torch.inference_mode(False):
        calls = plan_calls(layout, query.device, only_ends)
    return _attend(kernel, query, key, value, calls, scale)


def varlen_segments(
    kernel: VarlenKernel,
    query: Float[Tensor, "1 H R D"],
    key: Keys,
    value: Keys,
    lengths: Sequence[int],
    scale: float,
    only_ends: bool = False,
) -> Float[Tensor, "1 R H D"]:
    """Computes the attention of segments, the last R of S tokens, to all tokens before them and each to itself.

    `only_ends` as in `varlen_attention`.
    """
    with torch.inference_mode(False):
        calls = _plan_segments(key.shape[2] - sum(lengths), tuple(lengths), query.device, only_ends)
    return _attend(kernel, query, key, value, calls, scale)


@lru_cache(maxsize=4)
def plan_calls(layout: PackedLayout, device: torch.device, only_ends: bool = False) -> Calls:
    """Returns the calls for a layout, computed once for all layers of a forward pass."""
    queries: list[int] = []  # of every sequence of the first call: how many of its tokens are queries
    keys: list[int] = []
    branches: list[range] = []
    prefixes: list[range] = []
    for root, tree in zip(layout.roots(), layout.trees, strict=True):
        lengths = (tree.prefix, *tree.branches) if tree.forks else (tree.tokens,)
        query_lengths = lengths
        if only_ends:  # one query per branch, its last token; none for a prefix that is a sequence of its own
            query_lengths = (0, *(1 for _ in tree.branches)) if tree.forks else (1,)
        if tree.forks:
            first = sum(queries) + query_lengths[0]
            branches.append(range(first, first + sum(query_lengths[1:])))
            prefixes.append(range(root, root + tree.prefix))
        queries += query_lengths
        keys += lengths
    ends = torch.tensor(layout.branch_ends(), device=device) if only_ends else None
    # The last token of a sequence sees all of it, so that without the other queries there is nothing to mask.
    own = _bounds(queries, keys, device, causal=not only_ends)
    if not prefixes:
        return Calls(own, None, slice(0), slice(0), ends)
    on_prefix = _bounds(
        [len(part) for part in branches], [len(part) for part in prefixes], device, causal=False
    )
    return Calls(own, on_prefix, rows_at(branches, device), rows_at(prefixes, device), ends)


@lru_cache(maxsize=4)
def _plan_segments(before: int, lengths: tuple[int, ...], device: torch.device, only_ends: bool) -> Calls:
    """Returns the calls for segments that continue the same `before` tokens, of which none is a query."""
    queries = tuple(1 for _ in lengths) if only_ends else lengths
    own = _bounds((0, *queries), (before, *lengths), device, causal=not only_ends)
    on_prefix = _bounds([sum(queries)], [before], device, causal=False)
    ends = torch.tensor([end - 1 for end in accumulate(lengths)], device=device) if only_ends else None
    return Calls(own, on_prefix, slice(None), slice(before), ends)


def _bounds(
    queries: Sequence[int], keys: Sequence[int], device: torch.device, *, causal: bool
) -> SequenceBounds:
    begins = [torch.tensor([0, *accumulate(n)], dtype=torch.int32, device=device) for n in (queries, keys)]
    return SequenceBounds(begins[0], begins[1], max(queries), max(keys), causal)


def rows_at(places: Sequence[range], device: torch.device | None = None) -> Rows:
    """The indices in all places: a slice where each place follows the one before."""
    if all(before.stop == after.start for before, after in pairwise(places)):
        return slice(places[0].start, places[-1].stop)
    return torch.tensor([row for place in places for row in place], device=device)


def _attend(
    kernel: VarlenKernel, query: Queries, key: Keys, value: Keys, calls: Calls, scale: float
) -> Output:
    queried = query if calls.ends is None else query[:, :, calls.ends]
    q, k, v = (states[0].transpose(0, 1) for states in (queried, key, value))  # [1, H, T, D] -> [T, H, D]
    output: Tensor = _TwoCalls.apply(q, k, v, kernel, calls, scale)  # type: ignore[no-untyped-call]  # torch's own
    if calls.ends is None:
        return output[None]
    return torch.zeros_like(query.transpose(1, 2)).index_copy(1, calls.ends, output[None])


class _TwoCalls(torch.autograd.Function):
    """The two calls, their merge and its gradient; see the module."""

    @staticmethod
    def forward(
        ctx: Any,
        query: FlatQueries,
        key: FlatKeys,
        value: FlatKeys,
        kernel: VarlenKernel,
        calls: Calls,
        scale: float,
    ) -> FlatQueries:
        output, lse = kernel.forward(query, key, value, calls.own, scale)
        if calls.on_prefix is not None:
            rows, seen = calls.branches, calls.prefixes
            on_prefix, prefix_lse = kernel.forward(
                query[rows], key[seen], value[seen], calls.on_prefix, scale
            )
            own_lse = lse[:, rows]  # [H, N]
            share = torch.sigmoid(prefix_lse - own_lse).T.unsqueeze(-1)  # [N, H, 1]
            output[rows] = (share * on_prefix + (1 - share) * output[rows]).to(output.dtype)
            lse[:, rows] = torch.logaddexp(own_lse, prefix_lse)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.kernel, ctx.calls, ctx.scale = kernel, calls, scale
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kernel, calls, scale = ctx.kernel, ctx.calls, ctx.scale
        (grad,) = grads
        # With the merged output and lse, each call returns its keys' part of the whole gradient.
        query, key, value, output, lse = merged = Attended(*ctx.saved_tensors)
        gradients = kernel.backward(grad, merged, calls.own, scale)
        if calls.on_prefix is not None:
            rows, seen = calls.branches, calls.prefixes
            part = Attended(query[rows], key[seen], value[seen], output[rows], lse[:, rows].contiguous())
            on_prefix = kernel.backward(grad[rows], part, calls.on_prefix, scale)
            for total, tokens, added in zip(gradients, (rows, seen, seen), on_prefix, strict=True):
                total[tokens] += added
        return *gradients, None, None, None


_LONG = 1024
"""Keys below which torch's backward kernel is 2 to 3.5 times slower in bf16 than in fp32, on a CPU with AMX."""


class CpuKernel:
    """The flash kernel of `scaled_dot_product_attention` on a CPU; called directly it returns log-sum-exps, too.

    It takes batches, so sequences of equal lengths are computed as one. It has no grouped heads: without a mask the
    query heads of a group are stacked as more queries of one head, as their order is free; causally it is not, and the
    keys are repeated.
    """

    def forward(
        self, query: FlatQueries, key: FlatKeys, value: FlatKeys, bounds: SequenceBounds, scale: float
    ) -> tuple[FlatQueries, LogSumExps]:
        """See `VarlenKernel`."""
        heads = query.shape[1]
        output = torch.empty_like(query)
        # The kernel's log-sum-exps are fp32 for every dtype but fp64.
        lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        lse = torch.empty(heads, len(query), dtype=lse_dtype)
        for count, rows, seen in _batches(bounds):
            q, k, v = _batch(query[rows], count), _batch(key[seen], count), _batch(value[seen], count)
            # The kernel is a tenth slower on strided heads; backward, there is no memory to spare for copies.
            q, k, v = (states.contiguous() for states in _one_to_one(q, k, v, bounds.causal))
            part, part_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, is_causal=bounds.causal, scale=scale
            )
            # [B, G, H/G * R, D] or [B, H, R, D] -> [B, H, R, D] -> [B * R, H, D]
            output[rows] = part.reshape(count, heads, -1, part.shape[-1]).transpose(1, 2).flatten(0, 1)
            lse[:, rows] = part_lse.reshape(count, heads, -1).transpose(0, 1).flatten(1)  # [H, B * R]
        return output, lse

    def backward(
        self, grad: FlatQueries, attended: Attended, bounds: SequenceBounds, scale: float
    ) -> tuple[FlatQueries, FlatKeys, FlatKeys]:
        """See `VarlenKernel`."""
        query, key, value, output, lse = attended
        # Zeros, as keys of sequences without queries get no gradient below.
        query_grad, key_grad, value_grad = (torch.zeros_like(states) for states in (query, key, value))
        heads, groups = query.shape[1], key.shape[1]
        for count, rows, seen in _batches(bounds):
            q, k, v = _batch(query[rows], count), _batch(key[seen], count), _batch(value[seen], count)
            q, k, v = _one_to_one(q, k, v, bounds.causal)
            # In the shape of q: a group's heads are stacked there, too.
            part_grad, part_output = (
                _batch(states[rows], count).reshape(q.shape) for states in (grad, output)
            )
            part_lse = lse[:, rows].reshape(heads, count, -1).transpose(0, 1).reshape(q.shape[:3])
            if k.shape[2] < _LONG and k.dtype == torch.bfloat16:
                part_grad, q, k, v, part_output = (
                    states.float() for states in (part_grad, q, k, v, part_output)
                )
            of_query, *of_keys = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                part_grad, q, k, v, part_output, part_lse, 0.0, bounds.causal, scale=scale
            )
            query_grad[rows] = (
                of_query.reshape(count, heads, -1, q.shape[-1]).transpose(1, 2).flatten(0, 1).to(query.dtype)
            )
            for total, part in zip((key_grad, value_grad), of_keys, strict=True):  # [B, G or H, K, D]
                # Where keys were repeated for the heads of a group, the group's gradients are added.
                summed = part.unflatten(1, (groups, -1)).sum(2) if part.shape[1] != groups else part
                total[seen] = summed.transpose(1, 2).flatten(0, 1).to(total.dtype)
        return query_grad, key_grad, value_grad


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _batches(bounds: SequenceBounds) -> tuple[tuple[int, Rows, Rows], ...]:
    """Sequences of equal lengths together: how many, and where their queries and keys are."""
    alike: dict[tuple[int, int], list[tuple[range, range]]] = defaultdict(list)
    queries, keys = (starmap(range, pairwise(ends.tolist())) for ends in (bounds.queries, bounds.keys))
    for own, seen in zip(queries, keys, strict=True):
        if own:
            alike[len(own), len(seen)].append((own, seen))
    return tuple(
        (len(found), rows_at([own for own, _ in found]), rows_at([seen for _, seen in found]))
        for found in alike.values()
    )


def _batch(states: FlatQueries, count: int) -> Float[Tensor, "B H R D"]:
    # [B * R, H, D] -> [B, H, R, D]
    return states.reshape(count, -1, *states.shape[1:]).transpose(1, 2)


def _one_to_one(
    q: Float[Tensor, "B H R D"], k: Float[Tensor, "B G K D"], v: Float[Tensor, "B G K D"], causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gives every query head a key head: repeats keys if causal, else stacks the queries of a group."""
    group = q.shape[1] // k.shape[1]
    if group == 1:
        return q, k, v
    if causal:
        return q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return q.reshape(len(q), k.shape[1], group * q.shape[2], -1), k, v
