"""What the page of a report holds in compressed form, and the contexts that lie in a folder beside it."""

import base64
import hashlib
import zlib
from pathlib import Path

from longrm.runs.folder import write_file

PAGE = 57_000_000
"""Characters of all chunks of a page together, which stays below 60 MB with the figures and tables."""

CONTEXTS = 48_000_000
"""Of these, characters of contexts: room is left for what is judged and written about them."""

_LEVEL = 3  # of zlib: hardly larger than the default, and faster


class Chunks:
    """Texts as deflated base64, which a script of the page inflates one by one when they are looked at.

    Args:
        folder: Where contexts that no longer fit are written, one text file each.

    Attributes:
        packed: The chunks, by their numbers.
        beside: How many contexts are files of the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packed: list[str] = []
        self.beside = 0
        self._size = 0
        self._contexts: dict[bytes, int | str] = {}

    def add(self, text: str, room: int = PAGE) -> int | None:
        """Puts a text into the page; returns its number, or None where the chunks would be larger than `room`."""
        packed = base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode()
        if self._size + len(packed) > room:
            return None
        self._size += len(packed)
        self.packed.append(packed)
        return len(self.packed) - 1

    def add_context(self, text: str) -> int | str:
        """Puts a long text into the page once; returns its number, or the name of its file where none fits any more.

        Raises:
            RunError: The file cannot be written.
        """
        key = hashlib.sha256(text.encode()).digest()
        if key not in self._contexts:
            # After the first that is too much none is tried, so that most of a long run is not packed in vain.
            number = None if self.beside else self.add(text, CONTEXTS)
            self._contexts[key] = self._write(text) if number is None else number
        return self._contexts[key]

    def _write(self, text: str) -> str:
        self.beside += 1
        name = f"{self.beside:05}.txt"
        write_file(self.folder / name, text)
        return name
