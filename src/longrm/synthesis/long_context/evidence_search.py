"""The evidence of a document: its critical chunks are found, and it is checked that they suffice (paper, section 3)."""

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
from longrm.synthesis.inputs.documents import Document, is_span
from longrm.synthesis.long_context.chunks import (
    AnswerMatcher,
    DocumentChunk,
    cut_chunks,
    gold_words,
    merge_adjacent,
    overlapping,
)
from longrm.synthesis.long_context.distractors import BETWEEN, DistractorPool
from longrm.synthesis.model_requests import AsyncModel, CheckSufficiency, NamePassages, TaskRequest, ask
from longrm.synthesis.prompt_tags import free_name
from longrm.synthesis.rubrics import DOMAINS
from longrm.synthesis.short_to_long_settings import ShortToLongSettings
from longrm.synthesis.stats import Dropped, StepCounts
from longrm.types import Message, Outcome

_LISTED = re.compile(r"\[\[\s*(none|[0-9]+(?:\s*,\s*[0-9]+)*)\s*\]\]", re.IGNORECASE)
_YES_NO = re.compile(r"\[\[\s*(yes|no)\s*\]\]", re.IGNORECASE)
_SHORT_ANSWER = 512  # tokens that a model may write to name chunks, or yes or no
_COMMON = 0.5  # an answer that more of the pool "holds" than this cannot be looked for by its words

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
"""What models are asked with here; the manifest keeps their hashes."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The chunks of a document in reading order; critical ones that follow each other are one.

    `matcher` tells chunks that may answer the question (None: the padding is not checked), `unfit` which of the pool's
    do.
    """

    document: Document
    critical: tuple[DocumentChunk, ...]
    discarded: tuple[DocumentChunk, ...]
    matcher: AnswerMatcher | None
    unfit: NDArray[np.bool_]

    @property
    def text(self) -> str:
        """The critical chunks alone: the short context."""
        return BETWEEN.join(chunk.text for chunk in self.critical)


class EvidenceFinder:
    """Finds the critical chunks of documents, and checks that they suffice."""

    def __init__(
        self,
        settings: ShortToLongSettings,
        pool: DistractorPool,
        checker: AsyncModel,
        retriever: AsyncModel,
    ) -> None:
        self._settings, self._pool, self._checker, self._retriever = settings, pool, checker, retriever
        self._is_short = DOMAINS[settings.domain].layout == "short"

    async def find(self, document: Document, counts: StepCounts) -> Evidence | Dropped:
        """The evidence of a document, or why there is none that suffices; both steps are counted."""
        chunks = () if self._is_short else cut_chunks(document.text, self._settings.chunk_size)
        numbers = await self._critical(document, chunks)
        if not numbers and not self._is_short:
            numbers = "nothing_found"
        if isinstance(numbers, str):
            return Dropped("critical", numbers)
        counts.keep("critical")
        evidence = self._evidence(document, chunks, numbers)
        if self._is_short:
            return evidence
        reason = await self._insufficient(evidence)
        if reason:
            return Dropped("sufficiency", reason)
        counts.keep("sufficiency")
        return evidence

    async def _critical(self, document: Document, chunks: Sequence[DocumentChunk]) -> tuple[int, ...] | str:
        """Numbers of the critical chunks, or why they are not known."""
        settings = self._settings
        match settings.evidence_from:
            case _ if self._is_short:
                return ()
            case "model":
                requests = attribution_requests(document, chunks, settings.chunks_per_request)
                return attributed(await ask(self._retriever, *requests), chunks)
            case "given":
                return overlapping(chunks, given_spans(document))
            case "retrieval":
                return retrieved(document, chunks, settings.max_chunks)
            case unknown:
                assert_never(unknown)

    def _evidence(
        self, document: Document, chunks: Sequence[DocumentChunk], numbers: Sequence[int]
    ) -> Evidence:
        settings = self._settings
        critical = merge_adjacent(document.text, [chunks[number] for number in numbers])
        matcher, unfit = None, np.zeros(len(self._pool.chunks), bool)
        if settings.distractor_check != "none" and critical:
            matcher = AnswerMatcher.of(
                document.question,
                document.answer,
                [chunk.text for chunk in critical],
                self._pool.rarity,
                coverage_threshold=settings.coverage_threshold,
                similarity_threshold=settings.similarity_threshold,
            )
            unfit = self._pool.may_answer(matcher)
        chosen = {*numbers}
        discarded = tuple(chunk for chunk in chunks if chunk.number not in chosen)
        return Evidence(document, critical, discarded, matcher, unfit)

    async def _insufficient(self, evidence: Evidence) -> str:
        """Why the critical chunks do not suffice; empty where they do."""
        settings, document = self._settings, evidence.document
        checked = (settings.distractor_check, settings.sufficiency) != ("none", "none")
        if checked and not document.answer.strip():
            return "no_gold_answer"
        common = evidence.unfit.mean() if self._pool.chunks else 0.0
        if settings.distractor_check != "none" and common > _COMMON:
            return "answer_too_common"
        texts = [chunk.text for chunk in evidence.critical]
        match settings.sufficiency:
            case "judge":
                (answer,) = await ask(self._checker, sufficiency_request(document, texts))
                verdict = suffices(answer)
                return verdict if isinstance(verdict, str) else "" if verdict else "insufficient"
            case "words":
                gold = gold_words(document.question, document.answer, self._pool.rarity)
                enough = gold.coverage("\n".join(texts)) >= settings.coverage_threshold
                return "" if enough else "insufficient"
            case "none":
                return ""
            case unknown:
                assert_never(unknown)


def given_spans(document: Document) -> list[tuple[int, int]]:
    """The spans that the document's `evidence` names, as (start, end) characters of its text; may be empty.

    Raises:
        DataError: It names one that is not within the text.
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
    """Numbers of the chunks closest to the question and the gold answer by BM25, at most so many, in order.

    Each of the two is scored as a share of what its best chunk scores, so a long answer claims no more room.
    Chunks that hold no word of either are never taken.
    """
    passages = tuple(chunk.text for chunk in chunks)
    found = index(passages, max(map(len, passages), default=1))  # no passage is cut again
    assert len(found.chunks) == len(chunks)
    total = np.zeros(len(chunks))
    for text in (document.question, document.answer):
        scores = found.scores(text)
        total += scores / (scores.max(initial=0.0) or 1.0)
    best = [number for number in np.argsort(-total, kind="stable").tolist() if total[number] > 0]
    return tuple(sorted(best[:max_chunks]))


def attribution_requests(
    document: Document, chunks: Sequence[DocumentChunk], at_once: int
) -> list[TaskRequest]:
    """Asks a model which chunks matter, so many chunks at a time; numbers count from 1 over the document."""
    requests = []
    for first in range(0, len(chunks), at_once):
        numbered = tuple((chunk.number + 1, chunk.text) for chunk in chunks[first : first + at_once])
        passages = BETWEEN.join(f"[{number}] {text}" for number, text in numbered)
        requests.append(
            TaskRequest(
                _prompt(document, passages, ATTRIBUTION),
                _SHORT_ANSWER,
                verdict=r"\[\[(none|[0-9]+(, [0-9]+)*)\]\]",
                task=NamePassages(numbered, document.question, document.answer),
            )
        )
    return requests


def attributed(answers: Sequence[Completion], chunks: Sequence[DocumentChunk]) -> tuple[int, ...] | str:
    """Numbers of the chunks that a model named, or why they are not known."""
    found: set[int] = set()
    for answer in answers:
        if answer.outcome is not Outcome.ANSWERED:
            return answer.outcome.value
        listed = _LISTED.findall(answer_of(answer.text))
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
        _SHORT_ANSWER,
        verdict=r"\[\[(yes|no)\]\]",
        task=CheckSufficiency(passages, document.question, document.answer),
    )


def suffices(answer: Completion) -> bool | str:
    """What a judge says to that, or why it is not known."""
    if answer.outcome is not Outcome.ANSWERED:
        return answer.outcome.value
    verdicts = _YES_NO.findall(answer_of(answer.text))
    return verdicts[-1].lower() == "yes" if verdicts else Outcome.UNPARSED.value


def _prompt(document: Document, passages: str, instruction: str) -> tuple[Message, ...]:
    parts = {"passages": passages, "question": document.question, "answer": document.answer}
    blocks = []
    for name, text in parts.items():
        free = free_name(name, [*parts.values()])
        blocks.append(f"<{free}>\n{text}\n</{free}>")
    return ({"role": "user", "content": "\n\n".join([*blocks, instruction])},)
