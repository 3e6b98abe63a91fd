"""The attention of a few tokens in every layer, and the gradient by it of what is read at them.

A score is read at one token, so that of every head's attention one row matters, and no square matrix is made. The
sequence is read once without gradients, and the keys and values of all layers are kept. Then the asking tokens alone
are read once more over these, with gradients. What stands before a token does not depend on it: the gradients by its
own rows pass through no other token, and are those of a backward pass through the whole sequence.

In memory are the keys and values of all layers, as in writing, and two or three times layers x heads x tokens numbers
a row.

Letters: S tokens of the packed sequence, N asking tokens of all sequences, R those of one, T tokens that one sequence
sees, C hidden size, H query heads, G key heads, D head size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longrm.modeling.attention import over_layout
from longrm.modeling.heads import TransformersModel, hidden_states
from longrm.modeling.shapes import PackedLayout, TreeShape
from longrm.modeling.shared_prefix import Packed

ReadValues = Callable[[Float[Tensor, "S C"], Packed], Float[Tensor, " values"]]
"""The last states of a packed sequence to what is read from them; gradients are those of its sum."""


@dataclass(frozen=True, slots=True)
class AskingTokens:
    """Neighboring tokens of one sequence whose rows of attention are asked for.

    Attributes:
        before: Where in the packed sequence the tokens stand that they continue, in order.
        own: Where they stand themselves.
    """

    before: tuple[range, ...]
    own: range


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRows:
    """The rows of one sequence in one layer.

    Attributes:
        weights: What each asking token's heads attend to, after the softmax; its columns are the tokens of `before`
            and then `own`.
        gradients: The gradient of what was read by these weights.
    """

    weights: Float[Tensor, "H R T"]
    gradients: Float[Tensor, "H R T"]


def scored_tokens(packed: Packed, padding: int | None) -> list[AskingTokens]:
    """The scored token of every branch; `padding` is the `pad_token_id` of the model's config."""
    layout = packed.layout
    roots = [root for root, tree in zip(layout.roots(), layout.trees, strict=True) for _ in tree.branches]
    return [
        AskingTokens((range(root, min(fork + 1, token)), range(begin, token)), range(token, token + 1))
        for root, (fork, begin, _), token in zip(
            roots, layout.branches(), packed.scored_tokens(padding).tolist(), strict=True
        )
    ]


def attention_rows(
    model: TransformersModel, packed: Packed, asking: Sequence[AskingTokens], read: ReadValues
) -> tuple[Float[Tensor, " values"], list[list[AttentionRows]]]:
    """Returns what is read at asking tokens, and for every layer the rows of every sequence.

    Args:
        model: A model whose attention is `longrm_shared_prefix`, in evaluation mode. Its weights get no gradient.
        packed: The whole sequence.
        asking: The tokens: some of each sequence.
        read: What is read of the asking tokens alone, laid side by side, a branch for each sequence.
    """
    known = _Remembering()
    with torch.no_grad():
        hidden_states(model, Packed(packed.input_ids, packed.position_ids, packed.layout, known))
    rows = _Asking(known.layers, asking)
    with torch.enable_grad(), embeddings_with_gradient(model):
        again = rows.pack(packed)
        values = read(hidden_states(model, again), again)
        gradients = iter(torch.autograd.grad(values.sum(), [one for layer in rows.weights for one in layer]))
    found = [
        [
            AttentionRows(*(_by_head(states.detach(), one) for states in (weights, next(gradients))))
            for weights, one in zip(layer, asking, strict=True)
        ]
        for layer in rows.weights
    ]
    return values.detach(), found


def embedding_gradients(model: TransformersModel, packed: Packed, read: ReadValues) -> Float[Tensor, "S C"]:
    """Returns the gradient, by the embedding of every token, of what is read from the last states of all tokens.

    The whole sequence is read backward; only the input of every layer is kept for it.
    """
    with torch.enable_grad(), embeddings_with_gradient(model) as embedded, _layers_computed_again(model):
        (gradient,) = torch.autograd.grad(read(hidden_states(model, packed), packed).sum(), embedded)
    return gradient[0]


@contextmanager
def embeddings_with_gradient(model: TransformersModel) -> Iterator[list[Tensor]]:
    """Has gradients reach the embeddings of tokens, even where all weights are frozen; the list holds them."""
    embedded: list[Tensor] = []
    hook = model.get_input_embeddings().register_forward_hook(
        lambda module, given, output: embedded.append(output.requires_grad_())
    )
    try:
        yield embedded
    finally:
        hook.remove()


@contextmanager
def _layers_computed_again(model: TransformersModel) -> Iterator[None]:
    """Keeps only the input of every layer; transformers itself does so in training mode alone."""
    layers = list(model.base_model.layers)
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            del layer.forward
            if own is not None:
                layer.forward = own


class _Remembering:
    """Computes the attention of every layer as ever, and keeps its keys and values."""

    def __init__(self) -> None:
        self.layers: list[tuple[Float[Tensor, "G S D"], Float[Tensor, "G S D"]]] = []

    def of(self, model: TransformersModel) -> "_Remembering":
        return self

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
        """See `LayerByLayer`."""
        assert layer == len(self.layers), "layers are computed in order"
        self.layers.append((key[0], value[0]))
        return over_layout(query, key, value, scaling, layout, only_ends)


class _Asking:
    """Computes the attention of asking tokens over what is kept, written out; `weights` holds it, layer by layer."""

    def __init__(self, known: Sequence[tuple[Tensor, Tensor]], asking: Sequence[AskingTokens]) -> None:
        self._known, self._asking = known, asking
        self.weights: list[list[Float[Tensor, "G H/G*R T"]]] = []

    def of(self, model: TransformersModel) -> "_Asking":
        return self

    def pack(self, packed: Packed) -> Packed:
        """The asking tokens of all sequences, as branches of a prefix of which nothing is left to read."""
        places = [place for one in self._asking for place in one.own]
        layout = PackedLayout((TreeShape(0, tuple(len(one.own) for one in self._asking)),))
        return Packed(packed.input_ids[:, places], packed.position_ids[:, places], layout, self)

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "1 H N D"],
        key: Float[Tensor, "1 G N D"],
        value: Float[Tensor, "1 G N D"],
        layout: PackedLayout,
        scaling: float | None,
        only_ends: bool,
    ) -> Float[Tensor, "1 N H D"]:
        """See `LayerByLayer`."""
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        keys, values = self._known[layer]
        lengths = [len(one.own) for one in self._asking]
        own = (torch.split(states[0], lengths, dim=1) for states in (query, key, value))
        computed = [
            _written_out(q, [*_at(one.before, keys), k], [*_at(one.before, values), v], scale)
            for one, q, k, v in zip(self._asking, *own, strict=True)
        ]
        self.weights.append([weights for weights, _ in computed])
        return torch.cat([output for _, output in computed], dim=1).transpose(0, 1)[None]


def _at(places: Sequence[range], states: Float[Tensor, "G S D"]) -> Iterator[Tensor]:
    return (states[:, place.start : place.stop] for place in places)


def _written_out(
    query: Float[Tensor, "H R D"], keys: Sequence[Tensor], values: Sequence[Tensor], scale: float
) -> tuple[Float[Tensor, "G H/G*R T"], Float[Tensor, "H R D"]]:
    """The weights and the output of rows over keys that lie in several places, of which none is copied.

    The last keys are those of the rows' own tokens, each of which sees those up to itself.
    """
    heads, own, _ = query.shape
    stacked = query.reshape(len(keys[0]), -1, query.shape[-1])
    scores = [stacked @ states.transpose(-1, -2) for states in keys]
    later = torch.ones(own, own, dtype=torch.bool, device=query.device).triu(1)
    scores[-1] = scores[-1].masked_fill(later.repeat(heads // len(keys[0]), 1), -torch.inf)
    precise = torch.promote_types(query.dtype, torch.float32)
    weights = (torch.cat(scores, dim=-1).to(precise) * scale).softmax(-1)
    parts = torch.split(weights.to(query.dtype), [states.shape[1] for states in values], dim=-1)
    output = sum((part @ states for part, states in zip(parts, values, strict=True)), stacked.new_zeros(()))
    return weights, output.reshape(query.shape)


def _by_head(states: Float[Tensor, "G H/G*R T"], one: AskingTokens) -> Float[Tensor, "H R T"]:
    return states.reshape(-1, len(one.own), states.shape[-1])
