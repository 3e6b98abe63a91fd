"""Attention over trees in calls of a flash kernel for sequences of varying length, and one for any device.

**The calls.** First, every node attends causally to itself; a node with a single branch is one plain sequence with it.
Then, for each level of the tree, all tokens below a node attend to that node without a mask, as one sequence of
queries: each of them sees the whole node, so causality needs no mask there, and nodes of a level have no descendants in
common. A prompt with responses has one level, and two calls. Thus keys and values of a node are read where they are
and copied for no branch, and no mask is built.

                     keys            queries
    own              every node      its own, causally
    level 0          p               a, c, d, b               p +- a +- c
    level 1          a               c, d                       |    +- d
                                                                +- b

Cached tokens are a level above the root, all of them keys and none of them queries.

**The merge.** A query's scores over own keys (1) and those of a level (2) are parts of one softmax. From each call come
its output o = sum_j softmax(s)_j v_j and lse = log sum_j exp(s_j). The softmax over both is their mean, weighted by
exp(lse):

    output = (exp(lse1) o1 + exp(lse2) o2) / (exp(lse1) + exp(lse2)) = (1 - share) o1 + share o2
    share  = sigmoid(lse2 - lse1)              lse = logaddexp(lse1, lse2)

level after level, as flash attention merges blocks (Dao et al. 2022) and ring attention merges devices (Liu et al.
2023).

**The gradient.** Autograd cannot differentiate this, as the kernels give no gradient of an lse. None is needed. Flash
attention's backward recomputes P = exp(s - lse) and dS = P * (dO v^T - rowsum(dO * O)). Given the output and lse of the
*whole* softmax, a call on some of the keys returns exactly their part of the whole gradient; parts are added.

**A window.** Where a layer sees the last w tokens only, one call is enough: the keys of a node are its own and the last
w - 1 tokens above it, which are copied for it and may be in several nodes. Causality and window count from the last
key, as in flash-attn since 2.1: query i of R sees keys i + U - R - w + 1 to i + U - R of U.

**A sink** (gpt-oss) is one more score per head, with the value zero. It is merged once, as a part with lse = the sink
and o = 0; the backward pass of the kernels needs only the lse that includes it.

Shapes: S tokens of the packed sequence, N query tokens of a level, T query tokens of a call, U key tokens, H query
heads, G key heads, D head size, B sequences of equal length.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from itertools import accumulate, pairwise, starmap
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

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


Results = list[tuple[FlatQueries, LogSumExps]] | Iterator[tuple[FlatQueries, LogSumExps]] | None

_results: ContextVar[Results] = ContextVar("results", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionSpec:
    """What the attention of a layer computes, as transformers passes it; which token sees which node is the layout's.

    Attributes:
        scale: Scores are `scale` times the product of query and key.
        window: How many tokens a query sees, itself included; None for all.
        softcap: Scores s become softcap * tanh(s / softcap).
        sinks: One more score per head, which takes its share of the softmax and has no value.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Float[Tensor, " H"] | None = None

    @property
    def plain(self) -> bool:
        """Whether it is the attention that `scaled_dot_product_attention` computes."""
        return self.window is None and self.softcap is None and self.sinks is None

    def within(self, tokens: int) -> "AttentionSpec":
        """The same for sequences of at most this many tokens, without a window if that shows all of them."""
        return self if self.window is None or self.window < tokens else replace(self, window=None)

    def softmax(
        self, scores: Float[Tensor, "G H/G *R K"], sees: Bool[Tensor, "R K"] | None = None
    ) -> Float[Tensor, "G H/G *R K"]:
        """The softmax of a layer's scaled scores; `sees` is the mask, window included."""
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if sees is not None:
            scores = scores.masked_fill(~sees, -torch.inf)
        if self.sinks is None:
            return scores.softmax(dim=-1)
        sinks = self.sinks.to(scores.dtype).reshape(*scores.shape[:2], *[1] * (scores.ndim - 2))
        return torch.cat([scores, sinks.expand_as(scores[..., :1])], dim=-1).softmax(dim=-1)[..., :-1]


@dataclass(frozen=True, slots=True, eq=False)  # no eq: hashed by identity, as a key of caches
class SequenceBounds:
    """Where each sequence of a call begins among its queries and keys, with one past the last as a final entry.

    If `causal`, the last query of a sequence sees all its keys, each one before it one key less, and with a window only
    the last `window` of these; else every query sees all keys of its sequence.
    """

    queries: Int[Tensor, " sequences+1"]
    keys: Int[Tensor, " sequences+1"]
    longest_queries: int
    longest_keys: int
    causal: bool
    window: int | None = None
    used: Int[Tensor, " sequences"] | None = None  # a sequence has only its first so many keys; None for all

    @property
    def positional(self) -> tuple[Tensor, Tensor, int, int]:
        """Bounds and longest lengths, in the order in which CUDA kernels take them."""
        return self.queries, self.keys, self.longest_queries, self.longest_keys


@dataclass(frozen=True, slots=True, eq=False)
class LevelCall:
    """The call of a level: all that is below each of its nodes on that node."""

    bounds: SequenceBounds
    queries: Rows  # among those of the first call
    keys: Rows  # among those of all tokens


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """The calls for a layout."""

    own: SequenceBounds  # the first call: every node on itself, and with a window also on the end of the nodes above it
    keys: Sequence[range]  # the keys of the first call among those of all tokens
    levels: Sequence[LevelCall]  # from the root down; none with a window, or if no tree forks
    ends: Int[Tensor, " branches"] | None  # the tokens that are queries, if not all are


@dataclass(frozen=True, slots=True, eq=False)
class RangeCalls:
    """The call for tokens of different sequences, each of which sees some ranges of keys."""

    bounds: SequenceBounds  # of pieces of the keys, each with the tokens that see it as queries
    keys: slice  # from the first piece to the last
    rows: Int[Tensor, " T"]  # the token of every query
    parts: Int[Tensor, "N parts"]  # the queries of every token; T fills up the rows


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
        self, query: FlatQueries, key: FlatKeys, value: FlatKeys, bounds: SequenceBounds, spec: AttentionSpec
    ) -> tuple[FlatQueries, LogSumExps]:
        """Returns the output and the log-sum-exp of every query's scores: `spec` gives scale and soft cap only."""

    def backward(
        self, grad: FlatQueries, attended: Attended, bounds: SequenceBounds, spec: AttentionSpec
    ) -> tuple[FlatQueries, FlatKeys, FlatKeys]:
        """Returns the gradients of queries, keys and values; output and lse may be those of more keys than these."""


def varlen_attention(
    kernel: VarlenKernel,
    query: Queries,
    key: Keys,
    value: Keys,
    layout: PackedLayout,
    spec: AttentionSpec,
    only_ends: bool = False,
) -> Output:
    """Computes the attention of a packed sequence.

    With `only_ends`, only for the last token of every branch: the rest of the output is zero, and the kernel must
    accept sequences without queries.
    """
    # The cached plan may serve training later, where tensors made in inference mode are refused.
    with torch.inference_mode(False):
        calls = plan_calls(layout, query.device, only_ends, spec.window)
    return _attend(kernel, query, key, value, calls, spec)


@lru_cache(maxsize=8)
def plan_calls(
    layout: PackedLayout, device: torch.device, only_ends: bool = False, window: int | None = None
) -> Calls:
    """Returns the calls for a layout, computed once for all layers of a kind in a forward pass.

    A tree with cached tokens is alone; its keys begin with theirs. With `only_ends`, the last token of every leaf is a
    query, and nothing else.
    """
    cached, nodes, ends = layout.trees[0].cached, layout.nodes(joined=True), layout.branch_ends()
    assert not cached or len(layout.trees) == 1

    def queries(begin: int, end: int) -> range:
        """The numbers of the queries among some tokens."""
        return range(bisect_left(ends, begin), bisect_left(ends, end)) if only_ends else range(begin, end)

    counts: list[int] = []  # queries and keys of every sequence of the first call
    key_counts: list[int] = []
    places: list[range] = []
    # The keys and queries of every level.
    levels: dict[int, list[tuple[range, range]]] = defaultdict(list)
    if cached and window is None:
        levels[0].append((range(cached), queries(0, layout.tokens)))
    above: list[list[range]] = []  # the keys of all nodes above each node, and its own
    for node in nodes:
        path = [range(cached)] * bool(cached) if node.parent is None else above[node.parent]
        own, asking = range(node.begin + cached, node.end + cached), queries(node.begin, node.end)
        above.append([*path, own])
        if window is None and own and node.reach > node.end:
            levels[len(path)].append((own, queries(node.end, node.reach)))
        if not asking:
            continue
        tail: list[range] = []
        if window is not None:
            own = own[-window:] if only_ends else own
            room = window - (1 if not only_ends else len(own))  # what the first query sees above the node
            for seen in reversed(path):
                tail.insert(0, seen[max(0, len(seen) - room) :])
                room -= len(tail[0])
        counts.append(len(asking))
        key_counts.append(sum(map(len, tail)) + len(own))
        for place in (*tail, own):
            if places and places[-1].stop == place.start:
                places[-1] = range(places[-1].start, place.stop)
            elif place:
                places.append(place)
    return Calls(
        # The last token of a sequence sees all of it, so that without the other queries there is nothing to mask.
        _bounds(counts, key_counts, device, causal=not only_ends, window=window),
        places,
        [
            LevelCall(
                _bounds(
                    [len(asking) for _, asking in pairs], [len(own) for own, _ in pairs], device, causal=False
                ),
                rows_at([asking for _, asking in pairs], device),
                rows_at([own for own, _ in pairs], device),
            )
            for _, pairs in sorted(levels.items())
        ],
        torch.tensor(ends, device=device) if only_ends else None,
    )


def _bounds(
    queries: Sequence[int],
    keys: Sequence[int],
    device: torch.device,
    *,
    causal: bool,
    window: int | None = None,
) -> SequenceBounds:
    begins = [torch.tensor([0, *accumulate(n)], dtype=torch.int32, device=device) for n in (queries, keys)]
    return SequenceBounds(begins[0], begins[1], max(queries), max(keys), causal, window if causal else None)


_SPLIT = 2048
"""Keys of a piece on a GPU, which reads the pieces of one sequence in parallel (flash decoding, Dao et al. 2023)."""


def plan_ranges(
    seen: Sequence[Sequence[range]], device: torch.device, split: int | None = None
) -> RangeCalls:
    """Returns the call for tokens, given by the keys that each one sees.

    Keys are cut wherever a range begins or ends, so that all queries of a piece see all of it, and at multiples of
    `split`, by default on a GPU only.
    """
    split = split or (2**62 if device.type == "cpu" else _SPLIT)
    cuts = sorted(
        {
            cut
            for ranges in seen
            for place in ranges
            for cut in (place.start, place.stop, *range(-(-place.start // split) * split, place.stop, split))
        }
    )
    rows: dict[int, list[int]] = {cut: [] for cut in cuts}  # the tokens that see the piece after a cut
    number = {cut: piece for piece, cut in enumerate(cuts)}
    for row, ranges in enumerate(seen):
        for place in ranges:
            for cut in cuts[number[place.start] : number[place.stop]]:
                rows[cut].append(row)
    pieces = [range(*ends) for ends in pairwise(cuts) if rows[ends[0]]]
    queries = [row for piece in pieces for row in rows[piece.start]]
    parts: list[list[int]] = [[] for _ in seen]
    for query, row in enumerate(queries):
        parts[row].append(query)
    most = max(map(len, parts))
    # A piece reaches to the next one, and what no token sees between them is not used. A sequence without queries would
    # do as well, but not for flash kernels, which swap queries and heads where all sequences have one query.
    ends = [*(piece.start for piece in pieces[1:]), cuts[-1]]
    reach = [end - piece.start for piece, end in zip(pieces, ends, strict=True)]
    bounds = _bounds([len(rows[piece.start]) for piece in pieces], reach, device, causal=False)
    lengths = [len(piece) for piece in pieces]
    if lengths != reach:
        used = torch.tensor(lengths, dtype=torch.int32, device=device)
        bounds = replace(bounds, longest_keys=max(lengths), used=used)
    return RangeCalls(
        bounds,
        slice(cuts[0], cuts[-1]),
        torch.tensor(queries, device=device),
        torch.tensor([own + [len(queries)] * (most - len(own)) for own in parts], device=device),
    )


def varlen_ranges(
    kernel: VarlenKernel,
    query: Float[Tensor, "1 H N D"],
    key: FlatKeys,
    value: FlatKeys,
    calls: RangeCalls,
    spec: AttentionSpec,
) -> Float[Tensor, "1 N H D"]:
    """Computes the attention of N tokens to the ranges of keys that each one sees; there is no gradient.

    A token's pieces are parts of one softmax, and so is its sink; see "The merge" above.
    """
    queries = query[0].transpose(0, 1)[calls.rows]  # [T, H, D]
    output, lse = kernel.forward(queries, key[calls.keys], value[calls.keys], calls.bounds, spec)
    # One more query, which sees nothing, for tokens with fewer pieces than others.
    found = functional.pad(output, (0, 0, 0, 0, 0, 1))[calls.parts]  # [N, parts, H, D]
    sums = functional.pad(lse, (0, 1), value=-torch.inf)[:, calls.parts]  # [H, N, parts]
    if spec.sinks is not None:
        sinks = spec.sinks.to(lse.dtype)[:, None, None].expand_as(sums[..., :1])
        sums = torch.cat([sums, sinks], dim=-1)
    shares = sums.softmax(dim=-1)[..., : found.shape[1]].permute(1, 2, 0)[..., None]
    return (shares * found).sum(dim=1).to(output.dtype)[None]


def rows_at(places: Sequence[range], device: torch.device | None = None) -> Rows:
    """The indices in all places: a slice where each place follows the one before."""
    if all(before.stop == after.start for before, after in pairwise(places)):
        return slice(places[0].start, places[-1].stop)
    return torch.cat([torch.arange(place.start, place.stop, device=device) for place in places])


def _attend(
    kernel: VarlenKernel, query: Queries, key: Keys, value: Keys, calls: Calls, spec: AttentionSpec
) -> Output:
    queried = query if calls.ends is None else query[:, :, calls.ends]
    q, k, v = (states[0].transpose(0, 1) for states in (queried, key, value))  # [1, H, T, D] -> [T, H, D]
    output: Tensor = _Calls.apply(q, k, v, spec.sinks, kernel, calls, spec)  # type: ignore[no-untyped-call]  # torch's
    if calls.ends is None:
        return output[None]
    zeros = output.new_zeros(1, query.shape[2], *output.shape[1:])
    return zeros.index_copy(1, calls.ends, output[None])


@contextmanager
def using_results(results: Results) -> Iterator[None]:
    """Within this context, attention adds its results to a list or takes them from an iterator; None ends that."""
    token = _results.set(results)
    try:
        yield
    finally:
        _results.reset(token)


def keep_results() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The `context_fn` of `torch.utils.checkpoint` for layers whose attention is computed once.

    Returns the context of the forward pass, where outputs and log-sum-exps are kept, and that of the second one, which
    takes them in the same order instead of calling kernels.
    """
    results: list[tuple[FlatQueries, LogSumExps]] = []
    return using_results(results), using_results(iter(results))


class _Calls(torch.autograd.Function):
    """The calls, their merge and its gradient; see the module."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> FlatQueries:
        results = _results.get()
        if isinstance(results, Iterator):
            output, lse = next(results)
            output = output.detach()  # it is part of the graph of the first pass
        else:
            output, lse = _merged(*inputs)
            if results is not None and any(ctx.needs_input_grad):
                results.append((output, lse))
        query, key, value, sinks, kernel, calls, spec = inputs
        ctx.save_for_backward(query, key, value, output, lse, *(() if sinks is None else (sinks,)))
        ctx.kernel, ctx.calls, ctx.spec = kernel, calls, spec
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kernel, calls, spec = ctx.kernel, ctx.calls, ctx.spec
        (grad,) = grads
        query, key, value, output, lse, *sinks = ctx.saved_tensors
        # With the merged output and lse, each call returns its keys' part of the whole gradient.
        own = Attended(query, gathered(key, calls.keys), gathered(value, calls.keys), output, lse)
        of_query, *of_keys = kernel.backward(grad, own, calls.own, spec)
        of_key, of_value = (_put_back(part, calls.keys, len(key)) for part in of_keys)
        for level in calls.levels:
            rows, seen = level.queries, level.keys
            part = Attended(query[rows], key[seen], value[seen], output[rows], lse[:, rows].contiguous())
            of_level = kernel.backward(grad[rows], part, level.bounds, spec)
            totals = (of_query, of_key, of_value)
            for total, tokens, added in zip(totals, (rows, seen, seen), of_level, strict=True):
                total[tokens] += added
        of_sinks = None
        if sinks:  # the value of a sink is zero, so the gradient by its score is -share * (grad . output)
            share = (sinks[0].to(lse.dtype)[:, None] - lse).exp()  # [H, T]
            products = (grad.to(lse.dtype) * output).sum(-1).T
            of_sinks = -(share * products).sum(1).to(sinks[0].dtype)
        return of_query, of_key, of_value, of_sinks, None, None, None


def _merged(
    query: FlatQueries,
    key: FlatKeys,
    value: FlatKeys,
    sinks: Float[Tensor, " H"] | None,
    kernel: VarlenKernel,
    calls: Calls,
    spec: AttentionSpec,
) -> tuple[FlatQueries, LogSumExps]:
    """The output and the log-sum-exp of all calls."""
    own_key, own_value = gathered(key, calls.keys), gathered(value, calls.keys)
    output, lse = kernel.forward(query, own_key, own_value, calls.own, spec)
    dtype = output.dtype
    if len(calls.levels) > 1:  # rounded once, not after every level
        output = output.to(lse.dtype)
    for level in calls.levels:
        rows, seen = level.queries, level.keys
        of_level, level_lse = kernel.forward(query[rows], key[seen], value[seen], level.bounds, spec)
        lse_before = lse[:, rows]  # [H, N]
        share = torch.sigmoid(level_lse - lse_before).T.unsqueeze(-1)  # [N, H, 1]
        output[rows] = (share * of_level + (1 - share) * output[rows]).to(output.dtype)
        lse[:, rows] = torch.logaddexp(lse_before, level_lse)
    output = output.to(dtype)
    if sinks is not None:
        sink = sinks.to(lse.dtype)[:, None]
        output = (output * torch.sigmoid(lse - sink).T.unsqueeze(-1)).to(output.dtype)
        lse = torch.logaddexp(lse, sink)
    return output, lse


def gathered(states: FlatKeys, places: Sequence[range]) -> FlatKeys:
    """The rows at some places; one place is not copied."""
    parts = [states[place.start : place.stop] for place in places]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _put_back(part: FlatKeys, places: Sequence[range], tokens: int) -> FlatKeys:
    """The gradient of all keys from that of those taken; in slices, as `index_add_` has no fixed order on CUDA."""
    if len(part) == tokens and len(places) == 1:
        return part
    total = part.new_zeros(tokens, *part.shape[1:])
    for place, own in zip(places, torch.split(part, [len(place) for place in places]), strict=True):
        total[place.start : place.stop] += own
    return total


_LONG = 1024
"""Keys below which torch's backward kernel is 2 to 3.5 times slower in bf16 than in fp32, on a CPU with AMX."""

_FEW = 128
"""Queries of a head below which keys are not copied to make heads contiguous."""

_SCORES_AT_ONCE = 2**24
"""Elements of fp32 scores that are written out at once, without a flash kernel (64 MiB)."""


def _without_autocast(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps written-out scores in fp32 where autocast would compute their products in bf16."""

    @wraps(compute)
    def computed(self: Any, states: Tensor, *rest: Any) -> Any:
        with torch.autocast(states.device.type, enabled=False):
            return compute(self, states, *rest)

    return computed


class PlainKernel:
    """A kernel for every layer and device: the flash kernel of CPUs where that works, else scores written out in parts.

    The flash kernel is that of `scaled_dot_product_attention`; called directly it returns log-sum-exps, too. It takes
    batches, so sequences of equal lengths are computed as one, and a mask, with which a window is computed in blocks of
    queries. It has no soft cap and no grouped heads: without a mask the query heads of a group are stacked as more
    queries of one head, as their order is free; causally it is not, and the keys are repeated.
    """

    @_without_autocast
    def forward(
        self, query: FlatQueries, key: FlatKeys, value: FlatKeys, bounds: SequenceBounds, spec: AttentionSpec
    ) -> tuple[FlatQueries, LogSumExps]:
        """See `VarlenKernel`."""
        heads, flash = query.shape[1], _by_flash(query, value, spec)
        output = query.new_empty(len(query), heads, value.shape[-1])
        # Log-sum-exps are fp32 for every dtype but fp64.
        lse = query.new_empty(heads, len(query), dtype=torch.promote_types(query.dtype, torch.float32))
        for count, rows, seen in _batches(bounds, 0 if flash else heads):
            q, k, v = _batch(query[rows], count), _batch(key[seen], count), _batch(value[seen], count)
            if flash:
                causal, mask = _masked(q, k, bounds)
                q, k, v = _one_to_one(q, k, v, bounds.causal)
                # The kernel is a tenth slower on strided heads, and a copy for few queries takes as long as the kernel;
                # backward, there is no memory to spare for copies.
                if q.shape[2] >= _FEW:
                    q, k, v = (states.contiguous() for states in (q, k, v))
                part, part_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                    q, k, v, is_causal=causal, attn_mask=mask, scale=spec.scale
                )
            else:
                scores, _ = _scores(q, k, bounds, spec)  # [B, G, H/G, R, K]
                part_lse = scores.logsumexp(-1)
                part = (scores - part_lse[..., None]).exp() @ v.to(scores.dtype)[:, :, None]
            # [B, G, H/G * R, D] or [B, H, R, D] -> [B, H, R, D] -> [B * R, H, D]
            part = part.reshape(count, heads, -1, part.shape[-1])
            output[rows] = part.transpose(1, 2).flatten(0, 1).to(output.dtype)
            lse[:, rows] = part_lse.reshape(count, heads, -1).transpose(0, 1).flatten(1)  # [H, B * R]
        return output, lse

    @_without_autocast
    def backward(
        self, grad: FlatQueries, attended: Attended, bounds: SequenceBounds, spec: AttentionSpec
    ) -> tuple[FlatQueries, FlatKeys, FlatKeys]:
        """See `VarlenKernel`."""
        query, key, value, output, lse = attended
        heads, groups, flash = query.shape[1], key.shape[1], _by_flash(query, value, spec)
        query_grad = torch.zeros_like(query)
        # Zeros, as keys of sequences without queries get no gradient below; a key may get it from several parts.
        totals = [torch.zeros_like(states, dtype=lse.dtype) for states in (key, value)]
        for count, rows, seen in _batches(bounds, 0 if flash else heads):
            q, k, v = _batch(query[rows], count), _batch(key[seen], count), _batch(value[seen], count)
            part_grad, part_output = (_batch(states[rows], count) for states in (grad, output))
            part_lse = lse[:, rows].reshape(heads, count, -1).transpose(0, 1)
            if flash:
                causal, mask = _masked(q, k, bounds)
                q, k, v = _one_to_one(q, k, v, bounds.causal)
                # In the shape of q: a group's heads are stacked there, too.
                part_grad, part_output = (states.reshape(q.shape) for states in (part_grad, part_output))
                part_lse = part_lse.reshape(q.shape[:3])
                if k.shape[2] < _LONG and k.dtype == torch.bfloat16:
                    part_grad, q, k, v, part_output = (
                        states.float() for states in (part_grad, q, k, v, part_output)
                    )
                of_query, *of_keys = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    part_grad,
                    q,
                    k,
                    v,
                    part_output,
                    part_lse,
                    0.0,
                    causal,
                    attn_mask=mask,
                    scale=spec.scale,
                )
            else:
                scores, slope = _scores(q, k, bounds, spec)
                shares = (scores - part_lse.reshape(scores.shape[:4])[..., None]).exp()
                q, grads, outputs = (
                    _grouped(states.to(scores.dtype), groups) for states in (q, part_grad, part_output)
                )
                k, v = (states.to(scores.dtype)[:, :, None] for states in (k, v))
                delta = (grads * outputs).sum(-1, keepdim=True)
                of_scores = shares * (grads @ v.transpose(-1, -2) - delta) * slope * spec.scale
                of_query = (of_scores @ k).flatten(1, 2)
                of_keys = [
                    (part.transpose(-1, -2) @ states).flatten(1, 2)
                    for part, states in ((of_scores, q), (shares, grads))
                ]
            query_grad[rows] = (
                of_query.reshape(count, heads, -1, q.shape[-1]).transpose(1, 2).flatten(0, 1).to(query.dtype)
            )
            for total, part in zip(totals, of_keys, strict=True):  # [B, G or H, K, D]
                # Where keys were repeated for the heads of a group, the group's gradients are added.
                summed = part.unflatten(1, (groups, -1)).sum(2) if part.shape[1] != groups else part
                added = summed.transpose(1, 2).flatten(0, 1).to(total.dtype)
                if isinstance(seen, slice):
                    total[seen] += added
                else:  # blocks within a window overlap
                    total.index_add_(0, seen, added)
        of_key, of_value = totals
        return query_grad, of_key.to(key.dtype), of_value.to(value.dtype)


def _by_flash(query: FlatQueries, value: FlatKeys, spec: AttentionSpec) -> bool:
    return query.device.type == "cpu" and query.shape[-1] == value.shape[-1] and spec.softcap is None


def _scores(
    q: Float[Tensor, "B H R D"], k: Float[Tensor, "B G K D"], bounds: SequenceBounds, spec: AttentionSpec
) -> tuple[Float[Tensor, "B G H/G R K"], Tensor | float]:
    """The scores of a softmax, minus infinity where a query does not see a key, and the slope of the soft cap there."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    grouped = _grouped(q.to(dtype), k.shape[1]) * spec.scale
    scores: Tensor = grouped @ k.to(dtype)[:, :, None].transpose(-1, -2)
    slope: Tensor | float = 1.0
    if spec.softcap is not None:
        bounded = torch.tanh(scores / spec.softcap)
        scores, slope = bounded * spec.softcap, 1 - bounded.square()
    if bounds.causal:
        scores = scores.masked_fill(~_sees(q, k, bounds), -torch.inf)
    return scores, slope


def _grouped(states: Float[Tensor, "B H R D"], groups: int) -> Float[Tensor, "B G H/G R D"]:
    return states.reshape(len(states), groups, -1, *states.shape[2:])


def _masked(q: Tensor, k: Tensor, bounds: SequenceBounds) -> tuple[bool, Tensor | None]:
    """Causality and mask of the flash kernel, whose `is_causal` counts from the first key."""
    if not bounds.causal or bounds.window is None:
        return bounds.causal, None
    mask = torch.zeros(q.shape[2], k.shape[2], dtype=torch.promote_types(q.dtype, torch.float32))
    return False, mask.masked_fill(~_sees(q, k, bounds), -torch.inf)[None, None]


def _sees(q: Tensor, k: Tensor, bounds: SequenceBounds) -> Bool[Tensor, "R K"]:
    queries, keys = (torch.arange(states.shape[2], device=q.device) for states in (q, k))
    before = queries[:, None] + (len(keys) - len(queries)) - keys  # how many tokens a key is before a query
    return (before >= 0) & (before < (bounds.window or len(keys)))


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _batches(bounds: SequenceBounds, heads: int) -> tuple[tuple[int, Rows, Rows], ...]:
    """Groups sequences of equal lengths: how many, and where their queries and keys are.

    Sequences with a window are cut into blocks of queries with the keys that these see. All are if scores are written
    out; `heads` is 0 if they are not.
    """
    alike: dict[tuple[int, int], list[tuple[range, range]]] = defaultdict(list)
    queries, keys = ([*starmap(range, pairwise(ends.tolist()))] for ends in (bounds.queries, bounds.keys))
    if bounds.used is not None:
        keys = [seen[:used] for seen, used in zip(keys, bounds.used.tolist(), strict=True)]
    for own, seen in zip(queries, keys, strict=True):
        block = max(1, len(own))
        if bounds.window is not None:  # a block sees window + block - 1 keys
            block = min(block, max(128, min(1024, bounds.window // 4)))
        if heads:
            block = min(block, max(1, _SCORES_AT_ONCE // (heads * len(seen))))
        for part in (own[at : at + block] for at in range(0, len(own), block)):
            visible = seen
            if bounds.causal:
                last = seen.stop - (own.stop - part.stop)
                first = 0 if bounds.window is None else last - len(part) - bounds.window + 1
                visible = range(max(seen.start, first), last)
            alike[len(part), len(visible)].append((part, visible))
    device = bounds.queries.device
    return tuple(
        (len(found), rows_at([own for own, _ in found], device), rows_at([seen for _, seen in found], device))
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
