"""Which prefixes are kept, by their token ids: a table of blocks, the least recently used of which give way.

Nothing here imports torch.
"""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b

BLOCK = 16
"""Tokens of a block: what two sequences share is read again from the last multiple of it on."""


def block_keys(ids: Sequence[int], salt: str = "") -> list[bytes]:
    """A key for each whole block of token ids, which stands for the block, all that comes before it, and the salt."""
    keys, key = [], blake2b(salt.encode(), digest_size=16).digest() if salt else b""
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        own = array("q", ids[start : start + BLOCK]).tobytes()
        key = blake2b(key + own, digest_size=16).digest()
        keys.append(key)
    return keys


class PrefixTable:
    """Numbers from 0 to `blocks`, each a place for a block, by the keys of what lies there.

    A block is never older than those that continue it, so that nothing is kept whose beginning is gone.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(blocks))

    def __len__(self) -> int:
        return len(self._places)

    def count(self, keys: Iterable[bytes]) -> int:
        """How many of the first keys are in the table."""
        found = 0
        for key in keys:
            if key not in self._places:
                break
            found += 1
        return found

    def use(self, keys: Sequence[bytes]) -> list[int]:
        """The places of keys that all are in the table, which become the most recently used."""
        for key in reversed(keys):
            self._places.move_to_end(key)
        return [self._places[key] for key in keys]

    def reserve(self, in_use: Collection[int]) -> int | None:
        """A free place, if need be that of the block which was not used for longest; None where all are in use."""
        if not self._free:
            oldest = next(iter(self._places), None)
            if oldest is None or self._places[oldest] in in_use:
                return None
            self._free.append(self._places.pop(oldest))
        return self._free.pop()

    def release(self, places: Iterable[int]) -> None:
        """Gives reserved places back."""
        self._free.extend(places)

    def keep(self, reserved: Iterable[tuple[bytes, int]], chains: Iterable[Sequence[bytes]]) -> None:
        """Enters keys with their reserved places, and makes chains, each from its first key, the most recent."""
        self._places.update(reserved)
        for keys in chains:
            self.use(keys[: self.count(keys)])
