"""How long a text is in tokens, measured or estimated, and the length bucket that this makes."""

from collections.abc import Callable

from longrm.data.chunking import approximate_tokens
from longrm.worlds.words_tokenizer import load_tokenizer


def measure_with(tokenizer: str | None) -> Callable[[str], int]:
    """What counts the tokens of a text.

    Args:
        tokenizer: "words", or a tokenizer's file, folder or Hub id; None counts words and
            punctuation marks, which stand for tokens.

    Raises:
        ModelError: There is no such tokenizer.
    """
    return approximate_tokens if tokenizer is None else load_tokenizer(tokenizer).count


def bucket(tokens: int) -> int:
    """The length bucket: the tokens rounded up to a power of two."""
    return 1 << max(0, tokens - 1).bit_length()
