"""A small tokenizer of prose, trained on what the kinds of text are written from."""

from longrm.worlds.prose.texts import TEXTS
from longrm.worlds.prose.word_lists import CITIES, CODEWORDS, SURNAMES
from tests.worlds.trained_bpe import trained_bpe


def prose_tokenizer(*, size=1500, across_words=False):
    """Most words are a token or two (of 256 tokens: one a byte); or tokens reach across words."""
    forms = [form for text in TEXTS.values() for form in text.forms()]
    corpus = [*forms, *map(" ".join, (SURNAMES, CITIES, CODEWORDS))]
    return trained_bpe(corpus, size, across_words=across_words)
