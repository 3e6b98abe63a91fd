"""A small tokenizer of prose, trained in a moment on what the kinds of text are written from."""

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from longrm.data.tokenizing import Tokenizer
from longrm.worlds.prose.texts import TEXTS
from longrm.worlds.prose.word_lists import CITIES, CODEWORDS, SURNAMES


def prose_tokenizer(*, size=1500, across_words=False):
    """A BPE of bytes, most words a token or two (of 256 tokens: one a byte); or one whose tokens reach across words."""
    backend = Backend(models.BPE())
    if not across_words:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    alphabet = [] if across_words else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    forms = [form for text in TEXTS.values() for form in text.forms()]
    backend.train_from_iterator([*forms, *map(" ".join, (SURNAMES, CITIES, CODEWORDS))], trainer)
    return Tokenizer.from_backend(backend)
