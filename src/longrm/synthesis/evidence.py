"""The evidence of a document: its critical chunks are found, and checked to suffice (paper, section 3)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from longrm.clients import Completion
from longrm.errors import DataError
from longrm.judging.answers import answer_of
from longrm.reward_models.lexical import index
from longrm.synthesis.chunks import (
    BETWEEN,
    COVERAGE,
    AnswerMatcher,
    DistractorPool,
    DocumentChunk,
    cut_chunks,
    gold_words,
    merge_adjacent,
)
from longrm.synthesis.documents import Document, is_span
from longrm.synthesis.domains import DOMAINS, free_name, wrapped
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
PROMPTS = {"attribution": ATTRIBUTION, "sufficiency": SUFFICIENCY}

_NUMBERS = re.compile(r"\[\[\s*(none|[0-9]+(?:\s*,\s*[0-9]+)*)\s*\]\]", re.IGNORECASE)
_YES_NO = re.compile(r"\[\[\s*(yes|no)\s*\]\]", re.IGNORECASE)
_MAX_TOKENS = 512  # of a reply with numbers, or yes or no
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
                _MAX_TOKENS,
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
        _MAX_TOKENS,
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
