"""Recurrent layers over packed trees: every node continues the state in which its parent ended.

Gated DeltaNet, Mamba 2 and short convolutions carry a state from token to token, in place of keys that later tokens
choose from. Transformers keeps such states in a cache, so a layer can begin from any of them: the nodes of a tree are
computed level by level, all nodes of a level as a batch, each from its parent's final states. No formula of a family
is repeated here: `run_nodes` calls the layer's own forward.

The layout reaches these layers as it reaches attention, as a keyword argument of the model's forward pass, so that a
layer which gradient checkpointing computes again gets the same one.

Shapes: S tokens of the packed sequence, N nodes of a batch with L tokens each, C hidden size, K size of a convolution.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from longrm.errors import ModelError
from longrm.modeling.folders import recurrent_layers
from longrm.modeling.shapes import SHARED_PREFIX, PackedLayout

MIXING = (nn.modules.conv._ConvNd, nn.RNNBase)
"""Modules that carry a state from token to token."""

called_modules: ContextVar[set[int] | None] = ContextVar("called_modules", default=None)
"""Within a packed pass of `share_prefixes`: the modules that got the layout, attention and recurrences; else None."""

LayerRecurrence = Callable[[Callable[..., Tensor], int, Tensor, PackedLayout], Tensor]
"""Computes a recurrent layer of a forward pass from states of the caller's: by its plain forward, number and input."""

_CACHES = ("cache_params", "past_key_values")  # what mixers of transformers call the cache of their states


class NodeStates:
    """The states of one layer for a batch of nodes, in place of transformers' cache.

    That one copies new states into old tensors, which no gradient passes through; here they are new tensors.
    """

    def __init__(
        self, conv: dict[int, Tensor] | None = None, recurrent: dict[int, Tensor] | None = None
    ) -> None:
        self.conv, self.recurrent = conv or {}, recurrent or {}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The last K inputs of a convolution; None at the beginning of a sequence."""
        return self.conv.get(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The state of a recurrence; None at the beginning of a sequence."""
        return self.recurrent.get(state_idx)

    def update_conv_state(
        self,
        conv_states: Float[Tensor, "N C L"],
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **options: Any,
    ) -> Float[Tensor, "N C more"]:
        """Keeps the last K columns; returns the new ones behind the kept ones, at least K, as transformers does."""
        size = conv_kernel_size or conv_states.shape[-1]
        if state_idx in self.conv:
            conv_states = torch.cat([self.conv[state_idx], conv_states], dim=-1)
        conv_states = functional.pad(conv_states, (max(0, size - conv_states.shape[-1]), 0))
        self.conv[state_idx] = conv_states[..., -size:]
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **options: Any
    ) -> Tensor:
        """Keeps the state after the last token."""
        self.recurrent[state_idx] = recurrent_states
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        """True avoids a kernel for single tokens that writes into the state."""
        return True

    def __len__(self) -> int:
        """N; 1 at the beginning of a sequence."""
        return max(map(len, self.conv.values()), default=1)

    def of_node(self, row: int) -> "NodeStates":
        """The states of one node, as a batch of one."""
        return NodeStates(
            *({key: part[row : row + 1] for key, part in own.items()} for own in (self.conv, self.recurrent))
        )

    @classmethod
    def cat(cls, nodes: "Sequence[NodeStates]") -> "NodeStates":
        """A batch that begins with copies of these states."""
        kinds = ([node.conv for node in nodes], [node.recurrent for node in nodes])
        return cls(*({key: torch.cat([own[key] for own in kind]) for key in kind[0]} for kind in kinds))


class LayerStates(dict[int, NodeStates]):
    """The states of all recurrent layers, by their numbers, for a batch of N sequences that one forward pass continues.

    It is the argument `layer_states` of a model whose input is the next L tokens of each sequence, one after another.
    Layers write into the state where L is 1, so kept states are copies (`of`).
    """

    def __call__(self, compute: Callable[..., Tensor], layer: int, hidden: Tensor, _: PackedLayout) -> Tensor:
        """Computes a layer from its states, which become those after its input `[1, N * L, C]`."""
        states = self.setdefault(layer, NodeStates())
        return _call(compute, hidden.reshape(len(states), -1, hidden.shape[-1]), states).reshape(hidden.shape)

    @classmethod
    def of(cls, rows: "Sequence[tuple[LayerStates, int]]") -> "LayerStates":
        """A copy of some rows of batches, as one batch."""
        layers = rows[0][0]
        return cls({n: NodeStates.cat([states[n].of_node(row) for states, row in rows]) for n in layers})

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(
            part.nbytes for own in self.values() for part in (*own.conv.values(), *own.recurrent.values())
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Nodes that are computed together. With children they have equal lengths: padding would change their states."""

    nodes: list[int]
    parents: list[int]  # empty at the first level
    branching: bool
    tokens: Int[Tensor, "N L"]  # where they are in the packed sequence; padding repeats the last one


@lru_cache(maxsize=16)  # for all layers, and for the pass that computes them again
@torch.inference_mode(False)  # a later pass may need gradients
def plan(
    layout: PackedLayout, device: torch.device, joined: bool = True
) -> tuple[list[_Batch], Int[Tensor, " S"]]:
    """Returns the batches in order, and where each token is in their outputs, one after another.

    Cached tokens of tree n are the parent -1 - n of its root. With `joined`, a node and its only branch are one.
    """
    nodes = layout.nodes(joined=joined)
    tokens = [[*range(node.begin, node.end)] for node in nodes]
    parents = [node.parent for node in nodes]
    depths: dict[int | None, int] = {None: -1}
    roots = [number for number, node in enumerate(nodes) if node.parent is None]
    for tree, (root, shape) in enumerate(zip(roots, layout.trees, strict=True)):
        if shape.cached:
            parents[root], depths[-1 - tree] = -1 - tree, 0
    children = [[child for child, above in enumerate(parents) if above == node] for node in range(len(nodes))]
    levels: list[list[int]] = [[]]
    for node, above in enumerate(parents):
        # A single token that continues a state is computed with each of its children: layers have a form for it that
        # writes into the state.
        if above is not None and children[node] and len(tokens[node]) == 1:
            for child in children[node]:
                tokens[child] = tokens[node] + tokens[child]
                parents[child] = above
            continue
        depths[node] = depths[above] + 1
        levels += [[]] * (depths[node] == len(levels))
        levels[depths[node]].append(node)
    batches = []
    place = torch.zeros(layout.tokens, dtype=torch.long)
    size = 0
    for level in filter(None, levels):
        level.sort(key=lambda node: (bool(children[node]), len(tokens[node])), reverse=True)
        for batch in _alike(level, tokens, children):
            branching = bool(children[batch[0]])
            longest = max(len(tokens[batch[0]]), 1 if branching else 2)  # two, again because of single tokens
            rows = torch.tensor(
                [tokens[node] + tokens[node][-1:] * (longest - len(tokens[node])) for node in batch]
            )
            for row, node in enumerate(batch):
                begin = size + row * longest
                place[tokens[node]] = torch.arange(begin, begin + len(tokens[node]))
            size += rows.numel()
            begins = [parent for node in batch if (parent := parents[node]) is not None]
            batches.append(_Batch(batch, begins, branching, rows.to(device)))
    return batches, place.to(device)


def _alike(level: list[int], tokens: list[list[int]], children: list[list[int]]) -> Iterator[list[int]]:
    """Splits a sorted level into batches: equal lengths with children, and without any at most a quarter of padding."""
    batch: list[int] = []
    for node in level:
        if batch:
            longest, own = len(tokens[batch[0]]), len(tokens[node])
            same = bool(children[node]) == bool(children[batch[0]])
            if not same or (own != longest if children[node] else 4 * own < 3 * longest):
                yield batch
                batch = []
        batch.append(node)
    yield batch


class Mixer(nn.Module):
    """A recurrent layer that computes packed trees; `pack_states` makes it of a layer of transformers, and back."""

    packed_config: Any  # of the model

    def forward(
        self,
        hidden_states: Tensor,
        *args: Any,
        layout: PackedLayout | None = None,
        layer_states: LayerRecurrence | None = None,
        **kwargs: Any,
    ) -> Any:
        """Computes a packed sequence if there is a layout, else what the layer of transformers does."""
        called = called_modules.get()
        if layout is None:
            if called is not None or self.packed_config._attn_implementation == SHARED_PREFIX:
                raise ModelError(f"{type(self).__name__} got no layout of packed sequences")
            return super().forward(hidden_states, *args, **kwargs)
        if called is not None:
            called.add(id(self))
        if layer_states is not None:
            layer: Any = self
            return layer_states(super().forward, layer.layer_idx, hidden_states, layout)
        return run_nodes(super().forward, hidden_states, layout)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickle finds no class of this name, so that it stores the plain one.
        return _restored, (type(self).__mro__[2],), *object.__reduce_ex__(self, protocol)[2:]


def run_nodes(
    compute: Callable[..., Tensor],
    hidden: Float[Tensor, "1 S C"],
    layout: PackedLayout,
    final: dict[int, NodeStates] | None = None,
) -> Float[Tensor, "1 S C"]:
    """Computes a layer's forward for all tokens of a packed sequence, node by node.

    `final` has the states of cached tokens as `plan` numbers them, and gets those of every node with branches.
    """
    batches, place = plan(layout, hidden.device, joined=final is None)
    final = {} if final is None else final
    outputs = []
    for batch in batches:
        states = NodeStates.cat([final[node] for node in batch.parents]) if batch.parents else NodeStates()
        outputs.append(_call(compute, hidden[0][batch.tokens], states).flatten(0, 1))
        if batch.branching:
            final.update((node, states.of_node(row)) for row, node in enumerate(batch.nodes))
    return torch.cat(outputs)[place][None]


def _call(
    compute: Callable[..., Tensor], hidden: Float[Tensor, "N L C"], states: NodeStates
) -> Float[Tensor, "N L C"]:
    named = next(name for name in _CACHES if name in signature(compute).parameters)
    return compute(hidden_states=hidden, **{named: states})


def _restored(plain: type) -> Any:
    return object.__new__(_packed_class(plain))


@cache
def _packed_class(plain: Any) -> Any:
    # A class, because a deep copy of an instance's `forward` would call the original instance.
    return type(plain.__name__, (Mixer, plain), {"__module__": plain.__module__})


def pack_states(model: Any, packed: bool = True) -> bool:
    """Makes the recurrent layers of a model compute packed trees, or, without `packed`, plain sequences again.

    Returns whether that changed them.
    """
    own = mixers(model, type(model).__name__) if recurrent_layers(model.config) else []
    changed = [module for module in own if isinstance(module, Mixer) is not packed]
    for module in changed:
        if packed:
            plain: Any = type(module)
            module.packed_config, module.__class__ = model.config, _packed_class(plain)
        else:
            del module.packed_config
            module.__class__ = type(module).__mro__[2]
    return bool(changed)


def mixers(model: Any, where: str) -> list[Any]:
    """Returns the modules that take a cache of states; a module that keeps its states itself is a `ModelError`."""
    found = []
    for name, module in model.base_model.named_modules():
        if any(isinstance(child, MIXING) for child in module.children()):
            plain: Any = type(module).__mro__[2] if isinstance(module, Mixer) else type(module)
            if not any(cache in signature(plain.forward).parameters for cache in _CACHES):
                raise ModelError(
                    f"{where}: {name} ({plain.__name__}) keeps its states in a way that is not supported"
                )
            found.append(module)
    return found


def check_mixers(model: Any, where: str) -> None:
    """Refuses a model whose recurrent layers cannot begin from given states; tries it on the meta device."""
    with torch.device("meta"):
        skeleton = model if model.device.type == "meta" else type(model)(copy.deepcopy(model.config))
    kinds = recurrent_layers(skeleton.config)
    for module in {type(module): module for module in mixers(skeleton, where)}.values():
        if not _continues(module, skeleton.config.hidden_size):
            raise ModelError(
                f"{where}: {type(module).__name__} does not continue a state by several tokens: not supported with a "
                "shared prefix"
            )
    for number, layer in enumerate(skeleton.base_model.layers):
        if number in kinds and not any(isinstance(module, MIXING) for module in layer.modules()):
            raise ModelError(
                f"{where}: layer {number} ({kinds[number]}) does not take a cache of states: not supported with a "
                "shared prefix"
            )


def can_continue(model: Any) -> bool:
    """Whether the layers of a model with recurrent layers can begin from given keys and states."""
    try:
        check_mixers(model, type(model).__name__)
    except ModelError:
        return False
    return bool(model._can_set_attn_implementation())


def _continues(mixer: Any, width: int) -> bool:
    """Whether the outputs of several tokens depend on all states before them: on the meta device, by autograd."""
    hidden = torch.zeros(1, 2, width, device="meta", dtype=next(mixer.parameters()).dtype)
    exporting = torch.compiler.is_exporting
    # Transformers then takes its own code in place of kernels, which do not compute on the meta device.
    torch.compiler.is_exporting = lambda: True
    try:
        with torch.enable_grad():
            _call(mixer.forward, hidden, states := NodeStates())
            for kind in (states.conv, states.recurrent):
                kind.update({key: state.detach().requires_grad_() for key, state in kind.items()})
            before = [*states.conv.values(), *states.recurrent.values()]
            output: Any = _call(mixer.forward, hidden, states)
            if not isinstance(output, Tensor):
                return False
            return None not in torch.autograd.grad(output.sum(), before, allow_unused=True)
    finally:
        torch.compiler.is_exporting = exporting
