"""The tokenizer of a GGUF file, with the ids that the model was trained on."""

import json
from dataclasses import replace
from pathlib import Path

import tokenizers
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError
from longrm.modeling.gguf_header import INSTEAD, GgufHeader
from longrm.reading import one_line

_AS_GPT2 = ("gpt-2", "phi-2", "olmo", "mpt", "jais")
"""Names of `tokenizer.ggml.pre` that split a text into words as GPT-2 does."""

_DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Names that make every digit a word, and split the rest as GPT-2 does."""

_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "tekken")
"""Names of vocabularies of which a word is one token even where no merges lead to it (`ignore_merges`)."""

_CONTROL, _USER_DEFINED = 3, 4


def read_gguf_tokenizer(file: Path, header: GgufHeader) -> Tokenizer:
    """Reads the tokenizer and its chat template.

    Transformers makes it of the vocabulary; how a text is split into words is set here where transformers does not know
    the name that the file gives for it, and where that name is not known either, the file is refused.

    Raises:
        ModelError: There is none, it cannot be read, or its ids would not be those of the model.
    """
    fields = header.fields
    if "tokenizer.ggml.tokens" not in fields:
        raise ModelError(f"{file}: it holds no tokenizer; {INSTEAD}")
    try:
        made = PreTrainedTokenizerFast.from_pretrained(file.parent, gguf_file=file.name)
    except Exception as error:  # what values of the wrong kind do there has no narrower type
        raise ModelError(f"{file}: its tokenizer cannot be read: {one_line(error)}") from None
    backend = made.backend_tokenizer
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        _set_words(backend, str(fields.get("tokenizer.ggml.pre")), file)
    template = fields.get("tokenizer.chat_template")
    special = {"bos": made.bos_token, "eos": made.eos_token, "pad": made.pad_token}
    tokenizer = replace(
        Tokenizer.from_backend(backend, chat_template=template, **special),
        # A sentencepiece vocabulary that does not say otherwise begins with BOS.
        config={"add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", kind == "llama"))},
    )
    _check_special(tokenizer, header, file)
    return tokenizer


def _set_words(backend: tokenizers.Tokenizer, name: str, file: Path) -> None:
    """Has a byte-level backend split texts into words as the name says."""
    if name in _DIGITS_APART:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif name not in _AS_GPT2 and json.loads(backend.to_str())["pre_tokenizer"]["type"] == "ByteLevel":
        raise ModelError(
            f"{file}: how its tokenizer splits words (tokenizer.ggml.pre = {name}) is not known here, so its tokens "
            f"would not be those of the model; {INSTEAD}"
        )
    backend.model.ignore_merges = name in _WHOLE_WORDS


def _check_special(tokenizer: Tokenizer, header: GgufHeader, file: Path) -> None:
    """Refuses a tokenizer that would cut a special token into pieces."""
    tokens, types = header.fields["tokenizer.ggml.tokens"], header.fields.get("tokenizer.ggml.token_type", [])
    for number, (token, kind) in enumerate(zip(tokens, types, strict=False)):
        if kind in (_CONTROL, _USER_DEFINED) and tokenizer.encode(token) != [number]:
            raise ModelError(
                f"{file}: its tokenizer cannot be carried over: the special token {token!r} ({number:,}) would become "
                f"{tokenizer.encode(token)}; {INSTEAD}"
            )
