"""Exact and near duplicates: hashes for the ones, MinHash and its index (`datasketch`) for the others.

About 13 KB are kept of a row with a context of its own, whatever its length: two sketches and where the index
holds them.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from longrm.auditing.entries import Entry
from longrm.auditing.result import Auditing
from longrm.auditing.shingles import Numbers, shingles
from longrm.errors import ConfigError

_AT_ONCE = 8192  # numbers; each takes 8 bytes for every permutation


@dataclass(frozen=True, slots=True)
class Near:
    """An earlier text that is nearly the same.

    Attributes:
        name: Its number.
        similarity: The estimated Jaccard similarity of their shingles, from 0 to 1.
    """

    name: int
    similarity: float


class NearTexts:
    """Finds texts that nearly repeat earlier ones.

    Raises:
        ConfigError: The package `datasketch` is not installed.
    """

    def __init__(self, settings: Auditing) -> None:
        try:
            import datasketch  # here, because only audits need it
        except ModuleNotFoundError:
            raise ConfigError(
                "an audit needs the package 'datasketch', which is not installed; pip install 'longrm[synthesis]'"
            ) from None
        self._settings, self._datasketch = settings, datasketch
        # What it wrongly proposes costs a comparison of two sketches; what it misses is lost.
        self._index = datasketch.MinHashLSH(
            threshold=settings.near, num_perm=settings.permutations, weights=(0.05, 0.95)
        )
        self._held: dict[int, Any] = {}

    def see(self, name: int, text: str) -> list[Near]:
        """Takes in a text under a number of its own; the earlier texts that it nearly repeats, the nearest first."""
        found = shingles(text, self._settings.shingle)
        if not len(found):
            return []
        sketch = self._sketch(found)
        similar = [Near(other, self._held[other].jaccard(sketch)) for other in self._index.query(sketch)]
        self._index.insert(name, sketch, check_duplication=False)
        self._held[name] = sketch
        near = [one for one in similar if one.similarity >= self._settings.near]
        return sorted(near, key=lambda one: (-one.similarity, one.name))

    def are_near(self, one: int, other: int) -> bool:
        """Whether two texts that were taken in are nearly the same."""
        if one == other:
            return True
        first, second = self._held.get(one), self._held.get(other)
        if first is None or second is None:  # a text without a word
            return False
        return bool(first.jaccard(second) >= self._settings.near)

    def _sketch(self, numbers: Numbers) -> Any:
        sketch = self._datasketch.MinHash(num_perm=self._settings.permutations, hashfunc=int)
        short = numbers >> np.uint64(32)  # its hash values have 32 bits
        for start in range(0, len(short), _AT_ONCE):
            sketch.update_batch(short[start : start + _AT_ONCE].tolist())
        return self._datasketch.LeanMinHash(sketch)


class Duplicates:
    """Looks for rows that came before, for rows that nearly did, and for contexts that nearly are others."""

    def __init__(self, settings: Auditing) -> None:
        self._exact: dict[bytes, str] = {}
        self._near_rests, self._near_contexts = NearTexts(settings), NearTexts(settings)
        # Of every row: its id, and the number of its context; of every context: its group.
        self._rows: list[tuple[str, int]] = []
        self._contexts: dict[bytes, int] = {}
        self._groups: dict[int, tuple[str, str]] = {}

    def see(self, entry: Entry) -> Iterator[tuple[str, str]]:
        """Takes in a row; what was found: the kind of finding, and an example."""
        digest = _digest(entry.context)
        known = digest in self._contexts
        context = self._contexts.setdefault(digest, len(self._contexts))
        if not known:
            self._groups[context] = entry.group, entry.id
            yield from self._see_context(entry, context)
        row = _digest(entry.prompt, *sorted(entry.responses))
        if row in self._exact:
            yield "exact_duplicates", f"{entry.id} is {self._exact[row]}"
            return
        self._exact[row] = entry.id
        number = len(self._rows)
        self._rows.append((entry.id, context))
        near = self._near_rests.see(number, entry.rest)
        here = [one for one in near if self._near_contexts.are_near(self._rows[one.name][1], context)]
        if near:
            kind = "near_duplicates" if here else "repeated_elsewhere"
            nearest = (here or near)[0]
            yield kind, f"{entry.id} is {nearest.similarity:.0%} of {self._rows[nearest.name][0]}"

    def _see_context(self, entry: Entry, context: int) -> Iterator[tuple[str, str]]:
        for near in self._near_contexts.see(context, entry.context):
            group, name = self._groups[near.name]
            if group != entry.group:
                yield "near_contexts", f"that of {entry.id} is {near.similarity:.0%} of that of {name}"
                return


def _digest(*texts: str) -> bytes:
    whole = "\x00".join(texts).encode(errors="surrogatepass")
    return hashlib.sha256(whole).digest()[:16]
