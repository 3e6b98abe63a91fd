"""Small tokenizers that are trained in a moment."""

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from longrm.data.tokenizing import Tokenizer


def trained_bpe(corpus, size, *, across_words=False):
    """A BPE of bytes; or one whose tokens reach across words, so that the counts of parts do not add up."""
    backend = Backend(models.BPE())
    if not across_words:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    alphabet = [] if across_words else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(corpus, trainer)
    return Tokenizer.from_backend(backend)
