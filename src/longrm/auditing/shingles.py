"""Runs of words as numbers: equal runs have equal numbers, on every machine and in every process."""

import zlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from longrm.data.chunking import words_of

Numbers = npt.NDArray[np.uint64]

_BASE = np.uint64(0x9E3779B97F4A7C15)


def shingles(text: str, size: int) -> Numbers:
    """The different runs of `size` words in a text, as sorted numbers of 64 bits; [runs].

    Case and punctuation do not count. A text with fewer words has one run: all of them.
    """
    held = words_of(text)
    if not held:
        return np.empty(0, np.uint64)
    numbers = np.array([_number(word) for word in held], np.uint64)
    size = min(size, len(numbers))
    runs = len(numbers) - size + 1
    found = np.full(runs, size, np.uint64)
    for place in range(size):  # wraps around at 64 bits, as a polynomial hash does
        found = _mixed(found * _BASE + numbers[place : place + runs])
    return np.unique(found)


def every(numbers: Numbers, sampled: int) -> Numbers:
    """One number in so many: the same ones of every text."""
    kept: Numbers = numbers[numbers % np.uint64(sampled) == 0]
    return kept


@lru_cache(maxsize=200_000)
def _number(word: str) -> int:
    data = word.encode(errors="surrogatepass")
    return zlib.crc32(data) << 32 | zlib.adler32(data)


def _mixed(numbers: Numbers) -> Numbers:
    """Spreads all bits over all others (the finalizer of splitmix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
