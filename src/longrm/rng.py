"""Random numbers that are the same on every machine and in every Python version, drawn from a hash of a key.

The standard library keeps `Random.random()` for a seed over versions, but not `shuffle`, `choice` or `sample`, which
are therefore implemented here.
"""

import hashlib
import random
from collections.abc import Iterator, MutableSequence, Sequence
from typing import TypeVar

DrawnItem = TypeVar("DrawnItem")


def key_hash(*key: object) -> bytes:
    """32 bytes that depend only on the parts of a key and their order."""
    return hashlib.sha256("\x00".join(map(str, key)).encode()).digest()


def seed_of(*key: object) -> int:
    """A seed for a language model: a whole number below 2**31, which all servers accept."""
    return int.from_bytes(key_hash(*key)[:4], "big") >> 1


def hash_fraction(*key: object) -> float:
    """A number from 0 up to, but not including, 1."""
    return int.from_bytes(key_hash(*key)[:6], "big") / 2**48


class Rng:
    """A stream of random numbers that depends only on its key."""

    __slots__ = ("_random",)

    def __init__(self, *key: object) -> None:
        self._random = random.Random(int.from_bytes(key_hash(*key)[:16], "big")).random

    def fraction(self) -> float:
        """A number from 0 up to, but not including, 1."""
        return self._random()

    def below(self, bound: int) -> int:
        """A whole number from 0 to `bound` - 1."""
        return int(self._random() * bound)

    def choice(self, items: Sequence[DrawnItem]) -> DrawnItem:
        """One of the items."""
        return items[int(self._random() * len(items))]

    def shuffle(self, items: MutableSequence[DrawnItem]) -> None:
        """Puts the items in a random order, in place (Fisher-Yates)."""
        draw = self._random
        for last in range(len(items) - 1, 0, -1):
            other = int(draw() * (last + 1))
            items[last], items[other] = items[other], items[last]

    def order(self, items: Sequence[DrawnItem]) -> Iterator[DrawnItem]:
        """Yields the items in a random order, drawing a number only when an item is requested."""
        pool = list(items)
        for taken in range(len(pool)):
            other = taken + self.below(len(pool) - taken)
            pool[taken], pool[other] = pool[other], pool[taken]
            yield pool[taken]
