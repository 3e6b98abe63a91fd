"""Long contexts: the evidence of a document is found, and distractors pad it to a target length (paper, section 3)."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from longrm.clients import Completion
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.judging.answers import answer_of
from longrm.reward_models.lexical import index
from longrm.rng import Draws
from longrm.synthesis.chunks import (
    BETWEEN,
    COVERAGE,
    AnswerMatcher,
    DistractorPool,
    DocumentChunk,
    cut_chunks,
    fill_room,
    gold_words,
    merge_adjacent,
)
from longrm.synthesis.documents import Document, is_span
from longrm.synthesis.domains import DOMAINS, ContextLayout, free_name, wrapped
from longrm.synthesis.models import AsyncModel, TaskRequest, ask
from longrm.synthesis.pipeline import KEPT, Dropped, Steps
from longrm.synthesis.settings import LabelingRecipe
from longrm.types import Message, Outcome

ATTRIBUTION = (
    "Numbered passages of a longer text stand above. Which of them does one need to give this answer to this "
    "question, or to see whether another answer is right? Leave out passages that merely touch on the subject. "
    "End with the numbers alone on the last line, in this form: [[2, 5]]; or [[none]] if no passage is needed."
)
SUFFICIENCY = (
    "Could somebody who has read the passages above, and nothing else, give this answer to this question? Say no "
    "where a part of the answer that matters has no support in them. End with your verdict alone on the last line: "
    "[[yes]] or [[no]]."
)
PROMPTS = {"attribution": (ATTRIBUTION,), "sufficiency": (SUFFICIENCY,)}

_NUMBERS = re.compile(r"\[\[\s*(none|[0-9]+(?:\s*,\s*[0-9]+)*)\s*\]\]", re.IGNORECASE)
_YES_NO = re.compile(r"\[\[\s*(yes|no)\s*\]\]", re.IGNORECASE)
_MAX_REPLY = 512  # of a reply with numbers, or yes or no
_CHUNKS_PER_REQUEST = 40  # that a model reads at a time
_TOO_COMMON = 0.5  # if more of the pool "contains" the answer, its words do not identify it


@dataclass(frozen=True, slots=True)
class Evidence:
    """The chunks of a document in reading order."""

    document: Document  # the document
    critical: tuple[DocumentChunk, ...]  # the critical chunks; consecutive ones are joined
    discarded: tuple[DocumentChunk, ...]  # the others
    # recognizes chunks that may answer the question; None if the padding is not checked
    matcher: AnswerMatcher | None
    unfit: NDArray[np.bool_]  # which chunks of the pool may

    @property
    def text(self) -> str:
        """The critical chunks alone: the short context."""
        return BETWEEN.join(chunk.text for chunk in self.critical)


async def find_evidence(
    document: Document, recipe: LabelingRecipe, pool: DistractorPool, model: AsyncModel, steps: Steps
) -> Evidence | Dropped:
    """Finds the evidence of a document, or the reason why there is none that suffices; counts both steps.

    `model` names critical chunks and judges whether they suffice, if the recipe says so.
    """
    unfit = np.zeros(len(pool.chunks), bool)
    if DOMAINS[recipe.domain].layout == "short":
        steps["critical", KEPT] += 1
        return Evidence(document, (), (), None, unfit)

    chunks = cut_chunks(document.text, recipe.chunk_size)
    numbers: tuple[int, ...] | str
    match recipe.evidence_from:
        case "given":
            spans = given_spans(document)
            numbers = tuple(
                chunk.number
                for chunk in chunks
                if any(start < chunk.end and chunk.start < end for start, end in spans)
            )
        case "retrieval":
            numbers = retrieved(document, chunks, recipe.max_chunks)
        case "model":
            numbers = attributed(await ask(model, *attribution_requests(document, chunks)), chunks)
        case unknown:
            assert_never(unknown)
    if isinstance(numbers, str):
        return Dropped("critical", numbers)
    if not numbers:
        return Dropped("critical", "nothing_found")
    steps["critical", KEPT] += 1

    critical = merge_adjacent(document.text, [chunks[number] for number in numbers])
    discarded = tuple(chunk for chunk in chunks if chunk.number not in numbers)
    texts = [chunk.text for chunk in critical]
    matcher = None
    if recipe.distractor_check != "none":
        matcher = AnswerMatcher.of(document.question, document.answer, texts, pool.rarity)
        unfit = pool.may_answer(matcher)

    reason = ""
    unchecked = recipe.distractor_check == recipe.sufficiency == "none"
    if not unchecked and not document.answer.strip():
        reason = "no_gold_answer"
    elif matcher is not None and len(unfit) and unfit.mean() > _TOO_COMMON:
        reason = "answer_too_common"
    else:
        match recipe.sufficiency:
            case "words":
                gold = gold_words(document.question, document.answer, pool.rarity)
                reason = "" if gold.coverage("\n".join(texts)) >= COVERAGE else "insufficient"
            case "judge":
                (answer,) = await ask(model, sufficiency_request(document, texts))
                verdict = suffices(answer)
                reason = verdict if isinstance(verdict, str) else "" if verdict else "insufficient"
            case "none":
                pass
            case other:
                assert_never(other)
    if reason:
        return Dropped("sufficiency", reason)
    steps["sufficiency", KEPT] += 1
    return Evidence(document, critical, discarded, matcher, unfit)


def given_spans(document: Document) -> list[tuple[int, int]]:
    """The spans in the document's `evidence`, as (start, end) characters of its text.

    Raises:
        DataError: One is not within the text.
    """
    found = []
    for span in document.metadata.get("evidence") or ():
        if not is_span(span) or not 0 <= span[0] < span[1] <= len(document.text):
            raise DataError(
                f"document '{document.id}', field 'evidence': needs spans [start, end] within the text's "
                f"{len(document.text)} characters, such as [[0, 80]]; got {span!r:.40}"
            )
        found.append((span[0], span[1]))
    return found


def retrieved(document: Document, chunks: Sequence[DocumentChunk], max_chunks: int) -> tuple[int, ...]:
    """Numbers of the chunks closest to the question and the gold answer by BM25, in order.

    Each of the two is scored as a share of its best chunk's score, so that a long answer gets no more room. Chunks that
    contain no word of either are never taken.
    """
    passages = tuple(chunk.text for chunk in chunks)
    found = index(passages, max(map(len, passages), default=1))  # a size at which no passage is cut again
    assert len(found.chunks) == len(chunks)
    total = np.zeros(len(chunks))
    for text in (document.question, document.answer):
        scores = found.scores(text)
        total += scores / (scores.max(initial=0.0) or 1.0)
    best = [number for number in np.argsort(-total, kind="stable").tolist() if total[number] > 0]
    return tuple(sorted(best[:max_chunks]))


def attribution_requests(document: Document, chunks: Sequence[DocumentChunk]) -> list[TaskRequest]:
    """Asks a model which chunks matter, some at a time; their numbers count from 1 over the document."""
    requests = []
    for first in range(0, len(chunks), _CHUNKS_PER_REQUEST):
        numbered = [(chunk.number + 1, chunk.text) for chunk in chunks[first : first + _CHUNKS_PER_REQUEST]]
        passages = BETWEEN.join(f"[{number}] {text}" for number, text in numbered)
        requests.append(
            TaskRequest(
                _prompt(document, passages, ATTRIBUTION),
                _MAX_REPLY,
                verdict=r"\[\[(none|[0-9]+(, [0-9]+)*)\]\]",
                task="attribution",
                parts={"passages": numbered, "question": document.question, "answer": document.answer},
            )
        )
    return requests


def attributed(answers: Sequence[Completion], chunks: Sequence[DocumentChunk]) -> tuple[int, ...] | str:
    """Numbers of the chunks that a model named, or the reason why they are unknown."""
    found: set[int] = set()
    for answer in answers:
        if answer.outcome is not Outcome.ANSWERED:
            return answer.outcome.value
        listed = _NUMBERS.findall(answer_of(answer.text))
        if not listed:
            return Outcome.UNPARSED.value
        if listed[-1].lower() != "none":
            found |= {int(number) - 1 for number in listed[-1].split(",")}
    known = {chunk.number for chunk in chunks}
    return tuple(sorted(found)) if found <= known else Outcome.UNPARSED.value


def sufficiency_request(document: Document, texts: Sequence[str]) -> TaskRequest:
    """Asks a judge whether passages alone lead to the gold answer: critical ones must, distractors must not."""
    passages = BETWEEN.join(texts)
    return TaskRequest(
        _prompt(document, passages, SUFFICIENCY),
        _MAX_REPLY,
        verdict=r"\[\[(yes|no)\]\]",
        task="sufficiency",
        parts={"passages": passages, "question": document.question, "answer": document.answer},
    )


def suffices(answer: Completion) -> bool | str:
    """The judge's verdict, or the reason why there is none."""
    if answer.outcome is not Outcome.ANSWERED:
        return answer.outcome.value
    verdicts = _YES_NO.findall(answer_of(answer.text))
    return verdicts[-1].lower() == "yes" if verdicts else Outcome.UNPARSED.value


def _prompt(document: Document, passages: str, instruction: str) -> tuple[Message, ...]:
    parts = {"passages": passages, "question": document.question, "answer": document.answer}
    blocks = [wrapped(free_name(name, [*parts.values()]), text) for name, text in parts.items()]
    return ({"role": "user", "content": "\n\n".join([*blocks, instruction])},)


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
