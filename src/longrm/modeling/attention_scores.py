"""FR and IG of LongRM: which regions of a context a reward model attends to where it is scored, layer by layer.

A score is read at one token, so of every head's attention one row matters, and no square matrix is made. The sequence
is read once without gradients, recording keys and values of all layers. Then the scored tokens alone are read again
over these, with gradients and attention written out. Keys before a token do not depend on it, so the gradient by its
own row passes through no other token and equals that of a backward pass through the whole sequence.

Influence that reaches a score through other tokens, which read the context before the scored one does, is not in its
row: in lower layers that is most of it. The gradient by embeddings (`embedding_gradient_norms`) holds all of it.

In memory are the keys and values of all layers, as in generation, and two or three times layers x heads x tokens
numbers per response.

Shapes: S tokens of the packed sequence, N responses, T tokens that one response's scored token sees, P tokens of the
prompt, C hidden size, H query heads, G key heads, D head size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from longrm.data.joining import encode, span_tokens
from longrm.errors import DataError
from longrm.modeling.attended_regions import (
    TOP_K,
    AttendedComparison,
    RegionAttention,
    Regions,
    ResponseAttention,
    context_regions,
)
from longrm.modeling.attention import keys_and_values
from longrm.modeling.attention_varlen import AttentionSpec, Keys, Output, Queries
from longrm.modeling.folders import check_keys_only
from longrm.modeling.loading import Scorer
from longrm.modeling.shapes import PackedLayout, TreeShape, build_trees
from longrm.modeling.shared_prefix import (
    Packed,
    TransformersModel,
    branch_scores,
    check_embedded,
    hidden_states,
    pack,
)
from longrm.types import Comparison, Query, Span, query_of


def attended(
    scorer: Scorer,
    comparison: Comparison,
    *,
    interfering: Sequence[Span] = (),
    k: int = TOP_K,
    gradients: bool = False,
) -> AttendedComparison:
    """Measures what the responses of a comparison attend to in its evidence, in interfering and in irrelevant text.

    Args:
        scorer: The model, in evaluation mode.
        comparison: A comparison with gold ranks that are not all equal.
        interfering: Spans of misleading text.
        k: How many tokens a head attends to.
        gradients: Also compute gradients by embeddings, of the margin between the best response and the worse one with
            the highest score. They take a backward pass through the whole prompt.

    Raises:
        DataError: The comparison cannot be encoded, is longer than the model reads, or its regions cannot be found.
    """
    ranks = comparison.ranks
    assert ranks is not None, "whether a judgment is right is known from gold ranks only"
    regions = context_regions(comparison, interfering)
    query = query_of(comparison, range(len(comparison.responses)))
    found = tuple(region_scores(scorer, query, regions, k=k))
    # Of several best ranks and of several worse ones, the response with the highest score.
    order = sorted(range(len(found)), key=lambda at: -found[at].score)
    best = next(at for at in order if ranks[at] == min(ranks))
    worse = [at for at in order if ranks[at] > ranks[best]]
    norms = None
    if gradients:
        pair = replace(query, responses=tuple(comparison.responses[at] for at in (best, *worse[:1])))
        norms = embedding_gradient_norms(scorer, pair, regions)
    right = all(found[best].score > found[at].score for at in worse)
    return AttendedComparison(comparison.id, comparison.group, right, found, norms)


def region_scores(
    scorer: Scorer, query: Query, regions: Regions, *, k: int = TOP_K
) -> list[ResponseAttention]:
    """Measures what the scored token of every response of a query attends to in regions of the prompt.

    The gradient of IG is that of the response's own score. That of a margin of two scores is the same except for its
    sign. That of the Bradley-Terry loss is smaller by one factor per comparison, which is close to 0 where a model is
    right and sure: right and wrong judgments would differ by that factor alone.

    A head attends to the `k` tokens with the largest weights of a row.
    """
    packed, masks = _encoded(scorer, query, regions)
    scores, rows = attention_rows(scorer.model, packed)
    measured = []
    for score, layers in zip(scores.tolist(), rows, strict=True):
        by_layer = [token_attention(row, k) for row in layers]
        tokens = len(by_layer[0][0])
        found = {name: _region_attention(by_layer, mask[:tokens]) for name, mask in masks.items()}
        measured.append(ResponseAttention(score, tokens, min(1.0, k / tokens), found))
    return measured


def embedding_gradient_norms(scorer: Scorer, query: Query, regions: Regions) -> dict[str, float]:
    """Measures the mean L1 norm, over a region's tokens, of the gradient of the score by their embeddings.

    With two responses it is the gradient of their margin. Regions without a token are omitted.
    """
    assert len(query.responses) <= 2, "a margin needs two responses"
    packed, masks = _encoded(scorer, query, regions)

    def margin(hidden: Float[Tensor, "S C"], own: Packed) -> Float[Tensor, " N"]:
        values = branch_scores(scorer.model, hidden, own)
        return values * torch.tensor([1.0, -1.0], device=values.device)[: len(values)]

    norms = embedding_gradients(scorer.model, packed, margin).abs().sum(-1)
    return {name: float(norms[: len(mask)][mask].mean()) for name, mask in masks.items()}


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRow:
    """The attention of one response's scored token in one layer."""

    # After the softmax, over the tokens of its prefix, of its response, and itself.
    weights: Float[Tensor, "H T"]
    gradients: Float[Tensor, "H T"]  # of the response's score by these weights


def attention_rows(
    model: TransformersModel, packed: Packed
) -> tuple[Float[Tensor, " N"], list[list[AttentionRow]]]:
    """Returns the scores of all responses and, for every response, the row of its scored token in every layer.

    The model is in evaluation mode, with `longrm_shared_prefix` attention; its weights get no gradient.
    """
    check_keys_only(model.config, "attention at scored tokens")
    known = keys_and_values(model, packed)
    scored = packed.scored_tokens(model.config.pad_token_id).tolist()
    seen = _tokens_before(packed.layout, scored)
    weights: list[list[Float[Tensor, "G H/G T"]]] = []  # by layer and response

    def attend(layer: int, query: Queries, key: Keys, value: Keys, *options: Any) -> Output:
        _, spec, _ = options
        keys, values = known[layer]
        outputs, own_weights = [], []
        for number, places in enumerate(seen):
            own = slice(number, number + 1)  # the scored token itself, whose key is not frozen
            found, output = _written_out(
                query[0, :, own],
                [*(keys[:, place.start : place.stop] for place in places), key[0, :, own]],
                [*(values[:, place.start : place.stop] for place in places), value[0, :, own]],
                spec,
            )
            own_weights.append(found)
            outputs.append(output)
        weights.append(own_weights)
        return torch.cat(outputs, dim=1).transpose(0, 1)[None]

    # The scored tokens as branches without a prefix, at the positions that they have in the whole sequence.
    layout = PackedLayout((TreeShape(0, (1,) * len(scored)),))
    over_keys = {"layer_attention": attend}
    again = Packed(
        packed.input_ids[:, scored], packed.position_ids[:, scored], layout, lambda model: over_keys
    )
    with torch.enable_grad(), _embedding_outputs(model):
        scores = branch_scores(model, hidden_states(model, again), again)
        # Each score depends on its own row only, so the gradient of their sum holds the gradient of each.
        flat = [one for layer in weights for one in layer]
        gradients = torch.autograd.grad(scores.sum(), flat)
    rows = [
        AttentionRow(own.detach().flatten(0, 1), gradient.flatten(0, 1))
        for own, gradient in zip(flat, gradients, strict=True)
    ]
    return scores.detach(), [rows[number :: len(scored)] for number in range(len(scored))]


def _tokens_before(layout: PackedLayout, scored: Sequence[int]) -> list[list[range]]:
    """Where the tokens are that each branch's scored token sees before itself: in every node of its path."""
    return [
        # A branch of padding is scored above it, and then sees the path up to there.
        [range(place.start, min(place.stop, token)) for place in path if place.start < token]
        for path, token in zip(layout.paths(), scored, strict=True)
    ]


def _written_out(
    query: Float[Tensor, "H 1 D"], keys: Sequence[Tensor], values: Sequence[Tensor], spec: AttentionSpec
) -> tuple[Float[Tensor, "G H/G T"], Float[Tensor, "H 1 D"]]:
    """Returns weights and output of a row over keys `[G, *, D]` in several places, none of which is copied.

    Keys are in the order of their positions, the query's own last. Those before its window have weight zero.
    """
    stacked = query.reshape(len(keys[0]), -1, query.shape[-1])  # the heads of a group as rows of one head
    scores = torch.cat([stacked @ states.transpose(-1, -2) for states in keys], dim=-1)
    scores = scores.to(torch.promote_types(query.dtype, torch.float32)) * spec.scale
    weights = spec.softmax(scores[..., -(spec.window or 0) :])
    weights = functional.pad(weights, (scores.shape[-1] - weights.shape[-1], 0))
    parts = torch.split(weights.to(query.dtype), [states.shape[1] for states in values], dim=-1)
    output = sum((part @ states for part, states in zip(parts, values, strict=True)), stacked.new_zeros(()))
    return weights, output.reshape(query.shape)


def embedding_gradients(
    model: TransformersModel, packed: Packed, read: Callable[[Float[Tensor, "S C"], Packed], Tensor]
) -> Float[Tensor, "S C"]:
    """Returns the gradient, by the embedding of every token, of the sum of values read from the last hidden states.

    The backward pass goes through the whole sequence; only the input of every layer is stored for it.
    """
    with torch.enable_grad(), _embedding_outputs(model) as embedded, _checkpointed_layers(model):
        (gradient,) = torch.autograd.grad(read(hidden_states(model, packed), packed).sum(), embedded)
    return gradient[0]


@contextmanager
def _embedding_outputs(model: TransformersModel) -> Iterator[list[Tensor]]:
    """Makes gradients reach the embeddings of tokens, even if all weights are frozen; the list collects them."""
    embedded: list[Tensor] = []
    hook = model.get_input_embeddings().register_forward_hook(
        lambda module, given, output: embedded.append(output.requires_grad_())
    )
    try:
        yield embedded
    finally:
        hook.remove()


@contextmanager
def _checkpointed_layers(model: TransformersModel) -> Iterator[None]:
    """Stores only the input of every layer; transformers itself checkpoints in training mode alone."""
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


TokenAttention = tuple[Float[Tensor, " T"], Float[Tensor, " T"], Float[Tensor, " T"]]


def token_attention(row: AttentionRow, k: int) -> TokenAttention:
    """Returns FR, IG and attention mass of every token, means over heads.

    FR is the share of heads with the token among their top k; of equal weights the earlier tokens come first. A token
    before a head's window has no weight and is not counted.
    """
    top = row.weights.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    chosen = torch.zeros_like(row.weights).scatter(-1, top, 1.0) * (row.weights > 0)
    return chosen.mean(dim=0), (row.weights * row.gradients).abs().mean(dim=0), row.weights.mean(dim=0)


def _region_attention(layers: Sequence[TokenAttention], mask: Bool[Tensor, " P"]) -> RegionAttention:
    fr, ig, mass = ([values[: len(mask)][mask] for values in kind] for kind in zip(*layers, strict=True))
    return RegionAttention(
        int(mask.sum()),
        fr=tuple(float(values.mean()) for values in fr),
        ig=tuple(float(values.mean()) for values in ig),
        mass=tuple(float(values.sum()) for values in mass),
    )


def _encoded(scorer: Scorer, query: Query, regions: Regions) -> tuple[Packed, dict[str, Bool[Tensor, " P"]]]:
    """The packed query, and which tokens of the prompt belong to each region; a region without any is omitted."""
    encoded = encode(scorer.tokenizer, query.prompt, query.responses, query.tools)
    for ids in (encoded.prompt, *encoded.responses):
        check_embedded(ids, scorer.model)
    limit = int(scorer.model.config.max_position_embeddings)
    if encoded.longest > limit:
        raise DataError(f"{query.id}: {encoded.longest:,} tokens exceed the model's limit of {limit:,}")
    tokens, device = len(encoded.prompt), scorer.model.device
    masks = {}
    for name, places in span_tokens(scorer.tokenizer, query.prompt, regions, query.tools).items():
        mask = torch.zeros(tokens, dtype=torch.bool, device=device)
        # The shared prompt may lack the last tokens of the prompt alone: those that merge with a response.
        mask[[token for token in places if token < tokens]] = True
        if mask.any():
            masks[name] = mask
    return pack(build_trees([encoded])).to(device), masks
