"""Random draws that are the same on every machine and in every Python version.

The standard library promises to keep `Random.random()` for a seed, and not `shuffle`, `choice` or `sample`;
these are therefore spelled out here on top of it.
"""

import hashlib
import random
from collections.abc import Iterator, MutableSequence, Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Draws:
    """A stream of draws that depends on the parts of its key alone."""

    __slots__ = ("_random",)

    def __init__(self, *key: object) -> None:
        text = "\x00".join(map(str, key))
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")
        self._random = random.Random(seed).random

    def fraction(self) -> float:
        """A number from 0 up to, but not including, 1."""
        return self._random()

    def below(self, bound: int) -> int:
        """A whole number from 0 to `bound` - 1."""
        return int(self._random() * bound)

    def one(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[int(self._random() * len(items))]

    def shuffle(self, items: MutableSequence[Item]) -> None:
        """Puts the items in a random order, in place (Fisher-Yates)."""
        draw = self._random
        for last in range(len(items) - 1, 0, -1):
            other = int(draw() * (last + 1))
            items[last], items[other] = items[other], items[last]

    def order(self, items: Sequence[Item]) -> Iterator[Item]:
        """Yields the items in a random order, drawing no more than is asked for."""
        pool = list(items)
        for taken in range(len(pool)):
            other = taken + self.below(len(pool) - taken)
            pool[taken], pool[other] = pool[other], pool[taken]
            yield pool[taken]
