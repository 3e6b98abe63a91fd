"""Samples several continuations of one prompt together: the prompt is read once, and a step reads one token of each.

    sampler = GroupSampler(model, ends={tokenizer.eos_id})
    samples = sampler.sample(prompt, seeds=range(8), temperature=1.0, top_p=1.0, max_tokens=512)

Keys and values of the prompt are kept once for all continuations, so memory grows with the prompt and with the tokens
written, not with the prompt times their number. What a prompt shares with the one before it is not read again: both
orders of a comparison share the context.

The model has `longrm_shared_prefix` attention, as in training.

Shapes: P tokens of the prompt, T tokens written so far, N continuations, H query heads, G key heads, D head size, V
tokens of the vocabulary.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from longrm.data.joining import common_prefix
from longrm.modeling.attention import packed_attention, segment_attention
from longrm.modeling.attention_varlen import AttentionSpec, Keys, Output, Queries
from longrm.modeling.shapes import PackedLayout, TreeShape
from longrm.modeling.shared_prefix import (
    LayerAttention,
    Packed,
    TransformersModel,
    hidden_states,
    next_logits,
)

_BLOCK = 2048
"""Tokens of a prompt that are read at once: enough to keep a GPU busy, and few next to a long prompt."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One continuation."""

    tokens: tuple[int, ...]  # with the end token, if it was written
    ended: bool  # whether the last token is an end token; otherwise `max_tokens` was reached
    entropy: float  # mean entropy in nats of the distributions that the tokens were drawn from, before top-p


class GroupSampler:
    """Samples continuations with a model; a continuation ends at any of the tokens `ends`."""

    def __init__(self, model: TransformersModel, ends: Collection[int]) -> None:
        self._model = model
        self._ends = frozenset(ends)
        self._prompt: list[int] = []  # the tokens whose keys and values are kept
        self._keys: list[tuple[Tensor, Tensor]] = []  # of every layer, [G, P, D] each

    @torch.inference_mode()
    def sample(
        self,
        prompt: Sequence[int],
        seeds: Sequence[int],
        *,
        temperature: float,
        top_p: float,
        max_tokens: int,
    ) -> list[Sample]:
        """Samples one continuation for every seed, from softmax(logits / temperature).

        With `top_p` below 1 only the most likely tokens that together have this probability are drawn (Holtzman et al.
        2020). The same weights, prompt and seeds give the same tokens.

        Raises:
            FloatingPointError: The logits are not finite.
        """
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        written: list[list[int]] = [[] for _ in seeds]
        entropies = [0.0] * len(seeds)
        live = list(range(len(seeds)))
        logits = self._read(list(prompt)).expand(len(seeds), -1)
        own = _OwnKeys(self._keys, len(prompt), len(seeds), max_tokens)
        while True:
            if not torch.isfinite(logits.max(dim=-1).values).all():
                raise FloatingPointError(f"the logits of token {len(written[live[0]]) + 1} are not finite")
            # On the CPU, so that a seed means the same on every device.
            logprobs = (logits.cpu() / temperature).log_softmax(dim=-1)
            probabilities = logprobs.exp()
            entropy = -(probabilities * logprobs.clamp_min(torch.finfo(torch.float32).min)).sum(dim=-1)
            for row, index in enumerate(live):
                entropies[index] += entropy[row].item()
                written[index].append(_draw(probabilities[row], top_p, generators[index]))
            kept = [
                row
                for row, index in enumerate(live)
                if written[index][-1] not in self._ends and len(written[index]) < max_tokens
            ]
            if not kept:
                break
            if len(kept) < len(live):
                live = [live[row] for row in kept]
                own.keep(kept)
            logits = self._forward(
                [written[index][-1] for index in live], own.position, own.attend, rows=len(live)
            )
            own.position += 1
        return [
            Sample(tuple(tokens), tokens[-1] in self._ends, total / len(tokens))
            for tokens, total in zip(written, entropies, strict=True)
        ]

    def _read(self, prompt: list[int]) -> Float[Tensor, "1 V"]:
        """Reads what is not kept of a prompt; returns the logits after its last token."""
        # prompt[:-1]: the last token must be read for its logits even if all of the prompt is kept.
        start = common_prefix(self._prompt, prompt[:-1])
        before, self._prompt, self._keys = self._keys, [], []

        def attend(
            layer: int,
            query: Queries,
            key: Keys,
            value: Keys,
            layout: PackedLayout,
            spec: AttentionSpec,
            only_ends: bool,
        ) -> Output:
            if layer == len(self._keys):
                # [G, P, D] for the whole prompt
                room = [part.new_empty(part.shape[1], len(prompt), part.shape[3]) for part in (key, value)]
                for new, old in zip(room, before[layer] if start else (), strict=False):
                    new[:, :start] = old[:, :start]
                self._keys.append((room[0], room[1]))
            keys, values = self._keys[layer]
            end = begin + layout.tokens
            keys[:, begin:end], values[:, begin:end] = key[0], value[0]
            if not begin:
                return packed_attention(query, key, value, layout, spec)
            return segment_attention(query, keys[None, :, :end], values[None, :, :end], [layout.tokens], spec)

        for begin in range(start, len(prompt), _BLOCK):
            logits = self._forward(prompt[begin : begin + _BLOCK], begin, attend)
        self._prompt = prompt
        return logits

    def _forward(
        self, ids: Sequence[int], position: int, attend: LayerAttention, rows: int = 0
    ) -> Float[Tensor, "N V"]:
        """Reads tokens; returns the logits after the last one, or with `rows` tokens of one position after each."""
        places = [position] * rows if rows else range(position, position + len(ids))
        packed = Packed(
            torch.tensor([list(ids)]),
            torch.tensor([list(places)]),
            PackedLayout((TreeShape(len(ids), ()),)),
            lambda model: attend,
        ).to(self._model.device)
        hidden = hidden_states(self._model, packed)
        return next_logits(self._model, hidden if rows else hidden[-1:])


class _OwnKeys:
    """Keys and values of what N continuations have written, next to those of their prompt."""

    def __init__(self, prompt: Sequence[tuple[Tensor, Tensor]], position: int, count: int, most: int) -> None:
        self.position = position  # of the next token in every continuation
        self._prompt, self._begin = prompt, position
        # of every layer, [N, G, max_tokens, D] each
        self._written = [
            tuple(part.new_empty(count, part.shape[0], most, part.shape[2]) for part in pair)
            for pair in prompt
        ]

    def keep(self, rows: Sequence[int]) -> None:
        """Drops the continuations that have ended."""
        self._written = [tuple(part[list(rows)] for part in pair) for pair in self._written]

    def attend(
        self,
        layer: int,
        query: Queries,
        key: Keys,
        value: Keys,
        layout: PackedLayout,
        spec: AttentionSpec,
        only_ends: bool,
    ) -> Output:
        """Attends from one new token of every continuation to the prompt and to the continuation's own tokens."""
        written = self.position - self._begin + 1  # with the new token
        own_keys, own_values = self._written[layer]
        # [1, G, N, D] -> [N, G, D]
        own_keys[:, :, written - 1], own_values[:, :, written - 1] = (
            key[0].transpose(0, 1),
            value[0].transpose(0, 1),
        )
        keys, values = self._prompt[layer]  # [G, P, D]
        # All new tokens have the same position, and so the same window.
        first = 0 if spec.window is None else max(0, self.position + 1 - spec.window)
        keys, values = keys[:, first:], values[:, first:]
        first_own = max(0, first - self._begin)
        own_keys, own_values = own_keys[:, :, first_own:written], own_values[:, :, first_own:written]
        groups, count = key.shape[1], key.shape[2]
        # [1, H, N, D] -> [G, H / G, N, D]: neighboring query heads share a key head
        grouped = query[0].reshape(groups, -1, count, query.shape[3]) * spec.scale
        rows = grouped.flatten(
            1, 2
        )  # [G, H / G * N, D]: the prompt's keys are the same for all continuations
        to_prompt = (rows @ keys.transpose(1, 2)).reshape(*grouped.shape[:3], -1)  # [G, H / G, N, P]
        to_own = torch.einsum("grnd,ngtd->grnt", grouped, own_keys)
        weights = spec.softmax(torch.cat([to_prompt, to_own], dim=-1).float()).to(value.dtype)
        of_prompt, of_own = torch.split(weights, [keys.shape[1], own_keys.shape[2]], dim=-1)
        output: Tensor = (of_prompt.flatten(1, 2) @ values).reshape(grouped.shape)
        output = output + torch.einsum("grnt,ngtd->grnd", of_own, own_values)
        return output.flatten(0, 1).transpose(0, 1)[None]  # [1, N, H, D]


def _draw(probabilities: Float[Tensor, " V"], top_p: float, generator: torch.Generator) -> int:
    if top_p < 1.0:
        ordered, tokens = probabilities.sort(descending=True)
        # A token is drawn if those before it have less than top_p together; so is the most likely one in any case.
        ordered = torch.where(ordered.cumsum(0) - ordered < top_p, ordered, 0.0)
        return int(tokens[torch.multinomial(ordered, 1, generator=generator)])
    return int(torch.multinomial(probabilities, 1, generator=generator))
