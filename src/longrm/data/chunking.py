"""Words of a text, and chunks of it that end where sentences and paragraphs end."""

import re
import unicodedata
from itertools import pairwise

# Japanese kana and Chinese characters: written without spaces, each counts as a word.
_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = re.compile(f"[{_ALONE}]")
# A run of more than 32 letters is no word (base64, for one) and counts as several.
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]{{1,32}}")
WORD_OR_MARK = re.compile(rf"{_WORD.pattern}|[^\w\s]")
# The same for Oniguruma, the engine of tokenizers, whose \w has combining marks, too.
_LETTER = r"\p{L}\p{N}_"
ONIGURUMA_WORD_OR_MARK = rf"[{_ALONE}]|[{_LETTER}&&[^{_ALONE}]]{{1,32}}|[^{_LETTER}\s]"
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？][”’」』）]*\s*|\n\s*")


def words_of(text: str) -> list[str]:
    """The words of a text, lowercased and in one Unicode form (NFKC); punctuation is left out."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


def unspaced(text: str) -> bool:
    """Whether a text has Chinese or Japanese characters, which are written without spaces between words."""
    return _UNSPACED.search(text) is not None


def approximate_tokens(text: str) -> int:
    """Counts words and punctuation marks, which approximate the tokens of a text.

    On long English rows, with and without markup, this is 0.87 to 1.06 of the count of a large model's tokenizer; the
    usual estimate, words x 4/3, is 0.35 to 1.14 of it.
    """
    return sum(1 for _ in WORD_OR_MARK.finditer(text))


def chunk_spans(text: str, size: int) -> list[tuple[int, int]]:
    """Cuts a text into chunks of at most `size` approximate tokens.

    A chunk takes as many whole sentences or lines as fit, and ends early with a paragraph that ends in its second
    half. A sentence longer than a chunk is cut between words. The spans cover the text without overlap.
    """
    assert size >= 1
    found: list[tuple[int, int]] = []
    start = end = held = 0
    for until, count, paragraph in _pieces(text, size):
        if held + count > size:
            found.append((start, end))
            start, held = end, 0
        end, held = until, held + count
        if paragraph and 2 * held >= size:
            found.append((start, end))
            start, held = end, 0
    if start < end:
        found.append((start, end))
    return found


def sentence_spans(text: str, longest: int) -> list[tuple[int, int]]:
    """Cuts a text into its sentences and lines; one of more than `longest` approximate tokens is cut between words.

    The spans cover the text without overlap. White space, and parts without a word, belong to the sentence before, or
    to the first.
    """
    assert longest >= 1
    found: list[tuple[int, int]] = []
    start = 0
    for end, count, _ in _pieces(text, longest):
        if count or not found:
            found.append((start, end))
        else:
            found[-1] = (found[-1][0], end)
        start = end
    if len(found) > 1 and not approximate_tokens(text[slice(*found[0])]):
        found[:2] = [(0, found[1][1])]
    return [(low, high) for low, high in found if low < high]


def _pieces(text: str, size: int) -> list[tuple[int, int, bool]]:
    """Lists the sentences, or parts of at most `size` words: the end, the size, whether a paragraph ends there."""
    starts = [match.start() for match in WORD_OR_MARK.finditer(text)]
    ends = [(match.end(), match.group().count("\n") > 1) for match in _SENTENCE_END.finditer(text)]
    ends.append((len(text), True))
    pieces, word = [], 0
    for end, paragraph in ends:
        first = word
        while word < len(starts) and starts[word] < end:
            word += 1
        for low, high in pairwise([first, *range(first + size, word, size), word]):
            last = high == word
            pieces.append((end if last else starts[high], high - low, last and paragraph))
    return pieces
