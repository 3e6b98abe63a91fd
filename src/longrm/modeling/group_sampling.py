"""Writes several continuations together, of one prompt or of many: a step reads one token of each.

    sampler = GroupSampler(model, ends={tokenizer.eos_id})
    samples = sampler.sample(prompt, seeds=range(8), temperature=1.0, top_p=1.0, max_tokens=512)
    samples = sampler.write([Continuation(prompt, max_tokens=512) for prompt in prompts])

Keys and values are kept once for all prompts that begin alike, so memory grows with the different tokens of the prompts
and with the tokens written. What a prompt shares with one of the call before is not read again: both orders of a
comparison share the context.

All keys of a layer are in one tensor, and a continuation sees some ranges of it: those of its prompt, which it may
share with others, and its own. Attention over them needs neither padding nor a copy (`attention.range_attention`).

Recurrent layers have states instead, one set for each continuation. A prompt can begin only where states are kept:
where prompts of one call part, and as far apart as they take no more memory than the keys between them.

Tokens depend on the seed and the logits alone; the batch changes logits by rounding only.

The model has `longrm_shared_prefix` attention, as in training.

Shapes: T tokens that there is room for, N continuations, G key heads, D head size, V tokens of the vocabulary.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from longrm.data.joining import common_prefix
from longrm.modeling.attention import packed_attention, range_attention
from longrm.modeling.attention_varlen import (
    Keys,
    Output,
    Queries,
    RangeCalls,
    gathered,
    plan_ranges,
)
from longrm.modeling.device_memory import autocast_body
from longrm.modeling.folders import recurrent_layers
from longrm.modeling.products import default_products
from longrm.modeling.recurrent import LayerStates
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
class Continuation:
    """A continuation to write."""

    prompt: Sequence[int]
    max_tokens: int
    seed: int = 0
    temperature: float = 0.0  # 0 takes the most likely token
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One continuation."""

    tokens: tuple[int, ...]  # with the end token, if it was written
    ended: bool  # whether the last token is an end token; otherwise `max_tokens` was reached
    # Mean entropy in nats of the distributions that tokens were drawn from, before top-p; 0 at temperature 0.
    entropy: float
    finite: bool = True  # whether all logits were; otherwise `tokens` ends before the first that were not


@dataclass(frozen=True, slots=True)
class _Prompt:
    ids: list[int]
    places: list[range]  # where its keys are
    begin: int = 0  # the first token that is read
    alike: int = 0  # the first token that differs from the prompt before
    # Of recurrent layers, after as many of its tokens; empty until they are read.
    states: dict[int, LayerStates] = field(default_factory=dict)

    def until(self, tokens: int) -> dict[int, LayerStates]:
        """The states after `tokens` of its tokens and before."""
        return {at: states for at, states in self.states.items() if at <= tokens}


class GroupSampler:
    """Writes continuations with a model; a continuation ends at any of the tokens `ends`.

    With `fp32_head` logits are computed in fp32, as training computes them, else as the model does.
    """

    def __init__(self, model: TransformersModel, ends: Collection[int], *, fp32_head: bool = True) -> None:
        self._recurrent = bool(recurrent_layers(model.config))
        self._model, self._ends, self._fp32_head = model, frozenset(ends), fp32_head
        self._kept: list[_Prompt] = []  # of the last call
        self._layers: list[tuple[Tensor, Tensor]] = []  # keys and values of every layer, [T, G, D] each
        self._state_bytes = 0  # of one sequence, in all recurrent layers; known once one is read

    def sample(
        self,
        prompt: Sequence[int],
        seeds: Sequence[int],
        *,
        temperature: float,
        top_p: float,
        max_tokens: int,
    ) -> list[Sample]:
        """Samples one continuation of a prompt for every seed, from softmax(logits / temperature).

        With `top_p` below 1 only the most likely tokens that together have this probability are drawn (Holtzman et al.
        2020). The same weights, prompt and seeds give the same tokens.

        Raises:
            FloatingPointError: The logits are not finite.
        """
        samples = self.write([Continuation(prompt, max_tokens, seed, temperature, top_p) for seed in seeds])
        for sample in samples:
            if not sample.finite:
                raise FloatingPointError(f"the logits of token {len(sample.tokens) + 1} are not finite")
        return samples

    @torch.inference_mode()
    def write(
        self, continuations: Sequence[Continuation], on_step: Callable[[float], None] = lambda done: None
    ) -> list[Sample]:
        """Writes continuations of any prompts, each up to its own `max_tokens`.

        `on_step` is called after every token with the number that ended, plus the written share of each other one.
        """
        prompts: dict[int, _Prompt] = {}
        different: list[_Prompt] = []
        written: dict[int, range] = {}  # where the keys of the tokens of every continuation are
        moved: list[tuple[range, int]] = []  # what was kept, and where it goes
        size = 0
        last = _Prompt([], [])
        # Sorted, so that a prompt has nothing in common with others that its neighbor has not.
        for index in sorted(range(len(continuations)), key=lambda index: list(continuations[index].prompt)):
            ids = list(continuations[index].prompt)
            if ids != last.ids:
                # ids[:-1]: the last token must be read for its logits even if all of the prompt is kept.
                shared = begin = alike = common_prefix(last.ids, ids[:-1])
                source = last
                if self._recurrent:
                    source, begin = _reader(different, shared)
                for kept in self._kept:
                    known = common_prefix(kept.ids, ids[:-1])
                    if self._recurrent:
                        known = max(kept.until(known), default=0)
                    if known > begin:
                        begin, source = known, kept
                if self._recurrent and begin:
                    source.states.setdefault(begin, LayerStates())  # reading it pauses there
                    shared = min(shared, begin)
                if begin > shared:
                    target = size
                    for place in _between(source.places, shared, begin):
                        moved.append((place, target))
                        target += len(place)
                places = [*_between(last.places, 0, shared), range(size, size + len(ids) - shared)]
                last = _Prompt(ids, places, begin, alike, source.until(begin))
                different.append(last)
                size += len(ids) - shared
            prompts[index] = last
            most = continuations[index].max_tokens - 1  # the last token is not read
            written[index] = range(size, size + most)
            size = written[index].stop
        before, self._layers, self._kept = self._layers, [], []

        def keep(layer: int, key: Keys, value: Keys, slots: slice | Tensor) -> tuple[Tensor, Tensor]:
            if layer == len(self._layers):
                new = [part.new_empty(size, part.shape[1], part.shape[3]) for part in (key, value)]
                # Old keys are dropped layer by layer as they are copied, so that only one layer is in memory twice.
                for old, room in zip(before.pop(0) if before else (), new, strict=False):
                    for place, target in moved:
                        room[target : target + len(place)] = old[place.start : place.stop]
                self._layers.append((new[0], new[1]))
            keys, values = self._layers[layer]
            keys[slots], values[slots] = key[0].transpose(0, 1), value[0].transpose(0, 1)
            return keys, values

        after = {id(prompt): self._read(prompt, keep) for prompt in different}
        self._kept = different
        rows: Sequence[int] = range(len(continuations))  # of the states
        states = LayerStates.of([(after[id(prompts[index])][1], 0) for index in rows])
        steps = 0

        def read(live: Sequence[int], tokens: Sequence[int]) -> Float[Tensor, "N V"]:
            nonlocal rows, states, steps
            if self._recurrent and len(live) < len(rows):
                place = {index: row for row, index in enumerate(rows)}
                states, rows = LayerStates.of([(states, place[index]) for index in live]), live
            positions = [len(prompts[index].ids) + steps for index in live]
            slots = torch.tensor([written[index][steps] for index in live], device=self._model.device)
            steps += 1

            @cache  # for all layers of a kind
            def calls(window: int | None) -> RangeCalls:
                ends = [position + 1 for position in positions]
                firsts = [0 if window is None else max(0, end - window) for end in ends]
                return plan_ranges(
                    [
                        _between([*prompts[index].places, written[index]], first, end)
                        for index, first, end in zip(live, firsts, ends, strict=True)
                    ],
                    self._model.device,
                )

            def attend(layer: int, query: Queries, key: Keys, value: Keys, *options: Any) -> Output:
                _, spec, _ = options
                return range_attention(query, *keep(layer, key, value, slots), calls(spec.window), spec)

            return self._forward(tokens, positions, attend, states, len(live))

        logits = torch.cat([after[id(prompts[index])][0] for index in rows])
        del after
        return write_tokens(continuations, logits, self._ends, read, on_step)

    def memory(self) -> tuple[int, int]:
        """Bytes that a token takes, and bytes that a continuation takes in addition, at most."""
        self.write([Continuation([0], 1)])
        # Kept states take as much as keys, and those of continuations are copied where one ends.
        return self._key_bytes() * (2 if self._recurrent else 1), 2 * self._state_bytes

    def _key_bytes(self) -> int:
        return sum(part[0].nbytes for pair in self._layers for part in pair)

    def forget(self) -> None:
        """Frees the memory of what the last call kept."""
        self._kept, self._layers = [], []

    def _read(
        self, prompt: _Prompt, keep: Callable[[int, Keys, Keys, slice | Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Float[Tensor, "1 V"], LayerStates]:
        """Reads the tokens of a prompt that are not known; returns logits and states after its last one."""

        def attend(layer: int, query: Queries, key: Keys, value: Keys, *options: Any) -> Output:
            layout, spec, _ = options
            end = begin + layout.tokens
            (place,) = _between(prompt.places, begin, end)
            states = keep(layer, key, value, slice(place.start, place.stop))
            if not begin:
                return packed_attention(query, key, value, layout, spec)
            # [T, G, D] -> [1, G, end, D]
            keys, values = (
                gathered(part, _between(prompt.places, 0, end)).transpose(0, 1)[None] for part in states
            )
            own = PackedLayout((TreeShape(layout.tokens, cached=begin),))
            return packed_attention(query, keys, values, own, spec)

        begin, end = 0, prompt.begin
        states = LayerStates.of([(prompt.states[end], 0)]) if end in prompt.states else LayerStates()
        while end < len(prompt.ids):
            begin = end
            end = min(begin + _BLOCK, len(prompt.ids), *(at for at in prompt.states if at > begin))
            logits = self._forward(prompt.ids[begin:end], range(begin, end), attend, states, 1)
            self._state_bytes = states.nbytes
            apart = (end - max(prompt.until(end - 1), default=0)) * self._key_bytes()
            if end in prompt.states or (states and apart >= self._state_bytes):
                prompt.states.setdefault(end, LayerStates()).update(LayerStates.of([(states, 0)]))
        return logits, states

    def _forward(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        attend: LayerAttention,
        states: LayerStates,
        last: int,
    ) -> Float[Tensor, "N V"]:
        """Reads tokens; returns the fp32 logits after the `last` ones."""
        numbers = count()  # a recurrent model's numbers have gaps, and a layer that is called twice has one

        def attend_in_order(layer: int, *options: Any) -> Output:
            return attend(next(numbers), *options)

        layers = {"layer_attention": attend_in_order, "layer_states": states}
        packed = Packed(
            torch.tensor([list(ids)]),
            torch.tensor([list(positions)]),
            PackedLayout((TreeShape(len(ids)),)),
            lambda model: layers,
        ).to(self._model.device)
        if self._fp32_head:
            return next_logits(self._model, hidden_states(self._model, packed)[-last:])
        with autocast_body(self._model):
            output = self._model(
                input_ids=packed.input_ids,
                position_ids=packed.position_ids,
                use_cache=False,
                logits_to_keep=last,
                layout=packed.layout,
                **layers,
            )
        logits: Tensor = output.logits[0].float()
        return logits


@default_products()
def write_tokens(
    continuations: Sequence[Continuation],
    logits: Float[Tensor, "N V"],
    ends: Collection[int],
    read: Callable[[Sequence[int], Sequence[int]], Float[Tensor, "N V"]],
    on_step: Callable[[float], None],
) -> list[Sample]:
    """Draws tokens, from the logits after the prompts on, until all continuations have ended.

    `read` takes the numbers of those that have not, and the last token of each, and returns the logits after these.
    """
    generators = [torch.Generator().manual_seed(one.seed) for one in continuations]
    written: list[list[int]] = [[] for _ in continuations]
    entropies, finite = [0.0] * len(continuations), [True] * len(continuations)
    live = list(range(len(continuations)))
    while live:
        # Single logits may be minus infinity: those of tokens that never occur.
        most = logits.max(dim=-1)
        for index, known in zip(live, torch.isfinite(most.values).tolist(), strict=True):
            finite[index] = known
        likely = most.indices.tolist()
        drawn = [row for row, index in enumerate(live) if finite[index] and continuations[index].temperature]
        if drawn:
            own = [live[row] for row in drawn]
            found = _draw(
                logits if len(drawn) == len(live) else logits[drawn],
                [continuations[index] for index in own],
                [generators[index] for index in own],
            )
            for row, (token, entropy) in zip(drawn, found, strict=True):
                likely[row] = token
                entropies[live[row]] += entropy
        going_on = []
        for index, token in zip(live, likely, strict=True):
            if finite[index]:
                written[index].append(token)
                if token not in ends and len(written[index]) < continuations[index].max_tokens:
                    going_on.append(index)
        live = going_on
        shares = (len(written[index]) / continuations[index].max_tokens for index in live)
        on_step(len(continuations) - len(live) + sum(shares))
        if live:
            logits = read(live, [written[index][-1] for index in live])
    return [
        Sample(tuple(tokens), bool(tokens) and tokens[-1] in ends, total / max(1, len(tokens)), known)
        for tokens, total, known in zip(written, entropies, finite, strict=True)
    ]


def _reader(prompts: Sequence[_Prompt], shared: int) -> tuple[_Prompt, int]:
    """Of sorted prompts, the one that reads on after the first `shared` tokens of the last; and `shared`, or else 0."""
    for prompt in reversed(prompts):
        if prompt.begin <= shared:
            return prompt, shared
        if prompt.alike < shared:  # the tokens between were read in another call
            break
    return _Prompt([], []), 0


def _between(places: Sequence[range], begin: int, end: int) -> list[range]:
    """The places of tokens `begin` to `end` of a sequence, given the places of all its tokens."""
    found: list[range] = []
    at = 0
    for place in places:
        part = place[max(0, begin - at) : max(0, end - at)]
        if part and found and found[-1].stop == part.start:
            found[-1] = range(found[-1].start, part.stop)
        elif part:
            found.append(part)
        at += len(place)
    return found


def _draw(
    logits: Float[Tensor, "N V"], continuations: Sequence[Continuation], generators: Sequence[torch.Generator]
) -> list[tuple[int, float]]:
    """Draws a token from each row; returns it with the entropy of its distribution."""
    # On the CPU, so that a seed means the same on every device.
    temperatures = torch.tensor([one.temperature for one in continuations])
    logprobs = (logits.cpu() / temperatures[:, None]).log_softmax(dim=-1)
    probabilities = logprobs.exp()
    entropies = -(probabilities * logprobs.clamp_min(torch.finfo(torch.float32).min)).sum(dim=-1)
    drawn = []
    for own, one, generator in zip(probabilities, continuations, generators, strict=True):
        tokens = None
        if one.top_p < 1.0:
            own, tokens = own.sort(descending=True)
            # A token is drawn if those before it have less than top_p together; so is the most likely one in any case.
            own = torch.where(own.cumsum(0) - own < one.top_p, own, 0.0)
        token = torch.multinomial(own, 1, generator=generator)
        drawn.append(int(token if tokens is None else tokens[token]))
    return list(zip(drawn, entropies.tolist(), strict=True))
