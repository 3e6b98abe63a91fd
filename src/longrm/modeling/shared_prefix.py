"""Shared prefix: a prompt is encoded once for all of its responses, and scores are those of separate sequences.

    packed = pack([TokenTree(prefix, [response, response])]).to(model.device)
    values = scores(model, packed)                  # one per response
    logprobs = response_logprobs(model, packed)     # one tensor per response

A *tree* is a prefix and its branches, each of which may branch again: a context, the two orders of its responses, the
judgments of each. `pack` puts trees into one sequence without padding, nodes depth-first (`PackedLayout`):

    [ prefix | branch 1 | branch 2 | ... | context | order 1 | judgment | judgment | order 2 | judgment | ... ]
      tree 1                               tree 2

Results are those of the leaves, called branches, in order. Two things make each compute what it would compute alone
behind all that is above it. Positions continue those of the parent (`PackedLayout.position_ids`). And a node attends to
the nodes above it and to itself, never to another branch or tree (`attention`). All other parts of a decoder look at
one token at a time. The model is one of transformers, loaded with `longrm_shared_prefix` attention by `loading`; the
layout reaches that attention as a keyword argument, which transformers passes on to it.

Heads compute in fp32 whatever the dtype of the model: in bf16, scores around 8 are 1/16 apart.

Shapes: S tokens of the packed sequence, C hidden size, N targets, R tokens of a branch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from longrm.errors import DataError
from longrm.modeling.attention_varlen import AttentionSpec, Keys, Output, Queries
from longrm.modeling.device_memory import autocast_body
from longrm.modeling.heads import MLPHead, last_layer
from longrm.modeling.recurrent import pack_states
from longrm.modeling.sequence_parallel import gather_parts, gather_rows, own_part, own_share, sequence_group
from longrm.modeling.shapes import LOGITS_AT_ONCE, PackedLayout, TokenTree
from longrm.modeling.shapes import SHARED_PREFIX as SHARED_PREFIX

TransformersModel = Any
"""A transformers model whose attention is `longrm_shared_prefix`; transformers has no static type for its heads."""

Hidden = Float[Tensor, "S C"]
"""The last hidden states of a packed sequence, or of a process's share of it."""

LayerAttention = Callable[[int, Queries, Keys, Keys, PackedLayout, AttentionSpec, bool], Output]
"""Computes the attention of one layer, counted from 0: `attention.packed_attention` with the layer in front."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One packed sequence, the input of every function here."""

    input_ids: Int[Tensor, "1 S"]
    position_ids: Int[Tensor, "1 S"]
    layout: PackedLayout
    # Replaces the attention of a model's layers, `layer_attention`, and the recurrence, `layer_states`: to use cached
    # keys, values and states, or to record them.
    layers_for: Callable[[TransformersModel], dict[str, Any]] | None = None

    def to(self, device: torch.device | str) -> "Packed":
        """Returns the same sequence on a device."""
        return replace(self, input_ids=self.input_ids.to(device), position_ids=self.position_ids.to(device))

    def scored_tokens(self, padding: int | None) -> Int[Tensor, " branches"]:
        """The index of the token at which every branch is scored: the one where transformers reads a sequence's score.

        Transformers' sequence classifiers read the last token that is not padding (`pad_token_id` of the config), even
        in a sequence that nothing was added to: a response that ends in the padding token is scored before it. If a
        whole branch is padding that token is in a node above it, and if those are, too, it is the first token.
        """
        ids = self.input_ids[0]
        last = torch.tensor(self.layout.branch_ends(), device=ids.device)
        if padding is None:
            return last
        paths = self.layout.paths()
        # Every path from its root to its leaf, which shorter ones repeat: first and last token of each node.
        depth = max(map(len, paths))
        bounds = [
            [(p.start, p.stop - 1) for p in [*path, *[path[-1]] * (depth - len(path))]] for path in paths
        ]
        levels = torch.tensor(bounds, device=ids.device).permute(1, 2, 0)  # [depth, 2, branches]
        # latest[i] is the last index up to i that is not padding, over the packed sequence. Where it falls before a
        # node it may be in a neighbor, and then the one found above that node counts.
        places = torch.arange(len(ids), device=ids.device)
        latest = torch.where(ids == padding, -1, places).cummax(0).values
        scored = levels[0, 0]
        for begin, end in levels:
            scored = torch.where(latest[end] >= begin, latest[end], scored)
        return scored


def pack(trees: Sequence[TokenTree]) -> Packed:
    """Puts trees into one sequence, on the CPU; the nodes of each depth-first.

    Every node needs at least one token. Neighboring trees of equal shape are computed as a batch: sort by shape where
    you can.
    """
    nodes = [tokens for tree in trees for tokens, _ in tree.nodes()]
    if not nodes or not all(nodes):
        raise ValueError("each node of a tree needs at least one token")
    layout = PackedLayout(tuple(tree.shape for tree in trees))
    ids = [token for tokens in nodes for token in tokens]
    return Packed(torch.tensor([ids]), torch.tensor([layout.position_ids()]), layout)


def check_embedded(ids: Iterable[int], model: TransformersModel) -> None:
    """Raises a `DataError` for tokens beyond a model's embeddings: on a GPU they would end the process."""
    rows = model.get_input_embeddings().num_embeddings
    highest = max(ids, default=0)
    if highest >= rows:
        raise DataError(f"token {highest:,} is outside the model's {rows:,} embeddings; resize them")


def hidden_states(model: TransformersModel, packed: Packed, only_ends: bool = False) -> Hidden:
    """Returns the base model's last hidden states, by one forward pass for all trees.

    Where several processes share the sequence, these are the states of the process's own share. With `only_ends`, only
    those at the last token of every branch are meaningful, for less work.
    """
    group = sequence_group(model)
    inputs: dict[str, Any] = {"input_ids": packed.input_ids, "position_ids": packed.position_ids}
    if group is not None:
        inputs = {name: own_share(ids, group) for name, ids in inputs.items()} | {"sequence": group}
    if packed.layers_for is not None:
        inputs |= packed.layers_for(model)
    with autocast_body(model), attention_of(model, SHARED_PREFIX):
        output = model.base_model(**inputs, use_cache=False, layout=packed.layout, only_ends=only_ends)
    states: Tensor = output.last_hidden_state[0]
    return states


@contextmanager
def attention_of(model: TransformersModel, implementation: str) -> Iterator[None]:
    """Gives a model another attention within a block: a caller's that of packed sequences, longrm's own a plain one."""
    before = model.config._attn_implementation
    if before == implementation:
        yield
        return
    model.set_attn_implementation(implementation)
    # Recurrent layers that compute packed trees compute plain sequences, too; those of a caller become plain again.
    packed = implementation == SHARED_PREFIX and pack_states(model)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        if packed:
            pack_states(model, False)


@contextmanager
def evaluation_mode(model: TransformersModel) -> Iterator[None]:
    """Puts a model, perhaps one in training, into evaluation mode within a block.

    Every module gets its own mode back: a caller may keep some of a model in training in evaluation mode.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def scores(model: TransformersModel, packed: Packed) -> Float[Tensor, " branches"]:
    """Returns one fp32 score per branch, in the order in which the branches were packed."""
    return _linear(scored_states(model, packed), last_layer(model.score)).squeeze(-1)


def branch_scores(model: TransformersModel, hidden: Hidden, packed: Packed) -> Float[Tensor, " branches"]:
    """Returns what `scores` does, from the sequence's `hidden_states`."""
    rows = _rows(model, hidden, packed.scored_tokens(model.config.pad_token_id))
    return _linear(_head_inputs(model, rows), last_layer(model.score)).squeeze(-1)


def scored_states(model: TransformersModel, packed: Packed) -> Float[Tensor, "branches C"]:
    """Returns the states of which `scores` are linear functions: hidden states, or those inside an MLP head."""
    scored = packed.scored_tokens(model.config.pad_token_id)
    rows = _rows(model, hidden_states(model, packed, only_ends=_at_ends(scored, packed)), scored)
    return _head_inputs(model, rows)


def _head_inputs(model: TransformersModel, states: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
    return functional.silu(_linear(states, model.score)) if isinstance(model.score, MLPHead) else states


def _at_ends(scored: Int[Tensor, " branches"], packed: Packed) -> bool:
    """Whether all scores are read at the ends of branches, where that saves work: on a CPU."""
    if scored.device.type != "cpu":  # reading `scored` would wait for the GPU
        return False
    return scored.tolist() == packed.layout.branch_ends()


def response_logprobs(
    model: TransformersModel,
    packed: Packed,
    written: Sequence[Sequence[int]] | None = None,
    temperature: float = 1.0,
) -> list[Float[Tensor, " R"]]:
    """Returns the fp32 log-probabilities of the R written tokens of every branch, branch by branch.

    `written` are offsets from the end of every branch, as in `Encoded.completion_tokens`, and may reach into the nodes
    above; by default all tokens of the leaf. With a temperature they are those of softmax(logits / temperature), from
    which the tokens were sampled.
    """
    if written is None:
        written = [range(leaf.begin - leaf.end, 0) for leaf in packed.layout.leaves()]
    targets = [index for own in packed.layout.written_tokens(written) for index in own]
    logprobs = token_logprobs(model, hidden_states(model, packed), packed, targets, temperature)
    return list(torch.split(logprobs, list(map(len, written))))


def token_logprobs(
    model: TransformersModel,
    hidden: Hidden,
    packed: Packed,
    targets: Sequence[int],
    temperature: float = 1.0,
) -> Float[Tensor, " N"]:
    """Returns the fp32 log-probability of each target token, given all tokens that it follows in its own sequence.

    Targets are indices into the packed sequence, and none the first token of a prefix. A sequence classifier, without a
    language-model head, uses its input embeddings, as a tied head would.
    """
    # Only the N predicting states go through the vocabulary: logits of all S tokens would outweigh the model.
    states = _rows(model, hidden, packed.layout.predictors(targets))
    tokens = packed.input_ids[0, list(targets)]
    group = sequence_group(model)
    if group is None:
        return _logprobs_in_parts(states, model, tokens, temperature)
    # Every process has all N rows by now, and computes the logits of some of them.
    own = _logprobs_in_parts(own_part(states, group), model, own_part(tokens, group), temperature)
    return gather_parts(own, len(tokens), group)


def next_logits(model: TransformersModel, states: Float[Tensor, "N C"]) -> Float[Tensor, "N vocabulary"]:
    """Returns the fp32 logits of the token that follows each of some last hidden states."""
    return scaled_logits(model, _linear(states, _vocabulary_head(model)))


def scaled_logits(model: TransformersModel, logits: Tensor) -> Tensor:
    """Returns what the model's own forward makes of the output embeddings' logits; loading compares both."""
    config = model.config
    # Under the names that the configs of Cohere, Falcon H1, Granite and Gemma share.
    for name in ("logit_scale", "lm_head_multiplier"):
        if (factor := getattr(config, name, None)) is not None:
            logits = logits * factor
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / divisor
    if (softcap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits


def _vocabulary_head(model: TransformersModel) -> Any:
    return model.get_output_embeddings() or model.get_input_embeddings()


def next_logprobs(
    model: TransformersModel, packed: Packed, tokens: Sequence[int]
) -> Float[Tensor, "branches tokens"]:
    """Returns the fp32 log-probabilities of some tokens as the next one after every branch."""
    states = _rows(model, hidden_states(model, packed, only_ends=True), packed.layout.branch_ends())
    parts = torch.split(states, _states_at_once(model))
    return torch.cat([next_logits(model, part).log_softmax(-1)[:, list(tokens)] for part in parts])


def _states_at_once(model: TransformersModel) -> int:
    return max(1, LOGITS_AT_ONCE // len(_vocabulary_head(model).weight))


def _rows(
    model: TransformersModel, hidden: Hidden, indices: Sequence[int] | Int[Tensor, " N"]
) -> Float[Tensor, "N C"]:
    group = sequence_group(model)
    return hidden[indices] if group is None else gather_rows(hidden, indices, group)


def _logprobs_in_parts(
    states: Float[Tensor, "N C"], model: TransformersModel, tokens: Int[Tensor, " N"], temperature: float
) -> Float[Tensor, " N"]:
    """Computes logits `LOGITS_AT_ONCE` at a time, and again in the backward pass, so that one part is in memory."""
    size = _states_at_once(model)
    if len(tokens) <= size:
        return _logprobs(states, model, tokens, temperature)
    parts = zip(torch.split(states, size), torch.split(tokens, size), strict=True)
    again = partial(checkpoint, _logprobs, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([again(part, model, own, temperature) for part, own in parts])


def _logprobs(
    states: Float[Tensor, "N C"], model: TransformersModel, tokens: Int[Tensor, " N"], temperature: float
) -> Float[Tensor, " N"]:
    logits = next_logits(model, states)
    if temperature != 1.0:
        logits = logits / temperature
    return -functional.cross_entropy(logits, tokens, reduction="none")


def _linear(states: Tensor, head: nn.Module) -> Tensor:
    weight, bias = head.weight, getattr(head, "bias", None)
    assert isinstance(weight, Tensor)
    # Under a caller's autocast the product would be in bf16 after all.
    with torch.autocast(states.device.type, enabled=False):
        return functional.linear(states.float(), weight.float(), None if bias is None else bias.float())
