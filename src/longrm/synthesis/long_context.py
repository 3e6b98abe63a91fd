"""Long contexts: the evidence of a document is found, and distractors pad it to a target length (paper, section 3)."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from longrm.clients import Completion
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.judging.answers import answer_of
from longrm.judging.prompts import free_name
from longrm.reward_models.lexical import index
from longrm.rng import Rng
from longrm.synthesis.chunks import (
    BETWEEN,
    COVERAGE,
    DOCUMENT,
    AnswerMatcher,
    DistractorPool,
    DocumentChunk,
    cut_chunks,
    fill_room,
    gold_words,
    merge_adjacent,
    titled,
)
from longrm.synthesis.documents import Document
from longrm.synthesis.domains import DOMAINS, ContextLayout, wrapped
from longrm.synthesis.models import AsyncModel, TaskName, TaskRequest, ask, failure_of
from longrm.synthesis.pipeline import KEPT, Steps
from longrm.synthesis.settings import LabelingRecipe
from longrm.types import Message, Outcome, as_messages

ATTRIBUTION = (
    "Above are numbered passages of a longer text, a question and an answer. Which passages are needed to give this "
    "answer, or to check whether another answer is correct? Omit passages that are only about the same topic. Write "
    "the numbers on the last line, in this format: [[2, 5]], or [[none]] if no passage is needed."
)
SUFFICIENCY = (
    "Can this answer to this question be given from the passages above alone? The verdict is no if they do not "
    "support an important part of the answer. Write your verdict on the last line: [[yes]] or [[no]]"
)
PROMPTS = {"attribution": (ATTRIBUTION,), "sufficiency": (SUFFICIENCY,), "context": (DOCUMENT,)}

_NUMBERS = re.compile(r"\[\[\s*(none|[0-9]+(?:\s*,\s*[0-9]+)*)\s*\]\]", re.IGNORECASE)
_YES_NO = re.compile(r"\[\[\s*(yes|no)\s*\]\]", re.IGNORECASE)
_MAX_REPLY = 512  # of a reply with numbers, or yes or no
_CHUNKS_PER_REQUEST = 40  # that a model reads at a time
_TOO_COMMON = 0.5  # if more of the pool "contains" the answer, its words do not identify it


@dataclass(frozen=True, slots=True)
class Evidence:
    """The chunks of a document in reading order."""

    document: Document
    critical: tuple[DocumentChunk, ...]  # consecutive ones are joined
    discarded: tuple[DocumentChunk, ...]  # the others
    # finds chunks that may answer the question; None if the padding is not checked
    matcher: AnswerMatcher | None
    unfit: NDArray[np.bool_]  # which chunks of the pool may

    @property
    def text(self) -> str:
        """The critical chunks alone: the short context."""
        return BETWEEN.join(chunk.text for chunk in self.critical)


async def find_evidence(
    document: Document, recipe: LabelingRecipe, pool: DistractorPool, model: AsyncModel, steps: Steps
) -> Evidence | None:
    """Finds the evidence of a document and checks that it suffices; None, with the reason in `steps`, otherwise.

    `model` names critical chunks and judges whether they suffice, if the recipe asks for it.
    """
    unfit = np.zeros(len(pool.chunks), bool)
    if DOMAINS[recipe.domain].layout == "short":
        steps["critical", KEPT] += 1
        return Evidence(document, (), (), None, unfit)

    chunks = cut_chunks(document.text, recipe.chunk_size)
    numbers: tuple[int, ...] | str
    match recipe.evidence_from:
        case "given":
            numbers = given_chunks(document, chunks)
        case "retrieval":
            numbers = retrieved(document, chunks, recipe.max_chunks)
        case "model":
            numbers = attributed(await ask(model, *attribution_requests(document, chunks)), chunks)
        case unknown:
            assert_never(unknown)
    if not numbers:
        numbers = "nothing_found"
    if isinstance(numbers, str):
        steps["critical", numbers] += 1
        return None
    steps["critical", KEPT] += 1

    critical = merge_adjacent(document.text, [chunks[number] for number in numbers])
    texts = [chunk.text for chunk in critical]
    matcher = None
    if recipe.distractor_check != "none":
        matcher = AnswerMatcher.of(document.question, document.answer, texts, pool.rarity)
        unfit = pool.may_answer(matcher)

    reason = ""
    if recipe.distractor_check == recipe.sufficiency == "none":
        pass  # no check reads the gold answer, so it may be missing
    elif not document.answer.strip():
        reason = "no_gold_answer"
    elif matcher is not None and len(unfit) and unfit.mean() > _TOO_COMMON:
        reason = "answer_too_common"
    match recipe.sufficiency:
        case _ if reason:
            pass
        case "words":
            gold = gold_words(document.question, document.answer, pool.rarity)
            reason = "" if gold.coverage("\n".join(texts)) >= COVERAGE else "insufficient"
        case "judge":
            (reply,) = await ask(model, sufficiency_request(document, texts))
            reason = why_insufficient(reply)
        case "none":
            pass
        case other:
            assert_never(other)
    steps["sufficiency", reason or KEPT] += 1
    if reason:
        return None
    discarded = tuple(chunk for chunk in chunks if chunk.number not in numbers)
    return Evidence(document, critical, discarded, matcher, unfit)


def given_chunks(document: Document, chunks: Sequence[DocumentChunk]) -> tuple[int, ...]:
    """Numbers of the chunks that overlap the spans in the document's `evidence`."""
    spans = document.metadata.get("evidence") or ()
    for span in spans:
        if not 0 <= span[0] < span[1] <= len(document.text):
            raise DataError(
                f"document '{document.id}', field 'evidence': needs spans [start, end] within the text's "
                f"{len(document.text)} characters, such as [[0, 80]]; got {span!r:.40}"
            )
    return tuple(
        chunk.number
        for chunk in chunks
        if any(start < chunk.end and chunk.start < end for start, end in spans)
    )


def retrieved(document: Document, chunks: Sequence[DocumentChunk], max_chunks: int) -> tuple[int, ...]:
    """Numbers of the chunks closest to the question and the gold answer by BM25, in order."""
    passages = tuple(chunk.text for chunk in chunks)
    found = index(passages, max(map(len, passages), default=1))  # a size at which no passage is cut again
    assert len(found.chunks) == len(chunks)
    total = np.zeros(len(chunks))
    for text in (document.question, document.answer):
        scores = found.scores(text)
        # As shares of the best chunk's score, so that a long answer does not outweigh the question.
        total += scores / (scores.max(initial=0.0) or 1.0)
    best = [number for number in np.argsort(-total, kind="stable").tolist() if total[number] > 0]
    return tuple(sorted(best[:max_chunks]))


def attribution_requests(document: Document, chunks: Sequence[DocumentChunk]) -> list[TaskRequest]:
    """Asks a model which chunks matter, some at a time; their numbers count from 1 over the document."""
    requests = []
    for first in range(0, len(chunks), _CHUNKS_PER_REQUEST):
        numbered = [(chunk.number + 1, chunk.text) for chunk in chunks[first : first + _CHUNKS_PER_REQUEST]]
        passages = BETWEEN.join(f"[{number}] {text}" for number, text in numbered)
        request = _request(
            document, passages, ATTRIBUTION, "attribution", r"\[\[(none|[0-9]+(, [0-9]+)*)\]\]"
        )
        requests.append(replace(request, parts={**request.parts, "passages": numbered}))
    return requests


def attributed(replies: Sequence[Completion], chunks: Sequence[DocumentChunk]) -> tuple[int, ...] | str:
    """Numbers of the chunks that a model named, or the reason why they are unknown."""
    found: set[int] = set()
    for reply in replies:
        listed = _NUMBERS.findall(answer_of(reply.text))
        if reason := failure_of(reply) or ("" if listed else Outcome.UNPARSED.value):
            return reason
        if listed[-1].lower() != "none":
            found |= {int(number) - 1 for number in listed[-1].split(",")}
    known = {chunk.number for chunk in chunks}
    return tuple(sorted(found)) if found <= known else Outcome.UNPARSED.value


def sufficiency_request(document: Document, texts: Sequence[str]) -> TaskRequest:
    """Asks a judge whether passages alone lead to the gold answer: critical ones must, distractors must not."""
    return _request(document, BETWEEN.join(texts), SUFFICIENCY, "sufficiency", r"\[\[(yes|no)\]\]")


def why_insufficient(reply: Completion) -> str:
    """Empty if the judge finds the passages sufficient; "insufficient" if not, else why there is no verdict."""
    verdicts = _YES_NO.findall(answer_of(reply.text))
    if reason := failure_of(reply) or ("" if verdicts else Outcome.UNPARSED.value):
        return reason
    return "" if verdicts[-1].lower() == "yes" else "insufficient"


def _request(
    document: Document, passages: str, instruction: str, task: TaskName, verdict: str
) -> TaskRequest:
    parts = {"passages": passages, "question": document.question, "answer": document.answer}
    blocks = [wrapped(free_name(name, [*parts.values()]), text) for name, text in parts.items()]
    messages = as_messages("\n\n".join([*blocks, instruction]), "user")
    return TaskRequest(messages, _MAX_REPLY, verdict=verdict, task=task, parts=parts)


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
    """A context, and where its critical chunks are."""

    text: str
    evidence: tuple[tuple[int, int], ...] = ()  # (start, end) characters of the critical chunks
    depths: tuple[float, ...] = ()  # for each, the share of the padding's tokens before it
    chunks_before: int = 0  # chunks of padding before the first


@dataclass(frozen=True, slots=True)
class PaddedPrompt:
    """A prompt of the target length."""

    messages: tuple[Message, ...]
    tokens: int  # its length with the chat template
    length: int | None  # the target length; None in domains without a context
    context: LaidOutContext  # the context, empty in domains without one
    start: int = 0  # the first character of the context in the last message
    padding: tuple[DocumentChunk, ...] = ()  # its distractors
    own: int = 0  # how many of these, the first ones, are chunks of the document itself
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
) -> PaddedPrompt | str:
    """Pads a prompt, or returns the reason why it is dropped.

    If a judge (`model`) finds an answer in the padding, the prompt is padded again without these chunks.
    """
    document, matcher, key = evidence.document, evidence.matcher, prompt.key
    layout = DOMAINS[recipe.domain].layout
    if layout == "short":
        messages = prompt.render("")
        return PaddedPrompt(messages, len(tokenizer.prompt_ids(messages)), None, LaidOutContext(""))
    mixed = any(chunk.group != document.group for chunk in pool.chunks)
    title = document.title if mixed else ""
    critical = [chunk.text for chunk in evidence.critical]
    alone = lay_out(layout, critical, (), (), prompt.tag, Rng(*key, "place"), title)
    base = len(tokenizer.prompt_ids(prompt.render(alone.text)))
    banned: list[str] = []

    def pad_to(length: int) -> PaddedPrompt | str:
        room = length - base  # tokens of padding still wanted, as the sum of the chunks' own counts
        if room < 0:
            return "too_long"
        # Other chunks of the document in a drawn order, a little more than may be used.
        own_chunks: list[DocumentChunk] = []
        refused = held = 0
        for chunk in Rng(*key, "own").order(evidence.discarded):
            if held > int(room * recipe.in_document_share):
                break
            if chunk.text in banned or (matcher and matcher.may_answer(chunk.text)):
                refused += 1
                continue
            own_chunks.append(chunk.counted(document, tokenizer, title))
            held += own_chunks[-1].tokens

        # Chunks are never cut, so a length is met by choosing them. Every try draws the same chunks in the same order
        # and differs only in the room, so that the row depends on nothing but its key.
        for _ in range(_TRIES):
            own = fill_room(int(room * recipe.in_document_share), iter(own_chunks), ())
            large, small = pool.draw(document.group, evidence.unfit, banned, Rng(*key, "foreign"))
            foreign = fill_room(room - sum(chunk.tokens for chunk in own), large, small)
            context = lay_out(layout, critical, own, foreign, prompt.tag, Rng(*key, "place"), title)
            messages = prompt.render(context.text)
            tokens = len(tokenizer.prompt_ids(messages))
            if length - recipe.tolerance <= tokens <= length:
                start = str(messages[-1]["content"]).index(context.text)
                padding, left_out = (*own, *foreign), refused + len(banned)
                return PaddedPrompt(messages, tokens, length, context, start, padding, len(own), left_out)
            # A tokenizer merges characters across the borders of chunks, so the prompt has not quite the sum of their
            # tokens. The error hardly depends on which chunks are taken: correct the room by this try's error.
            expected = base + sum(chunk.tokens for chunk in (*own, *foreign))
            room = max(0, length - base - (tokens - expected))
        return "padding_ran_out"  # whole chunks do not come within the tolerance

    for _ in range(_ROUNDS):
        padded: PaddedPrompt | str = "too_long"
        for length in Rng(*key, "length").order(recipe.lengths):
            padded = pad_to(length)
            # Another length is tried only if the evidence does not fit; one that cannot be filled is dropped, so that
            # long rows do not silently become short ones.
            if padded != "too_long":
                break
        if isinstance(padded, str) or recipe.distractor_check != "judge":
            return padded
        assert matcher is not None, "the padding is checked"
        near = matcher.closest([chunk.text for chunk in padded.padding], _JUDGED_CHUNKS)
        replies = await ask(model, *(sufficiency_request(document, [text]) for text in near))
        # A chunk stays only if the judge finds that it does not answer; a reply without a verdict is no such finding.
        answering = [
            text
            for text, reply in zip(near, replies, strict=True)
            if why_insufficient(reply) != "insufficient"
        ]
        if not answering:
            return padded
        banned += answering
    return "answered_in_padding"


def lay_out(
    layout: ContextLayout,
    critical: Sequence[str],
    own: Sequence[DocumentChunk],
    foreign: Sequence[DocumentChunk],
    tag: str,
    rng: Rng,
    title: str = "",
) -> LaidOutContext:
    """Puts the critical chunks at drawn depths of the padding, in the order of their document.

    With a title every chunk of the padding, and every critical chunk or the tag pair around them, is below the title of
    its document.
    """
    below = len(titled(title, ""))
    if layout == "scattered":
        padding = [*foreign, *own]
        rng.shuffle(padding)
        before = [0, *accumulate(chunk.tokens for chunk in padding)]  # tokens before each chunk
        # Depths are uniform over tokens, not over chunks, and sorted: critical chunks keep their document's order. A
        # chunk then goes to the nearest border between chunks of the padding.
        depths = sorted(rng.fraction() for _ in critical)
        slots = [_nearest(before, depth * before[-1]) for depth in depths]
        texts = [chunk.shown for chunk in padding]
        places = [slot + earlier for earlier, slot in enumerate(slots)]  # among all texts
        for place, text in zip(places, critical, strict=True):
            texts.insert(place, titled(title, text))
        reached = tuple(_share(before[slot], before[-1]) for slot in slots)
        evidence = tuple((start + below, end) for start, end in _spans(texts, places))
        return LaidOutContext(BETWEEN.join(texts), evidence, reached, slots[0] if slots else 0)

    # One place for all critical chunks, with the tag pair around them. In the layout "document" the document's other
    # chunks are within the tags too, in their order; in "segment" they are padding like those of other documents.
    assert layout in ("document", "segment"), layout
    inner = sorted(own, key=lambda chunk: chunk.start) if layout == "document" else []
    around = [*foreign] if layout == "document" else [*foreign, *own]
    rng.shuffle(around)
    depth = rng.fraction()
    # The evidence is as deep within the tags as in the whole, so that neither side has to be longer than there is
    # padding for it.
    total = sum(chunk.tokens for chunk in (*inner, *around))
    sums = [0, *accumulate(chunk.tokens for chunk in inner)]
    inside = _nearest(sums, depth * sums[-1])
    outer = [0, *accumulate(chunk.tokens for chunk in around)]
    outside = _nearest(outer, depth * total - sums[inside])
    tagged = [*(chunk.text for chunk in inner[:inside]), *critical, *(chunk.text for chunk in inner[inside:])]
    lead = BETWEEN.join(chunk.shown for chunk in around[:outside])
    tail = BETWEEN.join(chunk.shown for chunk in around[outside:])
    shift = (len(lead) + len(BETWEEN) if lead else 0) + below + (len(f"<{tag}>\n") if tag else 0)
    spans = _spans(tagged, range(inside, inside + len(critical)))
    return LaidOutContext(
        BETWEEN.join(filter(None, [lead, titled(title, wrapped(tag, BETWEEN.join(tagged))), tail])),
        tuple((start + shift, end + shift) for start, end in spans),
        (_share(sums[inside] + outer[outside], total),) * len(critical),
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
