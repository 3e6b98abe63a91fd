"""Chunks of a document, and how much of a gold answer they hold."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from longrm.data.chunking import chunk_spans, words_of

_PHRASE = 6  # words up to which an answer is looked for as it stands, not word by word
_GROUPED = re.compile(r"(?<!\d)\d{1,3}(?:[,'’\u00a0\u2009\u202f ]\d{3})+(?!\d)")
_OTHERWISE = "\0"  # is no word, so no phrase reaches across it


@dataclass(frozen=True, slots=True)
class DocumentChunk:
    """A part of a document that ends where a sentence ends, and is never cut.

    `number` counts the chunks of its document from 0; `start` and `end` are its characters there, white space left out.
    `document` is the first one with the same text, empty where nobody needs it. `tokens` includes what stands between
    chunks; it is 0 where they are not counted.
    """

    number: int
    start: int
    end: int
    text: str
    document: str = ""
    group: str = ""
    tokens: int = 0


@lru_cache(maxsize=4)  # neighboring questions are often about one long document
def cut_chunks(text: str, size: int) -> tuple[DocumentChunk, ...]:
    """Cuts a text into chunks of at most `size` approximate tokens; blank ones are left out."""
    found: list[DocumentChunk] = []
    for start, end in chunk_spans(text, size):
        inner = text[start:end].strip()
        if inner:
            at = text.index(inner, start)
            found.append(DocumentChunk(len(found), at, at + len(inner), inner))
    return tuple(found)


def overlapping(parts: Sequence[DocumentChunk], spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Numbers of the chunks that share a character with one of the (start, end) spans."""
    return tuple(
        part.number for part in parts if any(start < part.end and part.start < end for start, end in spans)
    )


def merge_adjacent(text: str, parts: Sequence[DocumentChunk]) -> tuple[DocumentChunk, ...]:
    """Makes chunks that follow each other one, with the white space between them; leaves the rest as it is."""
    found: list[DocumentChunk] = []
    last = -2
    for part in parts:
        if part.number == last + 1:
            first = found.pop()
            found.append(DocumentChunk(first.number, first.start, part.end, text[first.start : part.end]))
        else:
            found.append(part)
        last = part.number
    return tuple(found)


def sought_words(text: str) -> list[str]:
    """The words of a text to look for: a number in groups of digits, such as 12,500, is one word."""
    return words_of(_GROUPED.sub(_joined, text))


def searchable_words(text: str) -> list[str]:
    """The words of a text to look in, and all of them once more where numbers in groups may be several numbers."""
    joined = _GROUPED.sub(_joined, text)
    return words_of(text) if joined == text else [*words_of(joined), _OTHERWISE, *words_of(text)]


def _joined(number: re.Match[str]) -> str:
    return "".join(filter(str.isdecimal, number[0]))


@dataclass(frozen=True, slots=True)
class SoughtWords:
    """Words that are looked for in texts, each with what it counts.

    Those of a `phrase` must stand next to each other, between spaces; it is empty where they need not.
    """

    weights: Mapping[str, float]
    phrase: str = ""

    @property
    def total(self) -> float:
        """What a text earns that holds all words; 1 where there are none, so that shares are 0."""
        return sum(self.weights.values()) or 1.0

    def coverage(self, text: str) -> float:
        """The share of the weights that a text holds, from 0 to 1; of a phrase, all or nothing."""
        found = searchable_words(text)
        if self.phrase:
            return float(self.phrase in f" {' '.join(found)} ")
        return sum(self.weights[word] for word in sorted({*found}) if word in self.weights) / self.total


def gold_words(question: str, answer: str, rarity: Callable[[str], float]) -> SoughtWords:
    """What of a gold answer can be looked for: a short one as it stands, of a longer one what the question lacks."""
    given = sought_words(answer)
    phrase = f" {' '.join(given)} " if 0 < len(given) <= _PHRASE else ""
    known = {*searchable_words(question)}
    new = [word for word in given if word not in known] or given
    return SoughtWords({word: rarity(word) for word in dict.fromkeys(new)}, phrase)


@dataclass(frozen=True, slots=True)
class AnswerMatcher:
    """Tells chunks that may answer a question, and are therefore unfit as distractors.

    They hold this share of the gold answer's words, or match the question as well as the evidence does: the second
    catches a chunk that answers it in another way, as other documents about the same subject do. `question` has the
    words of the question that the evidence holds; their limit is infinite where that is not looked at.
    """

    gold: SoughtWords
    coverage_threshold: float
    question: SoughtWords
    question_limit: float

    @classmethod
    def of(
        cls,
        question: str,
        answer: str,
        evidence: Sequence[str],
        rarity: Callable[[str], float],
        *,
        coverage_threshold: float,
        similarity_threshold: float,
    ) -> Self:
        """Weighs the words of a question with its gold answer."""
        known = {word for text in evidence for word in searchable_words(text)}
        # Squared, so that the one name asked about outweighs the words that many chunks share with the question.
        weights = {word: rarity(word) ** 2 for word in dict.fromkeys(sought_words(question)) if word in known}
        asked = SoughtWords(weights)
        best = max((asked.coverage(text) for text in evidence), default=0.0)
        limit = similarity_threshold * best if best else math.inf
        return cls(gold_words(question, answer, rarity), coverage_threshold, asked, limit)

    def may_answer(self, text: str) -> bool:
        """Whether a text may answer the question."""
        if self.gold.coverage(text) >= self.coverage_threshold:
            return True
        return self.question.coverage(text) >= self.question_limit
