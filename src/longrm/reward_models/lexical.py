"""Lexical retrieval (BM25) over the chunks of a context."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from bm25s import BM25
from numpy.typing import NDArray
from scipy.sparse import csc_array

from longrm.data.chunking import approximate_tokens, chunk_spans, words_of

# It logs every index that it builds.
logging.getLogger("bm25s").setLevel(logging.WARNING)

_CLAIM = 32  # words and punctuation marks of a part of a response: one claim, which one chunk should support


@dataclass(frozen=True, slots=True)
class PassageChunk:
    """Characters `start` to `end` (exclusive) of the passage with number `passage`, and their size."""

    passage: int
    start: int
    end: int
    size: int


class LexicalIndex:
    """BM25 (Lucene's variant, k1 = 1.5, b = 0.75) over the chunks of some passages.

    The words of a search text are weighted by their inverse document frequency, too, as in the cosine of tf-idf.
    Otherwise four words that occur in many chunks outweigh the one name that leads to the evidence.

    Attributes:
        chunks: In the order of the passages; their size counts words and punctuation marks.
    """

    def __init__(self, passages: Sequence[str], size: int) -> None:
        self.chunks = tuple(
            PassageChunk(number, start, end, approximate_tokens(passage[start:end]))
            for number, passage in enumerate(passages)
            for start, end in chunk_spans(passage, size)
        )
        texts = [words_of(passages[chunk.passage][chunk.start : chunk.end]) for chunk in self.chunks]
        self._columns: dict[str, int] = {}
        self._table = csc_array((len(texts), 0))
        if any(texts):
            bm25 = BM25()
            bm25.index(texts, create_empty_token=False, show_progress=False)
            self._columns = bm25.vocab_dict
            held = bm25.scores
            shape = len(texts), len(self._columns)
            self._table = csc_array((held["data"], held["indices"], held["indptr"]), shape=shape)

    def scores(self, text: str) -> NDArray[np.float64]:
        """The score of every chunk for the distinct words of a text; 0 if it contains none of them."""
        known = sorted(word for word in {*words_of(text)} if word in self._columns)
        rarities = np.array([self._rarity(word) for word in known])
        return np.asarray(self._table[:, [self._columns[word] for word in known]] @ rarities)

    def support(self, text: str) -> float:
        """The share of a text that the passages support, from 0 to below 1.

        The text is split into parts of a sentence or two. Each part earns the score of its best chunk, out of the sum
        of its words' squared rarities, which includes words that are in no chunk. So neither length nor repetition
        raises the share: additions must be in the passages, and close to each other.
        """
        parts = [text[start:end] for start, end in chunk_spans(text, _CLAIM)]
        most = sum(self._rarity(word) ** 2 for part in parts for word in sorted({*words_of(part)}))
        earned = sum(float(self.scores(part).max(initial=0)) for part in parts)
        # Rounded, so that ties do not depend on the order of summation.
        return round(earned / most, 12) if most else 0.0

    def _rarity(self, word: str) -> float:
        column = self._columns.get(word)
        holding = 0 if column is None else int(self._table.indptr[column + 1] - self._table.indptr[column])
        return rarity(len(self.chunks), holding)


def rarity(chunks: int, holding: int) -> float:
    """Lucene's inverse document frequency of a word that `holding` of the chunks contain."""
    return math.log(1 + (chunks - holding + 0.5) / (holding + 0.5))


# Consecutive queries about one context share its index.
index = lru_cache(maxsize=4)(LexicalIndex)
