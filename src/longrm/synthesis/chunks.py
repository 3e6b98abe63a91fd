"""Chunks of a document, and what of a gold answer they hold."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from longrm.data.chunking import chunks, words

_PHRASE = 6  # words up to which an answer is looked for as it stands, not word by word
_GROUPED = re.compile(r"(?<!\d)\d{1,3}(?:[,'’\u00a0\u2009\u202f ]\d{3})+(?!\d)")
_OTHERWISE = "\0"  # is no word, so no phrase reaches across it


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document that ends where a sentence ends, and is never cut.

    Attributes:
        number: Its place in the document.
        start: Its first character in the document, white space left out.
        end: Behind its last character.
        text: What stands there.
    """

    number: int
    start: int
    end: int
    text: str


@lru_cache(maxsize=4)  # neighboring questions are often about one long document
def cut(text: str, size: int) -> tuple[Chunk, ...]:
    """Cuts a text into chunks of at most `size` words and punctuation marks; blank ones are left out."""
    found: list[Chunk] = []
    for start, end in chunks(text, size):
        inner = text[start:end].strip()
        if inner:
            at = text.index(inner, start)
            found.append(Chunk(len(found), at, at + len(inner), inner))
    return tuple(found)


def touching(parts: Sequence[Chunk], spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Numbers of the chunks that share a character with one of the (start, end) spans."""
    return tuple(
        part.number for part in parts if any(start < part.end and part.start < end for start, end in spans)
    )


def runs(text: str, parts: Sequence[Chunk]) -> tuple[Chunk, ...]:
    """Chunks that follow each other in their text made one, with the white space between them; the rest as it is."""
    found: list[Chunk] = []
    last = -2
    for part in parts:
        if part.number == last + 1:
            first = found.pop()
            found.append(Chunk(first.number, first.start, part.end, text[first.start : part.end]))
        else:
            found.append(part)
        last = part.number
    return tuple(found)


def said(text: str) -> list[str]:
    """The words of a text to look for: a number in groups of digits, such as 12,500, is one word."""
    return words(_GROUPED.sub(_joined, text))


def searched(text: str) -> list[str]:
    """The words of a text to look in, and all of them once more where numbers in groups may be several numbers."""
    joined = _GROUPED.sub(_joined, text)
    return words(text) if joined == text else [*words(joined), _OTHERWISE, *words(text)]


def _joined(number: re.Match[str]) -> str:
    return "".join(filter(str.isdecimal, number[0]))


@dataclass(frozen=True, slots=True)
class Sought:
    """Words that are looked for in texts, each by its rarity.

    Attributes:
        weights: The words and what each counts.
        phrase: Words that must stand next to each other, between spaces; empty where they need not.
    """

    weights: Mapping[str, float]
    phrase: str = ""

    @property
    def most(self) -> float:
        """What a text earns that holds all words; 1 where there are none, so that shares are 0."""
        return sum(self.weights.values()) or 1.0

    def held(self, text: str) -> float:
        """The share of the weights that a text holds, from 0 to 1; of a phrase, all or nothing."""
        found = searched(text)
        if self.phrase:
            return float(self.phrase in f" {' '.join(found)} ")
        return sum(self.weights[word] for word in sorted({*found}) if word in self.weights) / self.most


def gold_of(question: str, answer: str, rarity: Callable[[str], float]) -> Sought:
    """What of a gold answer can be looked for: a short one as it stands, of a longer one what the question lacks."""
    given = said(answer)
    phrase = f" {' '.join(given)} " if 0 < len(given) <= _PHRASE else ""
    asked = {*searched(question)}
    own = [word for word in given if word not in asked] or given
    return Sought({word: rarity(word) for word in dict.fromkeys(own)}, phrase)


@dataclass(frozen=True, slots=True)
class Answering:
    """What makes a chunk unfit as a distractor: it holds the gold answer, or matches the question like the evidence.

    The second catches a chunk that answers the question in another way, as other documents about the same subject do.

    Attributes:
        gold: The gold answer's words.
        enough: The share of them from which on a chunk holds it.
        asked: Words of the question that the evidence holds.
        limit: The share of these from which on a chunk may answer; infinite where that is not looked at.
    """

    gold: Sought
    enough: float
    asked: Sought
    limit: float

    @classmethod
    def of(
        cls,
        question: str,
        answer: str,
        evidence: Sequence[str],
        rarity: Callable[[str], float],
        *,
        enough: float,
        alike: float,
    ) -> Self:
        """Weighs the words of a question with its gold answer.

        Args:
            question: The question.
            answer: The gold answer.
            evidence: The critical chunks.
            rarity: Weighs a word.
            enough: See `Answering`.
            alike: What share of the evidence's own match with the question a distractor must stay below.
        """
        known = {word for text in evidence for word in searched(text)}
        # Squared, so that the one name asked about outweighs the words that many chunks share with the question.
        weights = {word: rarity(word) ** 2 for word in dict.fromkeys(said(question)) if word in known}
        asked = Sought(weights)
        best = max((asked.held(text) for text in evidence), default=0.0)
        return cls(gold_of(question, answer, rarity), enough, asked, alike * best if best else math.inf)

    def found_in(self, text: str) -> bool:
        """Whether a text may answer the question."""
        return self.gold.held(text) >= self.enough or self.asked.held(text) >= self.limit
