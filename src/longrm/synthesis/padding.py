"""Padding: distractors around the evidence bring a prompt to its target length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from longrm.data.tokenizing import Tokenizer
from longrm.rng import Draws
from longrm.synthesis.chunks import BETWEEN, DistractorPool, DocumentChunk, fill_room
from longrm.synthesis.domains import DOMAINS, ContextLayout, wrapped
from longrm.synthesis.evidence import Evidence, suffices, sufficiency_request
from longrm.synthesis.models import AsyncModel, ask
from longrm.synthesis.pipeline import Dropped
from longrm.synthesis.settings import LabelingRecipe
from longrm.types import Message

_TRIES = 6  # to meet a length: the tokens of parts do not quite add up to those of the prompt
_ROUNDS = 4  # in which a judge may find an answer in the padding before the row is dropped
_JUDGED_CHUNKS = 4  # of the padding that a judge reads, the closest to an answer


@dataclass(frozen=True, slots=True)
class UnpaddedPrompt:
    """The prompt of a row before its context is laid out; the answers of a pair share one."""

    key: tuple[object, ...]  # all random draws depend on it
    tag: str  # the name of the tag pair around the text that the question is about; empty if the domain has none
    render: Callable[[str], tuple[Message, ...]]  # makes the prompt, without a rubric, from a context


class LaidOutContext(NamedTuple):
    """A context."""

    text: str  # the text
    evidence: tuple[tuple[int, int], ...] = ()  # (start, end) characters of the critical chunks
    depths: tuple[float, ...] = ()  # for each, the share of the padding's tokens before it
    chunks_before: int = 0  # chunks of padding before the first


@dataclass(frozen=True, slots=True)
class PaddedPrompt:
    """A prompt of the target length."""

    messages: tuple[Message, ...]  # the prompt
    tokens: int  # its length with the chat template
    length: int | None  # the target length; None in domains without a context
    context: LaidOutContext  # the context, empty in domains without one
    start: int = 0  # the first character of the context in the last message
    padding: tuple[
        DocumentChunk, ...
    ] = ()  # its distractors; the first `own` are chunks of the document itself
    own: int = 0  # see `padding`
    left_out: int = 0  # chunks that were left out because they may answer the question

    @property
    def evidence(self) -> list[tuple[int, int]]:
        """(start, end) characters of the critical chunks in the last message."""
        return [(start + self.start, end + self.start) for start, end in self.context.evidence]


async def pad(
    evidence: Evidence,
    prompt: UnpaddedPrompt,
    recipe: LabelingRecipe,
    tokenizer: Tokenizer,
    pool: DistractorPool,
    model: AsyncModel,
) -> PaddedPrompt | Dropped:
    """Pads a prompt; again without certain chunks if a judge (`model`) finds an answer in them."""
    if DOMAINS[recipe.domain].layout == "short":
        messages = prompt.render("")
        return PaddedPrompt(messages, len(tokenizer.prompt_ids(messages)), None, LaidOutContext(""))
    banned: list[str] = []
    for _ in range(_ROUNDS):
        padded: PaddedPrompt | Dropped = Dropped("padding", "too_long")
        for length in Draws(*prompt.key, "length").order(recipe.lengths):
            padded = _pad_to(length, evidence, prompt, recipe, tokenizer, pool, banned)
            # Another length is tried only if the evidence does not fit; one that cannot be filled is dropped, so that
            # long rows do not silently become short ones.
            if padded != Dropped("padding", "too_long"):
                break
        if isinstance(padded, Dropped) or recipe.distractor_check != "judge":
            return padded
        assert evidence.matcher is not None, "the padding is checked"
        near = evidence.matcher.closest([chunk.text for chunk in padded.padding], _JUDGED_CHUNKS)
        answers = await ask(model, *(sufficiency_request(evidence.document, [text]) for text in near))
        answering = [
            text for text, answer in zip(near, answers, strict=True) if suffices(answer) is not False
        ]
        if not answering:
            return padded
        banned += answering
    return Dropped("padding", "answered_in_padding")


def _pad_to(
    length: int,
    evidence: Evidence,
    prompt: UnpaddedPrompt,
    recipe: LabelingRecipe,
    tokenizer: Tokenizer,
    pool: DistractorPool,
    banned: Sequence[str],
) -> PaddedPrompt | Dropped:
    """Pads to `length` tokens; dropped if whole chunks do not come within the tolerance."""
    document, key = evidence.document, prompt.key
    base = len(tokenizer.prompt_ids(prompt.render(wrapped(prompt.tag, evidence.text))))
    room = length - base
    if room < 0:
        return Dropped("padding", "too_long")

    # Other chunks of the document in a drawn order, a little more than may be used.
    own_chunks: list[DocumentChunk] = []
    refused = held = 0
    for chunk in Draws(*key, "own").order(evidence.discarded):
        if held > int(room * recipe.in_document_share):
            break
        if chunk.text in banned or (evidence.matcher and evidence.matcher.may_answer(chunk.text)):
            refused += 1
            continue
        own_chunks.append(chunk.counted(document.id, document.group, tokenizer))
        held += own_chunks[-1].tokens

    for _ in range(_TRIES):
        own = fill_room(int(room * recipe.in_document_share), iter(own_chunks), ())
        large, small = pool.draw(document.group, evidence.unfit, banned, Draws(*key, "foreign"))
        foreign = fill_room(room - sum(chunk.tokens for chunk in own), large, small)
        critical = [chunk.text for chunk in evidence.critical]
        layout = DOMAINS[recipe.domain].layout
        context = lay_out(layout, critical, own, foreign, prompt.tag, Draws(*key, "place"))
        messages = prompt.render(context.text)
        tokens = len(tokenizer.prompt_ids(messages))
        if length - recipe.tolerance <= tokens <= length:
            start = str(messages[-1]["content"]).index(context.text)
            left_out = refused + len(banned)
            return PaddedPrompt(
                messages, tokens, length, context, start, (*own, *foreign), len(own), left_out
            )
        # Tokens merge across chunks, so the count is off: correct the room by how much it was off this time.
        expected = base + sum(chunk.tokens for chunk in (*own, *foreign))
        room = max(0, length - base - (tokens - expected))
    return Dropped("padding", "padding_ran_out")


def lay_out(
    layout: ContextLayout,
    critical: Sequence[str],
    own: Sequence[DocumentChunk],
    foreign: Sequence[DocumentChunk],
    tag: str,
    draws: Draws,
) -> LaidOutContext:
    """Puts the critical chunks at drawn depths of the padding, in the order of their document.

    In the layout "document", other chunks of the document are inside the tag pair too, in order, with the critical
    chunks together among them.
    """
    if layout == "scattered":
        padding = [*foreign, *own]
        draws.shuffle(padding)
        before = [0, *accumulate(chunk.tokens for chunk in padding)]  # tokens before each chunk
        depths = sorted(draws.fraction() for _ in critical)
        slots = [_nearest(before, depth * before[-1]) for depth in depths]
        texts: list[str] = []
        places: list[int] = []  # of the critical chunks among the texts
        for at in range(len(padding) + 1):
            for slot, text in zip(slots, critical, strict=True):
                if slot == at:
                    places.append(len(texts))
                    texts.append(text)
            texts += [chunk.text for chunk in padding[at : at + 1]]
        reached = tuple(_share(before[slot], before[-1]) for slot in slots)
        return LaidOutContext(BETWEEN.join(texts), _spans(texts, places), reached, slots[0] if slots else 0)

    assert layout in ("document", "segment"), layout
    inner = sorted(own, key=lambda chunk: chunk.start) if layout == "document" else []
    around = [*foreign] if layout == "document" else [*foreign, *own]
    draws.shuffle(around)
    depth = draws.fraction()
    # The evidence is as deep within the tags as in the whole, so that neither side has to be longer than there is
    # padding for it.
    total = sum(chunk.tokens for chunk in (*inner, *around))
    sums = [0, *accumulate(chunk.tokens for chunk in inner)]
    inside = _nearest(sums, depth * sums[-1])
    outer = [0, *accumulate(chunk.tokens for chunk in around)]
    outside = _nearest(outer, depth * total - sums[inside])
    tagged = [*(chunk.text for chunk in inner[:inside]), *critical, *(chunk.text for chunk in inner[inside:])]
    lead = BETWEEN.join(chunk.text for chunk in around[:outside])
    tail = BETWEEN.join(chunk.text for chunk in around[outside:])
    shift = (len(lead) + len(BETWEEN) if lead else 0) + (len(f"<{tag}>\n") if tag else 0)
    spans = _spans(tagged, range(inside, inside + len(critical)))
    reached = (_share(sums[inside] + outer[outside], total),) * len(critical)
    return LaidOutContext(
        BETWEEN.join(filter(None, [lead, wrapped(tag, BETWEEN.join(tagged)), tail])),
        tuple((start + shift, end + shift) for start, end in spans),
        reached,
        inside + outside,
    )


def _spans(texts: Sequence[str], places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(start, end) characters of some texts once all are joined."""
    starts = [0, *accumulate(len(text) + len(BETWEEN) for text in texts)]
    return tuple((starts[at], starts[at] + len(texts[at])) for at in places)


def _nearest(sums: Sequence[int], wanted: float) -> int:
    """The index of the sum that is nearest to a number."""
    return min(range(len(sums)), key=lambda at: abs(sums[at] - wanted))


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.5
