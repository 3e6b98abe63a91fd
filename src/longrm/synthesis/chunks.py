"""Chunks of documents: cutting them, finding an answer's words in them, and drawing distractors."""

import heapq
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from longrm.data.chunking import chunk_spans, words_of
from longrm.data.tokenizing import Tokenizer
from longrm.reward_models.lexical import rarity
from longrm.rng import Rng
from longrm.synthesis.documents import Document

BETWEEN = "\n\n"
"""Separates chunks."""

DOCUMENT = "Document: {}"
"""The line above a chunk in a context that mixes documents."""

POOL_DOCUMENTS, POOL_CHUNKS = 128, 16
"""Documents that distractors are drawn from, and chunks of each, and as many sentences; bounds the memory of a run."""

COVERAGE = 0.6
"""The share of a long gold answer's words, weighted by rarity, that counts as containing it."""

SIMILARITY = 0.75
"""A chunk may also answer the question if it matches the question at least this share as well as the evidence does."""

_PHRASE = 6  # words up to which an answer must occur as it is, not word by word
_GROUPED = re.compile(r"(?<!\d)\d{1,3}(?:[,'’\u00a0\u2009\u202f ]\d{3})+(?!\d)")
_NO_WORD = "\0"  # separates two lists of words, so that no phrase reaches across
# When full chunks no longer fit, a context is filled up with small ones: about a sentence each.
_SMALL = 12
_MAX_SMALL = 64  # small chunks for one context


@dataclass(frozen=True, slots=True)
class DocumentChunk:
    """A part of a document that ends where a sentence ends."""

    number: int  # counts the chunks of its document from 0
    start: int  # first character in the document's text, without white space
    end: int  # last character + 1
    text: str  # the text between them
    document: str = ""  # the first document with the same text; empty where unused
    group: str = ""  # the group of the document
    title: str = ""  # of the document; empty if the context does not show it
    tokens: int = 0  # including title and the separator between chunks; 0 where unused

    @property
    def shown(self) -> str:
        """The text as a context shows it."""
        return titled(self.title, self.text)

    def counted(self, document: Document, tokenizer: Tokenizer, title: str) -> "DocumentChunk":
        """With its document, title and tokens; within a text it may take a few tokens more or less."""
        tokens = tokenizer.count(titled(title, self.text) + BETWEEN)
        return replace(self, document=document.id, group=document.group, title=title, tokens=tokens)


def titled(title: str, text: str) -> str:
    """A text below the title of its document; the text itself without a title."""
    return f"{DOCUMENT.format(title)}\n{text}" if title else text


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


def merge_adjacent(text: str, chunks: Sequence[DocumentChunk]) -> tuple[DocumentChunk, ...]:
    """Joins consecutive chunks, with the white space between them."""
    found: list[DocumentChunk] = []
    last = -2
    for chunk in chunks:
        if chunk.number == last + 1:
            first = found.pop()
            found.append(DocumentChunk(first.number, first.start, chunk.end, text[first.start : chunk.end]))
        else:
            found.append(chunk)
        last = chunk.number
    return tuple(found)


def _sought(text: str) -> list[str]:
    """The words of a text to look for; a number in groups of digits, such as 12,500, is one word."""
    return words_of(_GROUPED.sub(_without_marks, text))


def _searchable(text: str) -> list[str]:
    """The words of a text to search in; all of them twice if grouped digits could be one number or several."""
    joined = _GROUPED.sub(_without_marks, text)
    return words_of(text) if joined == text else [*words_of(joined), _NO_WORD, *words_of(text)]


def _without_marks(number: re.Match[str]) -> str:
    return "".join(filter(str.isdecimal, number[0]))


@dataclass(frozen=True, slots=True)
class SoughtWords:
    """Words to look for in texts, each with its weight.

    If there is a `phrase`, its words must follow each other; it begins and ends with a space.
    """

    weights: Mapping[str, float]
    phrase: str = ""

    @property
    def total(self) -> float:
        """The sum of the weights; 1 if there are none, so that shares are 0."""
        return sum(self.weights.values()) or 1.0

    def coverage(self, text: str) -> float:
        """The share of the weights that a text contains, from 0 to 1; for a phrase, all or nothing."""
        found = _searchable(text)
        if self.phrase:
            return float(self.phrase in f" {' '.join(found)} ")
        return sum(self.weights[word] for word in sorted({*found}) if word in self.weights) / self.total


def gold_words(question: str, answer: str, rarity: Callable[[str], float]) -> SoughtWords:
    """How to look for a gold answer: a short one as a phrase, a long one by its words that the question lacks."""
    given = _sought(answer)
    phrase = f" {' '.join(given)} " if 0 < len(given) <= _PHRASE else ""
    known = {*_searchable(question)}
    new = [word for word in given if word not in known] or given
    return SoughtWords({word: rarity(word) for word in dict.fromkeys(new)}, phrase)


@dataclass(frozen=True, slots=True)
class AnswerMatcher:
    """Recognizes chunks that may answer a question, which must not become distractors.

    A chunk may answer it if it contains `COVERAGE` of the gold answer's words, or matches the question nearly as well
    as the evidence does: the second catches other answers, which documents about the same subject give.
    """

    gold: SoughtWords  # the gold answer's words
    question: SoughtWords  # the words of the question that the evidence contains
    # the coverage of these from which a chunk may answer; infinite if the evidence has none
    question_limit: float

    @classmethod
    def of(
        cls, question: str, answer: str, evidence: Sequence[str], rarity: Callable[[str], float]
    ) -> "AnswerMatcher":
        """Weighs the words of a question and its gold answer by their rarity."""
        known = {word for text in evidence for word in _searchable(text)}
        # Squared, so that the one name asked about outweighs the words that many chunks share with the question.
        words = SoughtWords(
            {word: rarity(word) ** 2 for word in dict.fromkeys(_sought(question)) if word in known}
        )
        best = max((words.coverage(text) for text in evidence), default=0.0)
        return cls(gold_words(question, answer, rarity), words, SIMILARITY * best if best else math.inf)

    def may_answer(self, text: str) -> bool:
        """Whether a text may answer the question."""
        return self.gold.coverage(text) >= COVERAGE or self.question.coverage(text) >= self.question_limit

    def closest(self, texts: Sequence[str], count: int) -> list[str]:
        """The `count` texts that come closest to an answer, the closest first."""
        scores = [self.gold.coverage(text) + self.question.coverage(text) for text in texts]
        return [texts[at] for at in sorted(range(len(texts)), key=lambda at: -scores[at])[:count]]


class DistractorPool:
    """Chunks of drawn documents in bounded memory, with an index of their words.

    Attributes:
        chunks: The first `large` are of full size, the others small (about a sentence).
        large: How many are of full size.
        documents: How many documents `gather` saw.
    """

    def __init__(
        self, large: Sequence[DocumentChunk], small: Sequence[DocumentChunk], documents: int = 0
    ) -> None:
        self.chunks = (*large, *small)
        self.large, self.documents = len(large), documents
        self._texts: list[str] = []
        postings: dict[str, list[int]] = {}
        for number, chunk in enumerate(self.chunks):
            found = _searchable(chunk.text)
            self._texts.append(f" {' '.join(found)} ")
            for word in dict.fromkeys(found):
                postings.setdefault(word, []).append(number)
        self._postings = {word: np.array(found, np.int32) for word, found in postings.items()}

    @classmethod
    def gather(
        cls, documents: Iterable[Document], tokenizer: Tokenizer, chunk_size: int, seed: int
    ) -> "DistractorPool":
        """Draws documents, and large and small chunks of each, in one pass. Repeated texts count once."""
        # Every text has a random number of its own, and the texts with the smallest ones are kept: the draw does not
        # depend on the order of the documents, nor on how many there are.
        seen = 0
        kept: dict[str, tuple[list[DocumentChunk], list[DocumentChunk]]] = {}
        drawn: list[tuple[float, str]] = []  # a heap; its first entry is the next to be dropped
        for document in documents:
            seen += 1
            group = document.group
            entry = (-Rng(seed, "pool", group).fraction(), group)
            if group in kept or (len(drawn) == POOL_DOCUMENTS and entry <= drawn[0]):
                continue
            if len(drawn) < POOL_DOCUMENTS:
                heapq.heappush(drawn, entry)
            else:
                del kept[heapq.heappushpop(drawn, entry)[1]]
            both = []
            for name, size in {"large": chunk_size, "small": _SMALL}.items():
                chunks = list(cut_chunks(document.text, size))
                Rng(seed, name, group).shuffle(chunks)
                title = document.title
                both.append([chunk.counted(document, tokenizer, title) for chunk in chunks[:POOL_CHUNKS]])
            kept[group] = both[0], both[1]
        groups = [kept[group] for _, group in sorted(drawn, reverse=True)]
        large = [chunk for chunks, _ in groups for chunk in chunks]
        return cls(large, [chunk for _, chunks in groups for chunk in chunks], seen)

    def rarity(self, word: str) -> float:
        """The inverse document frequency of a word over the chunks."""
        return rarity(len(self.chunks), len(self._postings.get(word, ())))

    def may_answer(self, matcher: AnswerMatcher) -> NDArray[np.bool_]:
        """For every chunk what `matcher.may_answer` returns for its text, by the index."""
        gold = self.coverage(matcher.gold) >= COVERAGE
        if not np.isfinite(matcher.question_limit):
            return gold
        return gold | (self.coverage(matcher.question) >= matcher.question_limit)

    def coverage(self, sought: SoughtWords) -> NDArray[np.float64]:
        """For every chunk what `sought.coverage` returns for its text, by the index."""
        total = np.zeros(len(self.chunks))
        for word in sorted(sought.weights):  # the order of addition in `SoughtWords.coverage`: sums are equal
            total[self._postings.get(word, [])] += sought.weights[word]
        shares = total / sought.total
        if sought.phrase:
            for number in np.flatnonzero(shares):
                shares[number] = float(sought.phrase in self._texts[number])
        return shares

    def draw(
        self, group: str, unfit: NDArray[np.bool_], banned: Iterable[str], rng: Rng
    ) -> tuple[Iterator[DocumentChunk], list[DocumentChunk]]:
        """Distractors for one context: large chunks in a drawn order, and some small ones.

        Left out are chunks of the document itself (`group`), those that may answer the question (`unfit`), and those
        with a `banned` text.
        """
        excluded = {*banned}

        def fits(number: int) -> bool:
            chunk = self.chunks[number]
            return not unfit[number] and chunk.group != group and chunk.text not in excluded

        small = []
        for number in Rng(rng.fraction(), "small").order([*range(self.large, len(self.chunks))]):
            if fits(number):
                small.append(self.chunks[number])
            if len(small) == _MAX_SMALL:
                break
        large = Rng(rng.fraction(), "large").order(range(self.large))
        return (self.chunks[number] for number in large if fits(number)), small


def fill_room(
    room: int, large: Iterator[DocumentChunk], small: Sequence[DocumentChunk]
) -> list[DocumentChunk]:
    """Takes whole chunks of at most `room` tokens together, and as close to it as the small ones allow."""
    taken = []
    for chunk in large:
        if chunk.tokens > room:
            break
        taken.append(chunk)
        room -= chunk.tokens
    by_size = sorted(small, key=lambda chunk: chunk.tokens)
    sizes = [chunk.tokens for chunk in by_size]
    while at := bisect_right(sizes, room):  # the largest that still fits
        sizes.pop(at - 1)
        chunk = by_size.pop(at - 1)
        if any(chunk.text in other.text for other in taken):
            continue  # a sentence of a large chunk taken before
        taken.append(chunk)
        room -= chunk.tokens
    return taken
