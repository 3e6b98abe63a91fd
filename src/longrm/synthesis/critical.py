"""Finding the chunks of a document that a question is decided by, and checking that they suffice."""

import re
from collections.abc import Sequence

import numpy as np

from longrm.clients import Completion, Request
from longrm.errors import DataError
from longrm.judging.answers import answer_of
from longrm.reward_models.lexical import index
from longrm.synthesis.chunks import Chunk
from longrm.synthesis.documents import Document, is_span
from longrm.synthesis.tags import free_name
from longrm.types import Outcome

_LISTED = re.compile(r"\[\[\s*(none|[0-9]+(?:\s*,\s*[0-9]+)*)\s*\]\]", re.IGNORECASE)
_YES_NO = re.compile(r"\[\[\s*(yes|no)\s*\]\]", re.IGNORECASE)
_SHORT_ANSWER = 512  # tokens that a model may write to name chunks, or yes or no

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


def given(document: Document) -> list[tuple[int, int]]:
    """The spans that the document's `evidence` names, as (start, end) characters of its text; may be empty.

    Raises:
        DataError: It names none, or one that is not within the text.
    """
    spans = document.metadata.get("evidence") or ()
    found = []
    for span in spans:
        if not is_span(span) or not 0 <= span[0] < span[1] <= len(document.text):
            raise DataError(
                f"document '{document.id}', field 'evidence': needs spans [start, end] within the text's "
                f"{len(document.text)} characters, such as [[0, 80]]; got {span!r:.40}"
            )
        found.append((span[0], span[1]))
    return found


def retrieved(document: Document, parts: Sequence[Chunk], most: int) -> tuple[int, ...]:
    """Numbers of the chunks closest to the question and the gold answer by BM25, at most so many, in order.

    Each of the two is scored as a share of what its best chunk scores, so a long answer claims no more room.
    Chunks that hold no word of either are never taken.
    """
    passages = tuple(part.text for part in parts)
    found = index(passages, max(map(len, passages), default=1))  # no passage is cut again
    assert len(found.chunks) == len(parts)
    total = np.zeros(len(parts))
    for text in (document.question, document.answer):
        scores = found.scores(text)
        total += scores / (scores.max(initial=0.0) or 1.0)
    best = [number for number in np.argsort(-total, kind="stable").tolist() if total[number] > 0]
    return tuple(sorted(best[:most]))


def attribution_requests(document: Document, parts: Sequence[Chunk], window: int) -> list[Request]:
    """Asks a model which chunks matter, so many chunks at a time; numbers count from 1 over the document."""
    return [
        _request(
            document,
            [f"[{part.number + 1}] {part.text}" for part in parts[first : first + window]],
            ATTRIBUTION,
            r"\[\[(none|[0-9]+(, [0-9]+)*)\]\]",
        )
        for first in range(0, len(parts), window)
    ]


def attributed(answers: Sequence[Completion], parts: Sequence[Chunk]) -> tuple[int, ...] | str:
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
    known = {part.number for part in parts}
    return tuple(sorted(found)) if found <= known else Outcome.UNPARSED.value


def sufficiency_request(document: Document, passages: Sequence[str]) -> Request:
    """Asks a judge whether passages alone lead to the gold answer: critical ones must, distractors must not."""
    return _request(document, passages, SUFFICIENCY, r"\[\[(yes|no)\]\]")


def suffices(answer: Completion) -> bool | str:
    """What a judge says to that, or why it is not known."""
    if answer.outcome is not Outcome.ANSWERED:
        return answer.outcome.value
    said = _YES_NO.findall(answer_of(answer.text))
    return said[-1].lower() == "yes" if said else Outcome.UNPARSED.value


def _request(document: Document, passages: Sequence[str], task: str, verdict: str) -> Request:
    texts = ["\n\n".join(passages), document.question, document.answer]
    blocks = []
    for name, text in zip(("passages", "question", "answer"), texts, strict=True):
        free = free_name(name, texts)
        blocks.append(f"<{free}>\n{text}\n</{free}>")
    content = "\n\n".join([*blocks, task])
    return Request(({"role": "user", "content": content},), _SHORT_ANSWER, verdict=verdict)
