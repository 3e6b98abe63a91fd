"""Attention over a shared prefix by FlexAttention: one call, with a mask of blocks made from the layout.

torch's own `create_block_mask` looks at every pair of tokens, 16 GiB of them at 128K; a layout tells which blocks
hold pairs that see each other without looking at any.

Letters: S tokens of the packed sequence, B blocks of them, H query heads, G key heads, D head size.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from longrm.modeling.shapes import PackedLayout

BLOCK = 128

KINDS = 64
"""The most kinds of calls that may be compiled. A model has up to six: in training, without gradients and in inference
mode, each for sequences of one block and of several. Lengths and trees are not compiled for."""

Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def flex_attention_of(
    query: Float[Tensor, "1 H S D"],
    key: Float[Tensor, "1 G S D"],
    value: Float[Tensor, "1 G S D"],
    layout: PackedLayout,
    scaling: float | None,
) -> Float[Tensor, "1 S H D"]:
    """Computes the attention of a packed sequence by FlexAttention, compiled for any length."""
    # A tensor that is made in inference mode would be refused later, when the cached mask serves training.
    with torch.inference_mode(False):
        mask = block_mask(layout, query.device)
    grouped = query.shape[1] != key.shape[1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # What is handed over may be a view that is not contiguous, whose strides would each be compiled for, and so would
    # every state of autocast, which changes nothing here: the dtypes are equal.
    states = (part.contiguous() for part in (query, key, value))
    plain = torch.autocast(query.device.type, torch.bfloat16, enabled=False, cache_enabled=False)
    with plain, torch._dynamo.config.patch(recompile_limit=KINDS):
        output: Tensor = _compiled()(*states, block_mask=mask, scale=scale, enable_gqa=grouped)
    return output.transpose(1, 2)


@lru_cache(maxsize=1)
def _compiled() -> Any:
    # Without `fullgraph`, a kind of call beyond dynamo's limit would be computed uncompiled, with the scores of all
    # pairs of tokens in memory.
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


@lru_cache(maxsize=4)
def block_mask(layout: PackedLayout, device: torch.device) -> BlockMask:
    """Returns the mask of a layout, computed once for all layers."""
    some, every = blocks_of(layout)
    partial = _listed(some & ~every, device)
    full = _listed(every, device)
    size = layout.tokens
    return BlockMask.from_kv_blocks(
        *partial, *full, BLOCK_SIZE=BLOCK, mask_mod=sees_of(layout, device), seq_lengths=(size, size)
    )


def sees_of(layout: PackedLayout, device: torch.device) -> Sees:
    """Returns a mask function: a query sees keys up to itself, in its own segment or the prefix of its tree."""
    own, root, fork = (torch.from_numpy(part).to(device) for part in _segments(layout))

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        in_prefix = (key >= root[query]) & (key < fork[query])
        return (key <= query) & ((key >= own[query]) | in_prefix)

    return sees


def blocks_of(layout: PackedLayout) -> tuple[Bool[np.ndarray, "B B"], Bool[np.ndarray, "B B"]]:
    """Returns for every block of queries and of keys whether some pair, and whether every pair, sees the other."""
    own, root, fork = _segments(layout)
    size = layout.tokens
    tokens = np.arange(size)
    starts = np.flatnonzero((tokens % BLOCK == 0) | (tokens == own))
    first, last = starts[:, None], np.append(starts[1:], size)[:, None] - 1
    blocks = -(-size // BLOCK)
    left = np.arange(blocks) * BLOCK
    right = left + BLOCK - 1  # beyond the sequence in the last block, so that it is never full
    own, root, fork = (part[starts][:, None] for part in (own, root, fork))
    # The last token of a piece sees most, the first least.
    some = (left <= last) & ((right >= own) | (left < fork) & (right >= root))
    # The prefix itself and the first branch follow on what they see of the prefix, as one stretch.
    reach = np.where((own == root) | (own == fork), root, own)
    every = (right <= first) & (left >= reach) | (left >= root) & (right < fork) & (right <= first)
    of_block = np.searchsorted(starts, left)
    merged = np.logical_or.reduceat(some, of_block), np.logical_and.reduceat(every, of_block)
    if size % BLOCK:  # rows beyond the sequence see nothing
        merged[1][-1] = False
    return merged


def _segments(
    layout: PackedLayout,
) -> tuple[Int[np.ndarray, " S"], Int[np.ndarray, " S"], Int[np.ndarray, " S"]]:
    """Returns for every token the first of its segment, the first of its tree, and one past its tree's prefix."""
    own, root, fork, lengths = [], [], [], []
    start = 0
    for tree in layout.trees:
        begin = start
        for length in (tree.prefix, *tree.branches):
            own.append(begin)
            root.append(start)
            fork.append(start + tree.prefix)
            lengths.append(length)
            begin += length
        start = begin
    firsts, roots, forks = (np.repeat(np.array(part, np.int32), lengths) for part in (own, root, fork))
    return firsts, roots, forks


def _listed(
    dense: Bool[np.ndarray, "B B"], device: torch.device
) -> tuple[Int[Tensor, "1 1 B"], Int[Tensor, "1 1 B B"]]:
    """Counts and lists the blocks of keys of every block of queries: these first, the others behind them."""
    marked = torch.from_numpy(dense).to(device)
    order = torch.argsort(marked, dim=-1, descending=True, stable=True)
    counts = marked.sum(dim=-1)
    return counts.to(torch.int32)[None, None], order.to(torch.int32)[None, None].contiguous()
