"""Distractors: whole chunks of other documents, none of which answers the question, drawn to fill a context."""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from longrm.data.tokenizing import Tokenizer
from longrm.reward_models.lexical import rarity
from longrm.rng import Draws
from longrm.synthesis.inputs.documents import Document
from longrm.synthesis.long_context.chunks import (
    AnswerMatcher,
    DocumentChunk,
    SoughtWords,
    cut_chunks,
    searchable_words,
)

BETWEEN = "\n\n"
"""Stands between chunks."""

# What a context is filled up with when chunks of full size no longer fit: about a sentence each.
_SMALL = 12
_SMALL_AT_ONCE = 64


def with_tokens(chunk: DocumentChunk, document: str, group: str, tokenizer: Tokenizer) -> DocumentChunk:
    """A chunk that may pad a context, with its document and its tokens, which in a text may be a few more or less."""
    tokens = tokenizer.count(chunk.text + BETWEEN)
    return replace(chunk, document=document, group=group, tokens=tokens)


class DistractorPool:
    """Chunks of other documents, held in bounded memory, and which words stand in them.

    Make one with `gather`, which counts the `documents` that it saw. The first `large` chunks are of full size, the
    others small (about a sentence).
    """

    def __init__(
        self, large: Sequence[DocumentChunk], small: Sequence[DocumentChunk], documents: int = 0
    ) -> None:
        self.chunks = (*large, *small)
        self.large, self.documents = len(large), documents
        self._texts: list[str] = []
        postings: dict[str, list[int]] = {}
        for number, chunk in enumerate(self.chunks):
            found = searchable_words(chunk.text)
            self._texts.append(f" {' '.join(found)} ")
            for word in dict.fromkeys(found):
                postings.setdefault(word, []).append(number)
        self._postings = {word: np.array(found, np.int32) for word, found in postings.items()}

    @classmethod
    def gather(
        cls,
        documents: Iterable[Document],
        tokenizer: Tokenizer,
        *,
        chunk_size: int,
        pool_documents: int,
        pool_chunks: int,
        seed: int,
    ) -> "DistractorPool":
        """Draws documents and chunks of them, whatever order they come in; texts that come again count once."""
        seen = 0
        kept: dict[str, tuple[list[DocumentChunk], list[DocumentChunk]]] = {}
        drawn: list[tuple[float, str]] = []  # a heap whose first entry is the next to go
        for document in documents:
            seen += 1
            group = document.group
            entry = (-Draws(seed, "pool", group).fraction(), group)
            if group in kept or (len(drawn) == pool_documents and entry <= drawn[0]):
                continue
            if len(drawn) < pool_documents:
                heapq.heappush(drawn, entry)
            else:
                del kept[heapq.heappushpop(drawn, entry)[1]]
            both = []
            for name, size in {"large": chunk_size, "small": _SMALL}.items():
                parts = list(cut_chunks(document.text, size))
                Draws(seed, name, group).shuffle(parts)
                both.append(
                    [with_tokens(part, document.id, group, tokenizer) for part in parts[:pool_chunks]]
                )
            kept[group] = both[0], both[1]
        groups = [kept[group] for _, group in sorted(drawn, reverse=True)]
        return cls(
            [one for large, _ in groups for one in large], [one for _, small in groups for one in small], seen
        )

    def rarity(self, word: str) -> float:
        """The rarity of a word: its inverse document frequency over the chunks."""
        return rarity(len(self.chunks), len(self._postings.get(word, ())))

    def may_answer(self, matcher: AnswerMatcher) -> NDArray[np.bool_]:
        """Which chunks may answer a question: what `matcher.may_answer` says of their texts."""
        gold = self.coverage(matcher.gold) >= matcher.coverage_threshold
        if not np.isfinite(matcher.question_limit):
            return gold
        return gold | (self.coverage(matcher.question) >= matcher.question_limit)

    def coverage(self, sought: SoughtWords) -> NDArray[np.float64]:
        """For every chunk, the share of sought words that it holds: what `sought.coverage` says of its text."""
        total = np.zeros(len(self.chunks))
        for word in sorted(sought.weights):  # in the order in which `SoughtWords.coverage` adds up
            total[self._postings.get(word, [])] += sought.weights[word]
        shares = total / sought.total
        if sought.phrase:
            for number in np.flatnonzero(shares):
                shares[number] = float(sought.phrase in self._texts[number])
        return shares

    def draw(
        self, group: str, unfit: NDArray[np.bool_], banned: Iterable[str], draws: Draws
    ) -> tuple[Iterator[DocumentChunk], list[DocumentChunk]]:
        """Distractors for one context: large chunks in a drawn order, and some small ones."""
        out = {*banned}

        def fits(number: int) -> bool:
            chunk = self.chunks[number]
            return not unfit[number] and chunk.group != group and chunk.text not in out

        small = []
        for number in Draws(draws.fraction(), "small").order([*range(self.large, len(self.chunks))]):
            if fits(number):
                small.append(self.chunks[number])
            if len(small) == _SMALL_AT_ONCE:
                break
        large = Draws(draws.fraction(), "large").order(range(self.large))
        return (self.chunks[number] for number in large if fits(number)), small


def closest_to_answer(matcher: AnswerMatcher, texts: Sequence[str], top_k: int) -> list[str]:
    """The texts that come closest to answering a question: at most so many, the closest first."""
    scores = [matcher.gold.coverage(text) + matcher.question.coverage(text) for text in texts]
    best = sorted(range(len(texts)), key=lambda at: -scores[at])[:top_k]
    return [texts[at] for at in best]


def fill_room(
    room: int, order: Iterator[DocumentChunk], small: Sequence[DocumentChunk]
) -> list[DocumentChunk]:
    """Takes whole chunks that come to at most `room` tokens, and as close to it as the small ones allow."""
    taken = []
    for chunk in order:
        if chunk.tokens > room:
            break
        taken.append(chunk)
        room -= chunk.tokens
    by_size = sorted(small, key=lambda chunk: chunk.tokens)
    sizes = [chunk.tokens for chunk in by_size]
    while at := bisect_right(sizes, room):
        sizes.pop(at - 1)
        chunk = by_size.pop(at - 1)
        if any(chunk.text in other.text for other in taken):
            continue  # a sentence of a chunk that stands there already
        taken.append(chunk)
        room -= chunk.tokens
    return taken
