"""Exact and near duplicates within a data set, and text that it shares with benchmarks.

Exact duplicates are found by hashes, near ones by MinHash sketches in `datasketch`'s LSH index, shared text by n-grams
of words.
"""

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from longrm.auditing.rows import AuditedRow, benchmark, of_comparison
from longrm.data.chunking import words_of
from longrm.errors import importing

Numbers = npt.NDArray[np.uint64]

SHINGLE_WORDS = 5
"""Words of the n-grams by which near duplicates are found."""

PERMUTATIONS = 128
"""Of a MinHash: the standard error of a similarity of 0.8 is 0.035."""

LEAKAGE_WORDS = 13
"""Words of the n-grams by which leakage is measured, as for GPT-3: longer than what two texts share by chance."""

LEAKAGE_SHARE = 0.5
"""A row has leaked if this share of its n-grams is in benchmark texts, or of one benchmark text's in the row."""

NGRAM_SAMPLING = 4
"""One in so many n-grams of contexts is looked up, the same ones everywhere. Questions and responses are short."""

# Hash values at once; each takes 8 bytes for every permutation.
_AT_ONCE = 8192


def ngrams(text: str, size: int) -> Numbers:
    """The different n-grams of `size` words in a text as sorted 64-bit hashes, equal on every machine; [n-grams].

    Case and punctuation do not count. A text with fewer words has one n-gram: all of them.
    """
    words = words_of(text)
    if not words:
        return np.empty(0, np.uint64)
    numbers = np.array([_word_hash(word) for word in words], np.uint64)
    size = min(size, len(numbers))
    count = len(numbers) - size + 1
    found = np.full(count, size, np.uint64)
    for place in range(size):  # a polynomial hash, which wraps around at 64 bits
        found = found * np.uint64(0x9E3779B97F4A7C15) + numbers[place : place + count]
        # The finalizer of splitmix64: every bit of the input changes half of those of the output.
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found = found ^ (found >> np.uint64(31))
    return np.unique(found)


@lru_cache(maxsize=200_000)
def _word_hash(word: str) -> int:
    data = word.encode(errors="surrogatepass")
    return zlib.crc32(data) << 32 | zlib.adler32(data)


class NearTexts:
    """Finds texts that nearly repeat earlier ones: their Jaccard similarity of word n-grams reaches the threshold.

    Texts are numbered from 0 as they come.
    """

    def __init__(self, threshold: float) -> None:
        with importing("an audit"):
            import datasketch  # here, because only audits need it
        self._threshold, self._datasketch = threshold, datasketch
        # A false candidate costs a comparison of two sketches; a missed one is lost.
        self._index = datasketch.MinHashLSH(threshold, PERMUTATIONS, weights=(0.05, 0.95))
        # [permutations] each; None for a text without words.
        self._sketches: list[npt.NDArray[np.uint32] | None] = []

    def see(self, text: str) -> list[tuple[int, float]]:
        """Takes in a text; returns numbers of earlier texts that it nearly repeats and similarities, nearest first."""
        number, shingles = len(self._sketches), ngrams(text, SHINGLE_WORDS)
        if not len(shingles):
            self._sketches.append(None)
            return []
        sketch: Any = self._datasketch.MinHash(num_perm=PERMUTATIONS, hashfunc=int)
        short = shingles >> np.uint64(32)  # datasketch's hash values have 32 bits
        for start in range(0, len(short), _AT_ONCE):
            sketch.update_batch(short[start : start + _AT_ONCE].tolist())
        self._sketches.append(sketch.hashvalues.astype(np.uint32))
        similar = [(other, self._similarity(number, other)) for other in self._index.query(sketch)]
        self._index.insert(number, sketch, check_duplication=False)
        near = [(other, share) for other, share in similar if share >= self._threshold]
        return sorted(near, key=lambda one: (-one[1], one[0]))

    def are_near(self, one: int, other: int) -> bool:
        """Whether two earlier texts are the same or nearly so."""
        return one == other or self._similarity(one, other) >= self._threshold

    def _similarity(self, one: int, other: int) -> float:
        """An estimate of the Jaccard similarity of two texts."""
        first, second = self._sketches[one], self._sketches[other]
        return 0.0 if first is None or second is None else float((first == second).mean())


class Duplicates:
    """Looks for rows and contexts that repeat earlier ones; `threshold` as for `NearTexts`."""

    def __init__(self, threshold: float) -> None:
        self._exact: dict[bytes, str] = {}
        self._near_rests, self._near_contexts = NearTexts(threshold), NearTexts(threshold)
        self._rows: list[tuple[str, int]] = []  # of every row its id and the number of its context
        self._contexts: dict[bytes, int] = {}
        self._groups: list[tuple[str, str]] = []  # of every context its group and the id of its first row

    def see(self, row: AuditedRow) -> Iterator[tuple[str, str]]:
        """Takes in a row; yields the kind of each finding and an example."""
        digest = _digest(row.context)
        context = self._contexts.setdefault(digest, len(self._contexts))
        if context == len(self._groups):  # it is new
            self._groups.append((row.group, row.id))
            for number, similarity in self._near_contexts.see(row.context):
                group, name = self._groups[number]
                if group != row.group:
                    yield "near_contexts", f"the context of {row.id} is {similarity:.0%} like that of {name}"
                    break
        row_digest = _digest(row.prompt, *sorted(row.responses))
        if row_digest in self._exact:
            yield "exact_duplicates", f"{row.id} repeats {self._exact[row_digest]}"
            return
        self._exact[row_digest] = row.id
        self._rows.append((row.id, context))
        near = self._near_rests.see(row.rest)
        here = [one for one in near if self._near_contexts.are_near(self._rows[one[0]][1], context)]
        if near:
            number, similarity = (here or near)[0]
            kind = "near_duplicates" if here else "repeated_elsewhere"
            yield kind, f"{row.id} is {similarity:.0%} like {self._rows[number][0]}"


def _digest(*texts: str) -> bytes:
    return hashlib.sha256("\x00".join(texts).encode(errors="surrogatepass")).digest()[:16]


class TextIndex:
    """Which of the named texts have an n-gram: sorted hashes and the number of the text of each, 12 bytes together."""

    def __init__(self, texts: Mapping[str, Numbers]) -> None:
        self._names = list(texts)
        self._sizes = np.array([len(one) for one in texts.values()], np.int64)
        numbers = np.concatenate([np.empty(0, np.uint64), *texts.values()])
        owner = np.repeat(np.arange(len(texts), dtype=np.int32), self._sizes)
        order = np.argsort(numbers, kind="stable")
        self._numbers, self._owner = numbers[order], owner[order]

    def shared(self, numbers: Numbers) -> tuple[float, float, str] | None:
        """What texts share with these n-grams; None where none shares any.

        Returns:
            The share of the n-grams that the texts have together, since a long context may be made of several; of the
            text that shares the most, the share of its own n-grams that is shared; and its name.
        """
        low = np.searchsorted(self._numbers, numbers, "left")
        high = np.searchsorted(self._numbers, numbers, "right")
        counts = high - low
        if not counts.any():
            return None
        # All of low .. high of every n-gram, in one vector: the places of the texts that have it.
        places = np.repeat(high - np.cumsum(counts), counts) + np.arange(counts.sum())
        found = np.bincount(self._owner[places], minlength=len(self._names))
        best = int(np.argmax(np.maximum(found / len(numbers), found / np.maximum(self._sizes, 1))))
        of_row = float(np.count_nonzero(counts) / len(numbers))
        return of_row, float(found[best] / self._sizes[best]), self._names[best]


class Leakage:
    """Compares rows with the named benchmarks: contexts and responses by n-grams, questions word for word."""

    def __init__(self, names: Sequence[str]) -> None:
        self._questions: dict[str, str] = {}
        contexts: dict[str, Numbers] = {}
        responses: dict[str, Numbers] = {}
        groups: set[str] = set()
        known: set[str] = set()
        for name in names:
            for comparison in benchmark(name).comparisons:
                row = of_comparison(comparison)
                where = f"{name} {row.id}"
                if row.group not in groups:
                    groups.add(row.group)
                    contexts[where] = _context_ngrams(row)
                if question := " ".join(words_of(row.question)):
                    self._questions.setdefault(question, where)
                for place, response in enumerate(row.responses, start=1):
                    if _long_enough(response) and response not in known:
                        known.add(response)
                        responses[f"{where}, response {place}"] = ngrams(response, LEAKAGE_WORDS)
        self._contexts, self._responses = TextIndex(contexts), TextIndex(responses)

    def see(self, row: AuditedRow) -> Iterator[tuple[str, str]]:
        """What a row shares: yields the kind of each finding and an example."""
        contexts = [_context_ngrams(row)] if _long_enough(row.context) else []
        responses = [ngrams(text, LEAKAGE_WORDS) for text in row.responses if _long_enough(text)]
        where = self._questions.get(" ".join(words_of(row.question)))
        if where is not None:
            yield "leaked_questions", f"{row.id}: {where}"
        for kind, index, texts in (
            ("leaked_contexts", self._contexts, contexts),
            ("leaked_responses", self._responses, responses),
        ):
            found = [shared for numbers in texts if (shared := index.shared(numbers)) is not None]
            # A short text within a long one is shared as well, whichever of the two is the row's.
            of_row, of_benchmark, name = max(found, key=lambda one: max(one[:2]), default=(0.0, 0.0, ""))
            if max(of_row, of_benchmark) >= LEAKAGE_SHARE:
                share = f"{of_row:.0%} of it is in benchmarks, mostly in {name}, of which {of_benchmark:.0%} is here"
                yield kind, f"{row.id}: {share}"


def _context_ngrams(row: AuditedRow) -> Numbers:
    numbers = ngrams(row.context, LEAKAGE_WORDS)
    sampled: Numbers = numbers[numbers % np.uint64(NGRAM_SAMPLING) == 0]
    return sampled


def _long_enough(text: str) -> bool:
    """Whether a text has an n-gram at all: shorter texts are shared by chance."""
    return len(words_of(text)) >= LEAKAGE_WORDS
