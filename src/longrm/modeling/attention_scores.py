"""FR and IG of LongRM: which regions of a context a reward model attends to where it is read, layer by layer.

A score is read at one token, so of every head's attention one row matters, and no square matrix is made. The sequence
is read once without gradients, recording keys and values of all layers. Then the scored tokens alone are read again
over these, with gradients and attention written out. Keys before a token do not depend on it, so the gradient by its
own rows passes through no other token and equals that of a backward pass through the whole sequence.

Influence that reaches a score through other tokens, which read the context before the scored one does, is not in its
row: in lower layers that is most of it. The gradient by embeddings (`embedding_gradient_norms`) holds all of it.

In memory are the keys and values of all layers, as in generation, and two or three times layers x heads x tokens
numbers per row.

Shapes: S tokens of the packed sequence, N row tokens of all sequences, R those of one, T tokens that one sequence
sees, P tokens of the prompt, C hidden size, H query heads, G key heads, D head size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longrm.data.joining import Encoded, encode, span_tokens
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
from longrm.modeling.attention_varlen import Keys, Output, Queries
from longrm.modeling.loading import LanguageModel, LoadedModel, Scorer
from longrm.modeling.shapes import PackedLayout, TokenTree, TreeShape, build_trees
from longrm.modeling.shared_prefix import (
    Packed,
    TransformersModel,
    branch_scores,
    check_embedded,
    hidden_states,
    pack,
    token_logprobs,
)
from longrm.types import Comparison, Message, Query, Span, Tool, query_of

ReadValues = Callable[[Float[Tensor, "S C"], Packed], Float[Tensor, " values"]]
"""The last hidden states of a packed sequence to the values read from them; gradients are those of their sum."""


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
        gradients: Also compute gradients by embeddings, of the margin between the best response and the worse one
            with the highest score. They take a backward pass through the whole prompt.

    Raises:
        DataError: As for `region_scores`.
    """
    ranks = comparison.ranks
    assert ranks is not None, "whether a judgment is right is known from gold ranks only"
    regions = context_regions(comparison, interfering)
    query = query_of(comparison, range(len(comparison.responses)))
    found = tuple(region_scores(scorer, query, regions, k=k))
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
    right and
    sure: right and wrong judgments would differ by that factor alone.

    Args:
        scorer: The model, in evaluation mode.
        query: Prompt and responses.
        regions: Spans of the prompt.
        k: How many tokens a head attends to: those with the largest weights of a row.

    Raises:
        DataError: The query cannot be encoded, is longer than the model reads, or its regions cannot be found.
        ValueError: k is below 1.
    """
    _check_k(k)
    encoded, packed = _packed(scorer, query)
    masks = _region_masks(scorer, query.prompt, regions, len(encoded.prompt), query.tools)
    rows = scored_rows(packed, scorer.model.config.pad_token_id)
    read = partial(branch_scores, scorer.model)  # each response's gradient stays in its own rows
    scores, layers = attention_rows(scorer.model, packed, rows, read)
    by_response = zip(scores.tolist(), zip(*layers, strict=True), strict=True)
    return [_response_attention(score, own, masks, k) for score, own in by_response]


def verdict_attention(
    judge: LanguageModel,
    messages: Sequence[Message],
    written: str,
    verdict: tuple[int, int],
    regions: Regions,
    *,
    k: int = TOP_K,
) -> ResponseAttention:
    """Measures what a judge attends to in regions of its prompt where it writes its verdict.

    The rows are those that predict the verdict's tokens, each of the token before; measures are means over them. The
    gradient of IG is that of the sum of these tokens' log-probabilities.

    Args:
        judge: A language model loaded with `packed=True`, in evaluation mode.
        messages: Its prompt.
        written: Its answer.
        verdict: The verdict's first character in the answer, and one past its last.
        regions: Spans of the messages.
        k: As for `region_scores`.

    Raises:
        DataError: The verdict has no token, the text is longer than the model reads, or its regions cannot be found.
        ValueError: k is below 1.
    """
    _check_k(k)
    prompt = judge.tokenizer.generation_ids(messages)
    encoding = judge.tokenizer.backend.encode(written, add_special_tokens=False)
    start, end = verdict
    places = [at for at, (low, high) in enumerate(encoding.offsets) if low < end and high > start]
    if not places:
        raise DataError(f"characters {start} to {end} of the answer contain no token")
    ids = [*prompt, *encoding.ids[: places[-1] + 1]]
    _check_readable(judge, [ids], "the judgment")
    first = len(prompt) + places[0] - 1  # predicts the verdict's first token
    packed = pack([TokenTree(ids[:first], [ids[first:]])]).to(judge.model.device)

    def read(hidden: Float[Tensor, "S C"], own: Packed) -> Float[Tensor, " tokens"]:
        return token_logprobs(judge.model, hidden, own, range(1, len(ids) - first))

    logprobs, layers = attention_rows(
        judge.model, packed, [RowTokens((range(first),), range(first, len(ids)))], read
    )
    # The last token of the verdict predicts nothing that is read: without its row and column.
    rows = [AttentionRows(one.weights[:, :-1, :-1], one.gradients[:, :-1, :-1]) for (one,) in layers]
    masks = _region_masks(judge, messages, regions, len(prompt))
    return _response_attention(float(logprobs.sum()), rows, masks, k)


def embedding_gradient_norms(scorer: Scorer, query: Query, regions: Regions) -> dict[str, float]:
    """Measures the mean L1 norm, over a region's tokens, of the gradient of the score by their embeddings.

    With two responses it is the gradient of their margin. Regions without a token are omitted.

    Raises:
        DataError: As for `region_scores`.
        ValueError: There are more than two responses.
    """
    if len(query.responses) > 2:
        raise ValueError(f"a margin needs two responses, got {len(query.responses)}")
    encoded, packed = _packed(scorer, query)
    masks = _region_masks(scorer, query.prompt, regions, len(encoded.prompt), query.tools)

    def margin(hidden: Float[Tensor, "S C"], own: Packed) -> Float[Tensor, " responses"]:
        values = branch_scores(scorer.model, hidden, own)
        return values * torch.tensor([1.0, -1.0], device=values.device)[: len(values)]

    norms = embedding_gradients(scorer.model, packed, margin).abs().sum(-1)
    return {name: float(norms[: len(mask)][mask].mean()) for name, mask in masks.items()}


# Rows of attention


@dataclass(frozen=True, slots=True)
class RowTokens:
    """Neighboring tokens of one sequence whose rows of attention are computed.

    Attributes:
        before: Where in the packed sequence the tokens are that these continue, in order.
        own: Where they are themselves.
    """

    before: tuple[range, ...]
    own: range


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRows:
    """The rows of one sequence in one layer.

    Attributes:
        weights: Each row token's attention after the softmax; columns are the tokens of `before` and then of `own`.
        gradients: The gradient of the values read by these weights.
    """

    weights: Float[Tensor, "H R T"]
    gradients: Float[Tensor, "H R T"]


def scored_rows(packed: Packed, padding: int | None) -> list[RowTokens]:
    """Returns the scored token of every branch; `padding` is the `pad_token_id` of the model's config."""
    layout = packed.layout
    roots = [root for root, tree in zip(layout.roots(), layout.trees, strict=True) for _ in tree.branches]
    scored = packed.scored_tokens(padding).tolist()
    return [
        # Its prefix and its branch up to it; min, as a branch of padding is scored in its prefix.
        RowTokens((range(root, min(fork + 1, token)), range(begin, token)), range(token, token + 1))
        for root, (fork, begin, _), token in zip(roots, layout.branches(), scored, strict=True)
    ]


def attention_rows(
    model: TransformersModel, packed: Packed, rows: Sequence[RowTokens], read: ReadValues
) -> tuple[Float[Tensor, " values"], list[list[AttentionRows]]]:
    """Returns the values read at row tokens and, for every layer, the rows of every sequence.

    Args:
        model: A model with `longrm_shared_prefix` attention, in evaluation mode. Its weights get no gradient.
        packed: The whole sequence.
        rows: Some tokens of each sequence.
        read: Reads values from the row tokens alone, packed as one branch per sequence.
    """
    known = keys_and_values(model, packed)
    lengths = [len(one.own) for one in rows]
    weights: list[list[Float[Tensor, "G H/G*R T"]]] = []  # by layer and sequence

    def attend(
        layer: int,
        query: Queries,
        key: Keys,
        value: Keys,
        layout: PackedLayout,
        scale: float,
        only_ends: bool,
    ) -> Output:
        keys, values = known[layer]
        own = (torch.split(states[0], lengths, dim=1) for states in (query, key, value))
        computed = [
            _written_out(
                q,
                [*(keys[:, place.start : place.stop] for place in one.before), k],
                [*(values[:, place.start : place.stop] for place in one.before), v],
                scale,
            )
            for one, q, k, v in zip(rows, *own, strict=True)
        ]
        weights.append([found for found, _ in computed])
        return torch.cat([output for _, output in computed], dim=1).transpose(0, 1)[None]

    places = [place for one in rows for place in one.own]
    # Positions are those of the whole sequence; the layout is one of branches without a prefix.
    layout = PackedLayout((TreeShape(0, tuple(lengths)),))
    again = Packed(packed.input_ids[:, places], packed.position_ids[:, places], layout, lambda model: attend)
    with torch.enable_grad(), _embedding_outputs(model):
        values = read(hidden_states(model, again), again)
        gradients = iter(torch.autograd.grad(values.sum(), [one for layer in weights for one in layer]))
    found = [
        [
            AttentionRows(
                *(states.detach().reshape(-1, length, states.shape[-1]) for states in (own, next(gradients)))
            )
            for own, length in zip(layer, lengths, strict=True)
        ]
        for layer in weights
    ]
    return values.detach(), found


def _written_out(
    query: Float[Tensor, "H R D"], keys: Sequence[Tensor], values: Sequence[Tensor], scale: float
) -> tuple[Float[Tensor, "G H/G*R T"], Float[Tensor, "H R D"]]:
    """Returns weights and output of rows over keys in several places, none of which is copied.

    The last keys are those of the rows' own tokens, each of which sees those up to itself.
    """
    heads, own, _ = query.shape
    stacked = query.reshape(len(keys[0]), -1, query.shape[-1])  # the heads of a group as rows of one head
    scores = [stacked @ states.transpose(-1, -2) for states in keys]
    later = torch.ones(own, own, dtype=torch.bool, device=query.device).triu(1)
    scores[-1] = scores[-1].masked_fill(later.repeat(heads // len(keys[0]), 1), -torch.inf)
    precise = torch.promote_types(query.dtype, torch.float32)
    weights = (torch.cat(scores, dim=-1).to(precise) * scale).softmax(-1)
    parts = torch.split(weights.to(query.dtype), [states.shape[1] for states in values], dim=-1)
    output = sum((part @ states for part, states in zip(parts, values, strict=True)), stacked.new_zeros(()))
    return weights, output.reshape(query.shape)


def embedding_gradients(model: TransformersModel, packed: Packed, read: ReadValues) -> Float[Tensor, "S C"]:
    """Returns the gradient of values read from the last states, by the embedding of every token.

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


# Regions


def token_attention(
    rows: AttentionRows, k: int
) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"], Float[Tensor, " T"]]:
    """Returns three measures of every token, means over heads and rows.

    They are the share of heads with the token among their top k (of equal weights the earlier tokens come first), the
    attention times its gradient without its sign, and the attention itself.
    """
    weights = rows.weights
    top = weights.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    chosen = torch.zeros_like(weights).scatter(-1, top, 1.0)
    fr, ig, mass = (values.mean(dim=(0, 1)) for values in (chosen, (weights * rows.gradients).abs(), weights))
    return fr, ig, mass


def _response_attention(
    score: float, layers: Sequence[AttentionRows], masks: Mapping[str, Bool[Tensor, " P"]], k: int
) -> ResponseAttention:
    measured = [token_attention(rows, k) for rows in layers]
    tokens = len(measured[0][0])
    regions = {}
    for name, mask in masks.items():
        mask = mask[:tokens]
        fr, ig, mass = (
            [values[: len(mask)][mask] for values in kind] for kind in zip(*measured, strict=True)
        )
        regions[name] = RegionAttention(
            int(mask.sum()),
            fr=tuple(float(values.mean()) for values in fr),
            ig=tuple(float(values.mean()) for values in ig),
            mass=tuple(float(values.sum()) for values in mass),
        )
    return ResponseAttention(score, tokens, min(1.0, k / tokens), regions)


def _region_masks(
    loaded: LoadedModel, prompt: Sequence[Message], regions: Regions, tokens: int, tools: Sequence[Tool] = ()
) -> dict[str, Bool[Tensor, " P"]]:
    """Which tokens of the prompt belong to each region; a region without any is omitted."""
    found = span_tokens(loaded.tokenizer, prompt, regions, tools)
    masks = {name: torch.zeros(tokens, dtype=torch.bool, device=loaded.model.device) for name in regions}
    for name, mask in masks.items():
        mask[[token for token in found[name] if token < tokens]] = True
    return {name: mask for name, mask in masks.items() if mask.any()}


def _packed(scorer: Scorer, query: Query) -> tuple[Encoded, Packed]:
    encoded = encode(scorer.tokenizer, query.prompt, query.responses, query.tools)
    _check_readable(scorer, [[*encoded.prompt, *own] for own in encoded.responses], query.id)
    return encoded, pack(build_trees([encoded])).to(scorer.model.device)


def _check_readable(loaded: LoadedModel, sequences: Sequence[Sequence[int]], what: str) -> None:
    for ids in sequences:
        check_embedded(ids, loaded.model)
    longest, limit = max(map(len, sequences)), int(loaded.model.config.max_position_embeddings)
    if longest > limit:
        raise DataError(f"{what}: {longest:,} tokens exceed the model's limit of {limit:,}")


def _check_k(k: int) -> None:
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
