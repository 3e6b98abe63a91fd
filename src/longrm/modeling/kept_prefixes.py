"""Keys and values of prefixes that were read before: what begins alike is read once, and branches are read over it.

A forward reads `[what is kept | rest of the prefix | branch 1 | branch 2 | ...]`, of which it computes all but what is
kept; positions go on. Keys are kept as the attention sees them, rotated by position. Scores depend on what is kept
by rounding alone: in fp32 by less than 5e-5 of their size, or of 1 where they are smaller. (Measured: 28,266 scores of
four models of 2 and 3 layers, up to 47 in size; the median difference is 2e-7, the largest 2.4e-5.)

Letters: S tokens of the packed sequence, L tokens of a tree, P tokens of a prefix, B tokens of a block, H query heads,
G key heads, D head size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longrm.errors import ConfigError
from longrm.modeling.attention import over_layout
from longrm.modeling.attention_varlen import rows_at
from longrm.modeling.continuation import over_before
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.heads import TransformersModel, hidden_states
from longrm.modeling.prefix_table import BLOCK, PrefixTable, block_keys
from longrm.modeling.shapes import PackedLayout, TokenTree, TreeShape
from longrm.modeling.shared_prefix import Packed, pack


@dataclass(frozen=True, slots=True)
class KeptForward:
    """What one forward reads from what is kept, and what it adds to it.

    Attributes:
        pools: The memory of each model, by its identity.
        read: For every tree, the places of the first blocks of its prefix.
        blocks: Where in the packed sequence the blocks stand that are to be kept.
        chains: The keys of every tree's blocks.
        reserved: The places for the blocks that are to be kept, by their keys.
    """

    pools: Mapping[int, "_Pool"]
    read: Sequence[Sequence[int]]
    blocks: Sequence[range]
    chains: Sequence[Sequence[bytes]]
    reserved: Mapping[bytes, int]

    def of(self, model: TransformersModel) -> "_KeptLayers":
        """What the attention of one model is handed as `kept`."""
        return _KeptLayers(self.pools[id(model)], self, model.device)


class KeptPrefixes:
    """Keys and values of prefixes within a budget, for models that read the same tokens one forward at a time.

    Args:
        models: The models, whose attention is `longrm_shared_prefix`: usually one.
        budget: Bytes of memory for keys and values of all models together.

    Raises:
        ConfigError: The budget does not do for one block, or is more than there is.
    """

    def __init__(self, models: Sequence[TransformersModel], budget: int) -> None:
        sizes = {id(model): _measured(model) for model in models}
        block = sum(
            part[0, :, 0].nbytes * BLOCK for layers in sizes.values() for pair in layers for part in pair
        )
        if budget < block:
            raise ConfigError(
                f"a prefix cache of {budget:,} bytes holds no block of {BLOCK} tokens ({block:,} bytes)"
            )
        self.block_bytes = block
        self.table = PrefixTable(budget // block)
        self._padding = models[0].config.pad_token_id
        try:
            self._pools = {key: _Pool(layers, self.table.blocks) for key, layers in sizes.items()}
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(f"a prefix cache of {budget:,} bytes does not fit into memory") from None
        self._reserved: list[int] = []

    def pack(self, trees: Sequence[TokenTree]) -> Packed:
        """Lays trees in one sequence, without what is kept of their prefixes; what was not kept since is given up."""
        # Taken first: what fails below must not have places given back twice.
        given_up, self._reserved = self._reserved, []
        self.table.release(given_up)
        keys = [block_keys(tree.prefix, tree.salt) for tree in trees]
        counts = [self.usable(tree.prefix, own) for tree, own in zip(trees, keys, strict=True)]
        read = [self.table.use(own[:count]) for own, count in zip(keys, counts, strict=True)]
        in_use = {place for places in read for place in places}
        rest = [
            TokenTree(tree.prefix[count * BLOCK :], tree.branches)
            for tree, count in zip(trees, counts, strict=True)
        ]
        plain = pack(rest)
        shapes = (
            TreeShape(shape.prefix, shape.branches, count * BLOCK)
            for shape, count in zip(plain.layout.trees, counts, strict=True)
        )
        layout = PackedLayout(tuple(shapes))
        reserved: dict[bytes, int] = {}
        blocks: list[range] = []
        for start, own, count in zip(layout.roots(), keys, counts, strict=True):
            numbers = self._reserve(own[count:], reserved, in_use)
            blocks += [range(start + n * BLOCK, start + (n + 1) * BLOCK) for n in numbers]
        forward = KeptForward(self._pools, read, blocks, keys, reserved)
        return Packed(plain.input_ids, torch.tensor([layout.position_ids()]), layout, forward)

    def usable(self, prefix: Sequence[int], keys: Sequence[bytes]) -> int:
        """How many blocks of a prefix need not be read: its last token that is not padding always is."""
        last = len(prefix) - 1
        while last and prefix[last] == self._padding:
            last -= 1
        return self.table.count(keys[: last // BLOCK])

    def keep(self, packed: Packed) -> None:
        """Keeps what the forward of the last packed sequence computed."""
        assert isinstance(packed.kept, KeptForward)
        self._reserved = []
        self.table.keep(packed.kept.reserved.items(), packed.kept.chains)

    def _reserve(self, keys: Sequence[bytes], reserved: dict[bytes, int], in_use: set[int]) -> list[int]:
        """Reserves places for blocks, as far as there are any, each for the first tree of the forward that has it.

        Returns:
            The numbers of these blocks among the keys.
        """
        fresh = [n for n, key in enumerate(keys) if key not in reserved and not self.table.count([key])]
        places: list[int] = []
        while len(places) < len(fresh) and (place := self.table.reserve(in_use)) is not None:
            self._reserved.append(place)
            places.append(place)
        # In order, so that neighbors lie side by side wherever there is room.
        reserved.update((keys[number], place) for number, place in zip(fresh, sorted(places), strict=False))
        return fresh[: len(places)]


_Places = Int[Tensor, " blocks"] | slice
"""Where blocks lie in the memory of a model: a slice where they follow upon each other, which is faster by far."""


def _at(places: Sequence[int], device: torch.device) -> _Places:
    return rows_at([range(place, place + 1) for place in places], device) if places else slice(0)


class _KeptLayers:
    """The attention of one model's layers, over what is kept and what is not."""

    def __init__(self, pool: "_Pool", forward: KeptForward, device: torch.device) -> None:
        self._pool = pool
        self._read = [_at(places, device) for places in forward.read]
        self._places = _at([*forward.reserved.values()], device)
        self._tokens = rows_at(forward.blocks, device) if forward.blocks else None

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
        if self._tokens is not None:
            self._pool.write(layer, [key[0], value[0]], self._tokens, self._places)
        outputs: list[Tensor] = []
        begin = 0
        trees = zip(layout.trees, self._read, strict=True)
        for continued, run in groupby(trees, lambda tree: tree[0].kept > 0):
            same = list(run)
            # Trees of which nothing is kept are computed together.
            for part in [[one] for one in same] if continued else [same]:
                end = begin + sum(shape.tokens for shape, _ in part)
                q, k, v = (states[:, :, begin:end] for states in (query, key, value))
                if continued:
                    outputs.append(self._over_kept(layer, (q, k, v), *part[0], scaling, only_ends))
                else:
                    shapes = PackedLayout(tuple(shape for shape, _ in part))
                    outputs.append(over_layout(q, k, v, scaling, shapes, only_ends))
                begin = end
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _over_kept(
        self,
        layer: int,
        own: Sequence[Tensor],
        shape: TreeShape,
        places: _Places,
        scaling: float | None,
        only_ends: bool,
    ) -> Float[Tensor, "1 L H D"]:
        query, *keys_values = own
        k, v = (
            torch.cat(parts, dim=2) for parts in zip(self._pool.read(layer, places), keys_values, strict=True)
        )
        if not shape.forks:
            return over_before(query, k, v, [shape.tokens], scaling, only_ends)
        fork = shape.kept + shape.prefix
        q_rest, q_branches = torch.split(query, [shape.prefix, shape.branch_tokens], dim=2)
        output = over_before(q_rest, k[:, :, :fork], v[:, :, :fork], [shape.prefix], scaling, only_ends)
        of_branches = over_before(q_branches, k, v, shape.branches, scaling, only_ends)
        return torch.cat([output, of_branches], dim=1)


class _Pool:
    """The memory for blocks of keys and values of one model, layer by layer."""

    def __init__(self, like: Sequence[Sequence[Tensor]], blocks: int) -> None:
        # Each [G, blocks, B, D]: the blocks of a prefix are gathered by one operation. A CPU's memory is taken as it is
        # written, a GPU's at once.
        self._layers = [
            [part.new_empty(part.shape[1], blocks, BLOCK, part.shape[3]) for part in pair] for pair in like
        ]

    def read(self, layer: int, places: _Places) -> list[Float[Tensor, "1 G P D"]]:
        """The keys and values of blocks, as those of one prefix."""
        return [part[:, places].flatten(1, 2)[None] for part in self._layers[layer]]

    def write(
        self,
        layer: int,
        states: Sequence[Float[Tensor, "G S D"]],
        tokens: Int[Tensor, " N"] | slice,
        places: _Places,
    ) -> None:
        """Keeps the keys and values of some tokens, block after block, at places."""
        for stored, part in zip(self._layers[layer], states, strict=True):
            stored[:, places] = part[:, tokens].reshape(len(part), -1, BLOCK, part.shape[2])


class _Measure:
    """Takes the keys and values of every layer of a forward."""

    def __init__(self) -> None:
        self.layers: list[list[Tensor]] = []

    def of(self, model: Any) -> "_Measure":
        return self

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: PackedLayout,
        scaling: float | None,
        only_ends: bool,
    ) -> Tensor:
        assert layer == len(self.layers), "layers are computed one after the other"
        self.layers.append([key, value])
        return over_layout(query, key, value, scaling, layout, only_ends)


@torch.no_grad()
def _measured(model: TransformersModel) -> list[list[Tensor]]:
    """The keys and values of two tokens at every layer."""
    plain = pack([TokenTree([0], [[0]])])
    measure = _Measure()
    hidden_states(model, Packed(plain.input_ids, plain.position_ids, plain.layout, measure).to(model.device))
    return measure.layers
