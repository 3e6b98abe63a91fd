"""The `words` tokenizer: one token per word, for models too small for a larger vocabulary."""

import re

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from longrm.data.chunking import ONIGURUMA_WORD_OR_MARK
from longrm.data.tokenizing import Tokenizer
from longrm.worlds import vocabulary
from longrm.worlds.known_worlds import WORLDS

SPECIALS = ("<pad>", "<unk>", "<user>", "<assistant>", "<end>")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('the words tokenizer knows the roles user and assistant only') }}"
    "{% endif %}"
    "{{ '<' + message['role'] + '> ' + message['content'] + ' <end> ' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def words_tokenizer(*, verdicts: bool = False) -> Tokenizer:
    """Makes the tokenizer of every word that the worlds of sentences can write, and nothing else.

    Words and punctuation marks are tokens; white space is not, and decoding restores single spaces.

    Args:
        verdicts: Also know the words of judging prompts and verdicts.
    """
    known = {word: index for index, word in enumerate((*SPECIALS, *_words(verdicts)))}
    backend = tokenizers.Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(list(SPECIALS))
    backend.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="##", cleanup=False),  # joins with spaces
            decoders.Fuse(),
            *(decoders.Replace(f" {mark}", mark) for mark in ".,?:"),
        ]
    )
    return Tokenizer.from_backend(backend, chat_template=CHAT_TEMPLATE, eos="<end>", pad="<pad>")


def approximate_tokenizer() -> Tokenizer:
    """Makes a tokenizer that only counts: every word and every punctuation mark is one token, always the same one."""
    backend = tokenizers.Tokenizer(models.WordLevel({"w": 0, "<unk>": 1}, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(tokenizers.Regex(ONIGURUMA_WORD_OR_MARK), " w ")
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer.from_backend(backend)


def load_tokenizer(name: str | Tokenizer) -> Tokenizer:
    """Returns `words`, `judge_words` (with verdicts), `approximate`, or a tokenizer from a file, folder or Hub id.

    A tokenizer that is loaded is returned as it is.

    Raises:
        ModelError: There is no such tokenizer.
    """
    if isinstance(name, Tokenizer):
        return name
    if name in ("words", "judge_words"):
        return words_tokenizer(verdicts=name == "judge_words")
    if name == "approximate":
        return approximate_tokenizer()
    return Tokenizer.load(name)


def _words(verdicts: bool) -> list[str]:
    """The entities and values, then every other word that the worlds write, in alphabetical order."""
    forms = [
        *(form for world in WORLDS.values() for form in world.words),
        *vocabulary.FILLERS,
        *(word for slot in vocabulary.SLOTS.values() for word in slot),
        vocabulary.QUESTION,
        vocabulary.ANSWER,
        vocabulary.QUESTION_MANY,
        vocabulary.CLAIM,
        *vocabulary.NUMBERS.values(),
        "The each, and",  # how a graded question and its responses join claims
    ]
    found = re.findall(r"\w+|[^\w\s]", " ".join(re.sub(r"\{\w*\}", " ", form) for form in forms))
    return [
        *vocabulary.ENTITIES,
        *vocabulary.VALUES,
        *sorted({*found, *(vocabulary.VERDICTS if verdicts else ())}),
    ]
