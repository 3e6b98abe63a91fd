"""Padding: a prompt comes to its target length by distractors around the evidence of the short context."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, assert_never

from longrm.data.tokenizing import Tokenizer
from longrm.rng import Draws
from longrm.synthesis.long_context.chunks import DocumentChunk
from longrm.synthesis.long_context.distractors import (
    BETWEEN,
    DistractorPool,
    closest_to_answer,
    fill_room,
    with_tokens,
)
from longrm.synthesis.long_context.evidence_search import Evidence, suffices, sufficiency_request
from longrm.synthesis.model_requests import AsyncModel, ask
from longrm.synthesis.prompt_tags import wrapped
from longrm.synthesis.rubrics import DOMAINS, ContextLayout
from longrm.synthesis.short_to_long_settings import ShortToLongSettings
from longrm.synthesis.stats import Dropped
from longrm.types import Message

_TRIES = 6  # token counts of parts do not quite add up: whole prompts are counted until one fits
_ROUNDS = 4  # in which a judge may find an answer in the padding before the row is given up


@dataclass(frozen=True, slots=True)
class UnpaddedPrompt:
    """The prompt of a row before its context is laid out; answers that are compared share one.

    All its draws depend on its `key`. `tag` names the tag pair around what the question is about; it is empty where
    there is none. `render` makes the prompt, which holds no rubric, over a context.
    """

    key: tuple[object, ...]
    tag: str
    render: Callable[[str], tuple[Message, ...]]


@dataclass(frozen=True, slots=True)
class LaidOutContext:
    """A context, and where its critical chunks stand in it, as (start, end) characters.

    `depths` are the shares of the padding's tokens before each; `chunks_before` counts its chunks before the first.
    """

    text: str
    evidence: tuple[tuple[int, int], ...]
    depths: tuple[float, ...]
    chunks_before: int = 0


@dataclass(frozen=True, slots=True)
class PaddedPrompt:
    """A prompt of the target length, which is None where nothing pads; then its context is empty.

    `tokens` includes the chat template. The context begins at character `start` of the last message. Of the chunks of
    the `padding` the first `own` are the document's own; `left_out` others may answer the question.
    """

    messages: tuple[Message, ...]
    tokens: int
    length: int | None
    context: LaidOutContext
    start: int = 0
    padding: tuple[DocumentChunk, ...] = ()
    own: int = 0
    left_out: int = 0

    @property
    def span(self) -> tuple[int, int] | None:
        """Where its context stands, as characters of the last message; None where there is none."""
        return (self.start, self.start + len(self.context.text)) if self.context.text else None

    @property
    def evidence(self) -> list[tuple[int, int]]:
        """Where the critical chunks stand, as (start, end) characters of the last message."""
        return [(start + self.start, end + self.start) for start, end in self.context.evidence]


class PromptPadder:
    """Pads prompts to their lengths."""

    def __init__(
        self, settings: ShortToLongSettings, tokenizer: Tokenizer, pool: DistractorPool, checker: AsyncModel
    ) -> None:
        self._settings, self._tokenizer, self._pool, self._checker = settings, tokenizer, pool, checker
        self._layout = DOMAINS[settings.domain].layout

    def tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of a prompt as the model in training reads it."""
        return len(self._tokenizer.prompt_ids(messages))

    async def pad(self, evidence: Evidence, prompt: UnpaddedPrompt) -> PaddedPrompt | Dropped:
        """Pads a prompt, anew where a judge finds an answer in its padding."""
        if self._layout == "short":
            messages = prompt.render("")
            return PaddedPrompt(messages, self.tokens(messages), None, LaidOutContext("", (), ()))
        banned: list[str] = []
        for _ in range(_ROUNDS):
            padded = self._pad_to_a_length(evidence, prompt, banned)
            answering: list[str] = []
            if self._settings.distractor_check == "judge":
                answering = await self._answering(evidence, padded)
            if not answering:
                return padded
            banned += answering
        return Dropped("padding", "answered_in_padding")

    async def _answering(self, evidence: Evidence, padded: PaddedPrompt | Dropped) -> list[str]:
        """Of the chunks of the padding that come closest, those that answer the question, or may answer it."""
        if isinstance(padded, Dropped):
            return []
        assert evidence.matcher is not None, "what is checked has a matcher"
        texts = [chunk.text for chunk in padded.padding]
        near = closest_to_answer(evidence.matcher, texts, self._settings.judge_top_k)
        requests = [sufficiency_request(evidence.document, [text]) for text in near]
        answers = await ask(self._checker, *requests)
        return [text for text, answer in zip(near, answers, strict=True) if suffices(answer) is not False]

    def _pad_to_a_length(
        self, evidence: Evidence, prompt: UnpaddedPrompt, banned: Sequence[str]
    ) -> PaddedPrompt | Dropped:
        """Pads to the first length of a drawn order that the evidence leaves room in."""
        found: PaddedPrompt | Dropped | None = None
        for length in Draws(*prompt.key, "length").order(self._settings.lengths):
            found = self._pad_to(length, evidence, prompt, banned)
            if found != Dropped("padding", "too_long"):
                break
        assert found is not None, "there is a length"
        return found

    def _pad_to(
        self, length: int, evidence: Evidence, prompt: UnpaddedPrompt, banned: Sequence[str]
    ) -> PaddedPrompt | Dropped:
        """Pads to `length` tokens, or says why whole chunks cannot come within the tolerance."""
        settings, key = self._settings, prompt.key
        base = self.tokens(prompt.render(wrapped(prompt.tag, evidence.text)))
        room = length - base
        if room < 0:
            return Dropped("padding", "too_long")
        share = settings.in_document_share
        own_chunks, refused = self._own_chunks(evidence, banned, key, int(room * share))
        group = evidence.document.group
        for _ in range(_TRIES):
            own = fill_room(int(room * share), iter(own_chunks), ())
            order, small = self._pool.draw(group, evidence.unfit, banned, Draws(*key, "foreign"))
            foreign = fill_room(room - sum(chunk.tokens for chunk in own), order, small)
            critical = [chunk.text for chunk in evidence.critical]
            context = lay_out(self._layout, critical, own, foreign, prompt.tag, Draws(*key, "place"))
            messages = prompt.render(context.text)
            tokens = self.tokens(messages)
            if length - settings.tolerance <= tokens <= length:
                start = str(messages[-1]["content"]).index(context.text)
                left_out = refused + len(banned)
                return PaddedPrompt(
                    messages, tokens, length, context, start, (*own, *foreign), len(own), left_out
                )
            expected = base + sum(chunk.tokens for chunk in (*own, *foreign))
            room = max(0, length - base - (tokens - expected))
        return Dropped("padding", "padding_ran_out")

    def _own_chunks(
        self, evidence: Evidence, banned: Sequence[str], key: tuple[object, ...], room: int
    ) -> tuple[list[DocumentChunk], int]:
        """Discarded chunks in a drawn order, to about `room` tokens, and how many were left out as answering."""
        document, matcher, group = evidence.document, evidence.matcher, evidence.document.group
        found: list[DocumentChunk] = []
        refused, held = 0, 0
        for chunk in Draws(*key, "own").order(evidence.discarded):
            if held > room:
                break
            if chunk.text in banned or (matcher and matcher.may_answer(chunk.text)):
                refused += 1
                continue
            found.append(with_tokens(chunk, document.id, group, self._tokenizer))
            held += found[-1].tokens
        return found, refused


def lay_out(
    layout: ContextLayout,
    critical: Sequence[str],
    own: Sequence[DocumentChunk],
    foreign: Sequence[DocumentChunk],
    tag: str,
    draws: Draws,
) -> LaidOutContext:
    """Puts the critical chunks at drawn depths of the padding.

    Critical chunks keep the order that they have in their document; so do own chunks that stand in a tag pair with
    them, but the evidence stands among these where the depth asks for it.
    """
    inner, around = list[DocumentChunk](), [*foreign, *own]
    match layout:
        case "scattered":
            draws.shuffle(around)
            return _scattered(critical, around, sorted(draws.fraction() for _ in critical))
        case "document":
            inner, around = sorted(own, key=lambda chunk: chunk.start), [*foreign]
        case "segment" | "short":
            pass
        case unknown:
            assert_never(unknown)
    draws.shuffle(around)
    return _together(critical, inner, around, tag, draws.fraction())


_Part = tuple[str, Literal["critical", "padding"]]


def _scattered(
    critical: Sequence[str], padding: Sequence[DocumentChunk], depths: Sequence[float]
) -> LaidOutContext:
    """Every critical chunk at a depth of its own."""
    before = [0, *accumulate(chunk.tokens for chunk in padding)]
    slots = [_nearest(before, depth * before[-1]) for depth in depths]
    parts: list[_Part] = []
    for at in range(len(padding) + 1):
        parts += [(text, "critical") for slot, text in zip(slots, critical, strict=True) if slot == at]
        parts += [(chunk.text, "padding") for chunk in padding[at : at + 1]]
    reached = tuple(_share(before[slot], before[-1]) for slot in slots)
    return _joined(parts, reached, slots[0] if slots else 0)


def _together(
    critical: Sequence[str],
    inner: Sequence[DocumentChunk],
    around: Sequence[DocumentChunk],
    tag: str,
    depth: float,
) -> LaidOutContext:
    """The critical chunks side by side, with the inner chunks next to them and all of that in the tags."""
    whole = sum(chunk.tokens for chunk in (*inner, *around))
    # The evidence stands as deep among the inner chunks as in the whole, so both sides are as long as they must be.
    sums = [0, *accumulate(chunk.tokens for chunk in inner)]
    inside = _nearest(sums, depth * sums[-1])
    outer = [0, *accumulate(chunk.tokens for chunk in around)]
    outside = _nearest(outer, depth * whole - sums[inside])
    tagged: list[_Part] = [(chunk.text, "padding") for chunk in inner[:inside]]
    tagged += [(text, "critical") for text in critical]
    tagged += [(chunk.text, "padding") for chunk in inner[inside:]]
    joined = _joined(tagged, ())
    lead = BETWEEN.join(chunk.text for chunk in around[:outside])
    parts = [lead, wrapped(tag, joined.text), BETWEEN.join(chunk.text for chunk in around[outside:])]
    shift = (len(lead) + len(BETWEEN) if lead else 0) + (len(f"<{tag}>\n") if tag else 0)
    reached = _share(sums[inside] + outer[outside], whole)
    return LaidOutContext(
        BETWEEN.join(filter(None, parts)),
        tuple((start + shift, end + shift) for start, end in joined.evidence),
        (reached,) * len(critical),
        inside + outside,
    )


def _joined(parts: Sequence[_Part], depths: tuple[float, ...], chunks_before: int = 0) -> LaidOutContext:
    evidence, at = [], 0
    for text, kind in parts:
        if kind == "critical":
            evidence.append((at, at + len(text)))
        at += len(text) + len(BETWEEN)
    return LaidOutContext(BETWEEN.join(text for text, _ in parts), tuple(evidence), depths, chunks_before)


def _nearest(sums: Sequence[int], wanted: float) -> int:
    """Which of the rising sums is nearest to a number."""
    return min(range(len(sums)), key=lambda at: abs(sums[at] - wanted))


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.5
