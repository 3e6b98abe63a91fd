"""The files of a tokenizer, as transformers writes them: which settings they hold, and what these do to its backend."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from pydantic import BaseModel, NonNegativeInt, TypeAdapter
from tokenizers import models

from longrm.data.chat_templates import compile_template
from longrm.errors import ModelError, first_line
from longrm.reading import read_json, read_text, typed

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _NamedTemplate(BaseModel):
    name: str
    template: str


class _AddedToken(BaseModel):
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _TokenizerConfig(BaseModel):
    """The fields that are read of `tokenizer_config.json`; the rest is kept as it is."""

    added_tokens_decoder: dict[NonNegativeInt, _AddedToken] = {}
    extra_special_tokens: list[Any] | dict[str, Any] | None = None
    additional_special_tokens: list[Any] | dict[str, Any] | None = None
    chat_template: str | list[_NamedTemplate] | None = None


_CONFIG = TypeAdapter(_TokenizerConfig)


class TokenizerParts(NamedTuple):
    """The backend, the chat template if there is one, special tokens by name, and all other settings."""

    backend: tokenizers.Tokenizer
    chat_template: str | None
    special_tokens: dict[str, str]
    config: dict[str, Any]


def read_tokenizer(file: Path) -> TokenizerParts:
    """Reads a `tokenizer.json` and the files beside it.

    Raises:
        ModelError: There is no such file, or one of the files cannot be read.
    """
    folder = file.parent
    if not file.exists():
        inside = folder / "model"
        advice = "save the model's tokenizer into it"
        if (inside / file.name).exists():  # as in the folder of a training
            advice = f"the model is in {inside}"
        raise ModelError(f"{folder}: no tokenizer here (tokenizer.json is missing); {advice}")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelError(f"{file}: not a tokenizer.json that can be read: {first_line(error)}") from error
    if isinstance(backend.model, models.WordLevel | models.WordPiece):
        unknown = backend.model.unk_token  # these fail on the first unknown word without it
        if backend.model.token_to_id(unknown) is None:
            raise ModelError(f"{file}: its unk_token {unknown!r} is not in its vocabulary; add it there")
    config: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        # Newer folders keep the special tokens in the configuration alone.
        if "added_tokens_decoder" not in config and (folder / name).exists():
            config |= read_json(folder / name, ModelError)
            typed(_CONFIG, config, folder / name, ModelError)
    texts = {name: _token_text(config.pop(name, None)) for name in _SPECIAL}
    special = {name: text for name, text in texts.items() if text is not None}
    template = _template(folder, config.pop("chat_template", None))
    if template is not None:
        try:
            compile_template(template)  # it runs only when messages are rendered
        except ModelError as error:
            raise ModelError(f"{folder}: {error}") from None
    return TokenizerParts(as_transformers_has_it(backend, special, config), template, special, config)


def as_transformers_has_it(
    backend: tokenizers.Tokenizer, special: Mapping[str, str], config: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Brings a backend to what transformers makes of it, except that it never cuts or pads."""
    backend.no_truncation()
    backend.no_padding()
    declared = config.get("added_tokens_decoder", {})
    tokens = []
    for key in sorted(declared, key=int):
        fields = {name: value for name, value in declared[key].items() if name in _AddedToken.model_fields}
        tokens.append(tokenizers.AddedToken(**fields))
    backend.add_tokens(tokens)
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    named = dict.fromkeys([*special.values(), *_extra_tokens(config)])
    backend.add_special_tokens([text for text in named if text not in added])
    backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
    return backend


def _extra_tokens(config: Mapping[str, Any]) -> Iterator[str]:
    for name in ("extra_special_tokens", "additional_special_tokens"):
        extra = config.get(name) or []
        for token in extra.values() if isinstance(extra, Mapping) else extra:
            text = _token_text(token)
            if text is not None:
                yield text


def _token_text(token: Any) -> str | None:
    """Special tokens are written as a text or as an object with `content`."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else None


def _template(folder: Path, declared: Any) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return read_text(file, ModelError)
    if isinstance(declared, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in declared}
        if "default" not in named:
            raise ModelError(f"{folder}: none of the chat templates ({', '.join(named)}) is named 'default'")
        declared = named["default"]
    return declared if isinstance(declared, str) else None
