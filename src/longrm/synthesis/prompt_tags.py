"""Random tag pairs around what a question is about, and names of blocks that no text inside can close."""

import re
from collections.abc import Sequence

from longrm.rng import Draws

# Without vowels no draw spells a word.
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_SIZE = 5


def draw_tag(texts: Sequence[str], draws: Draws) -> str:
    """Draws the name of a tag pair that stands in none of these texts (paper, section 3)."""
    while True:
        name = "".join(draws.one(_LETTERS) for _ in range(_SIZE))
        if not any(name in text for text in texts):
            return name


def wrapped(tag: str, text: str) -> str:
    """A text between the tags of a pair; the text itself where there is no tag."""
    return f"<{tag}>\n{text}\n</{tag}>" if tag else text


def free_name(name: str, texts: Sequence[str]) -> str:
    """The name, or the name with the first number from 2 up, that is no tag's in any of these texts."""
    found = re.compile(rf"<\s*/?\s*{name}(?:-(\d{{1,9}}))?", re.IGNORECASE)
    taken = {int(match[1] or 1) for text in texts for match in found.finditer(text)}
    number = next(number for number in range(1, len(taken) + 2) if number not in taken)
    return name if number == 1 else f"{name}-{number}"
