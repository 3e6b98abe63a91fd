"""Tokenizers and chat templates, through transformers.

A folder is loaded with transformers' generic `PreTrainedTokenizerFast`, not with `AutoTokenizer`: the latter imports
torch (2 s), which commands without a model do not need, and may choose a model's own class, which rebuilds
`tokenizer.json`. Importing transformers takes 1 s, so it is imported only to load a folder or to render a template.

`data.joining` makes tokens of a prompt and its responses.
"""

import json
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from os.path import commonprefix
from pathlib import Path
from typing import Any, Self

import jinja2
import tokenizers

from longrm import hub
from longrm.errors import DataError, ModelError, first_line
from longrm.reading import read_json, reading
from longrm.runs.folder import trained_model
from longrm.types import Message, Tool, message_text, text_of

_logger = logging.getLogger(__name__)
_QUESTION = {"role": "user", "content": "Question?"}
_ANSWER = {"role": "assistant", "content": "Answer."}
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """A tokenizer and its chat template, made by `load` or `from_backend`.

    Attributes:
        backend: The tokenizer of the `tokenizers` library, without truncation and padding.
        chat_template: The jinja2 source; None if there is none, and messages are joined as plain text.
        special_tokens: Names such as `bos_token` and their texts.
        config: The other fields of `tokenizer_config.json`; `save` writes them back.
    """

    backend: tokenizers.Tokenizer
    chat_template: str | None
    special_tokens: Mapping[str, str]
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """Loads a tokenizer from a folder, its `tokenizer.json`, or a Hub id: `owner/name` or `owner/name@revision`.

        Of a training run it is the model's.
        """
        path = Path(source).expanduser()
        if path.exists():
            folder = trained_model(path if path.is_dir() else path.parent)
        elif path.suffix == ".json" or hub.split_revision(str(source)) is None:
            lack = hub.missing_part(str(source))
            raise ModelError(f"{source}: {lack or 'there is no such tokenizer file or folder'}")
        else:
            folder = hub.fetch(str(source), _FILES, ModelError)
        if not (folder / "tokenizer.json").exists():
            raise ModelError(
                f"{folder}: no tokenizer here (tokenizer.json is missing); save the model's tokenizer into it"
            )
        from transformers import PreTrainedTokenizerFast

        with reading(folder / "tokenizer.json", ModelError):
            loaded = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        backend = loaded.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        config_file = folder / "tokenizer_config.json"
        config = read_json(config_file, ModelError) if config_file.exists() else {}
        config = {name: value for name, value in config.items() if name not in (*_SPECIAL, "chat_template")}
        template = loaded.chat_template
        if isinstance(template, dict):  # several named templates
            if "default" not in template:
                raise ModelError(f"{folder}: no chat template ({', '.join(template)}) is named 'default'")
            template = template["default"]
        special = {name: text for name, text in loaded.special_tokens_map.items() if isinstance(text, str)}
        return cls(backend, template, special, config)

    @classmethod
    def of(cls, tokenizer: Any) -> Self:
        """Converts a tokenizer of transformers, or loads one by name; it is what `load` reads of the saved one."""
        if isinstance(tokenizer, str | Path):
            return cls.load(tokenizer)
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            return cls.load(folder)

    @classmethod
    def from_backend(
        cls,
        backend: tokenizers.Tokenizer,
        *,
        chat_template: str | None = None,
        bos: str | None = None,
        eos: str | None = None,
        pad: str | None = None,
    ) -> Self:
        """Wraps a copy of a tokenizer made in this process.

        The tokens that begin a sequence, end one, or pad batches must be in the vocabulary.
        """
        given = {"bos_token": bos, "eos_token": eos, "pad_token": pad}
        special = {name: text for name, text in given.items() if text is not None}
        assert all(backend.token_to_id(text) is not None for text in special.values()), special
        copy = tokenizers.Tokenizer.from_str(backend.to_str())
        copy.no_truncation()
        copy.no_padding()
        added = {token.content for token in copy.get_added_tokens_decoder().values()}
        copy.add_special_tokens([text for text in special.values() if text not in added])
        return cls(copy, chat_template, special)

    @property
    def bos_id(self) -> int | None:
        """The id of the token that begins a sequence, if there is one."""
        return self._special_id("bos_token")

    @property
    def eos_id(self) -> int | None:
        """The id of the token that ends a sequence, if there is one."""
        return self._special_id("eos_token")

    @property
    def pad_id(self) -> int | None:
        """The id of the token that pads batches, if there is one."""
        return self._special_id("pad_token")

    def _special_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        identity: int | None = None if text is None else self.backend.token_to_id(text)
        return identity

    @property
    def unk_id(self) -> int | None:
        """The id of unknown text, if there is one."""
        text = getattr(self.backend.model, "unk_token", None)  # not every model of `tokenizers` has one
        identity: int | None = None if text is None else self.backend.token_to_id(text)
        return identity

    @property
    def vocab_size(self) -> int:
        """Rows that an embedding needs: one more than the highest id."""
        return 1 + max(self.backend.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without added special tokens; `DataError` if the library fails on it."""
        try:
            # `encode` would compute offsets, too, which takes more than half of its time.
            ids: list[int] = self.backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except BaseException as error:
            # The library raises a plain Exception. A panic in Rust is a BaseException whose type cannot be imported.
            if type(error) is Exception or type(error).__name__ == "PanicException":
                raise DataError(f"the tokenizer fails on this text: {first_line(error)}") from error
            raise
        return ids

    def count(self, text: str) -> int:
        """The number of tokens of a text, without added special tokens."""
        return len(self.encode(text))

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """The text of token ids, with special tokens unless `special` is false."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=not special)
        return text

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Tool] = (),
    ) -> str:
        """Renders messages with the chat template, equal to transformers' `apply_chat_template(tokenize=False)`.

        Without a template the messages are joined as plain text, without tools. Content that is a list of texts is
        joined, because most templates read only strings and would print the list.

        Raises:
            DataError: The template rejects the messages. All methods that render raise it.
            ModelError: The template is not valid jinja2.
        """
        if self.chat_template is None:
            return text_of(messages)
        if not messages:
            raise DataError("no message to render")
        messages = [
            {**one, "content": message_text(one)} if isinstance(one.get("content"), list | tuple) else one
            for one in messages
        ]
        special = tuple(self.special_tokens.items())
        return _render(self.chat_template, messages, special, add_generation_prompt, tools)

    def opening(self, prompt: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The text that every response to a prompt continues; it depends on no response.

        With a template this is the rendering with the generation prompt, or without it if an answer does not continue
        that. Without a template it is the plain text.
        """
        generation = self.chat_template is not None and _continues_generation_prompt(
            self.chat_template, tuple(self.special_tokens.items())
        )
        return self.render(prompt, add_generation_prompt=generation, tools=tools)

    def continuations(
        self, prompt: Sequence[Message], responses: Iterable[Sequence[Message]], tools: Sequence[Tool] = ()
    ) -> tuple[str, list[str]]:
        """The `opening` of a prompt, and the text with which each response continues it.

        If a later turn of a trajectory changes the rendering of the prompt (some templates write the tools before the
        user's last turn), the opening ends where the renderings differ. A single response must not change it.
        """
        opening, responses = self.opening(prompt, tools), list(responses)
        if self.chat_template is None:
            return opening, [text_of(response) for response in responses]
        wholes = [self.render([*prompt, *response], tools=tools) for response in responses]
        if any(len(one) > 1 or one[0].get("role") != "assistant" for one in responses if one):
            opening = commonprefix([opening, *wholes])  # noqa: RUF071  # not paths
        for whole in wholes:
            if not whole.startswith(opening):
                at = len(commonprefix([opening, whole]))  # noqa: RUF071  # not paths
                raise DataError(
                    "the chat template renders the prompt differently once a response follows, so responses cannot "
                    f"share it: at character {at} {opening[at : at + 20]!r} becomes {whole[at : at + 20]!r}"
                )
        return opening, [whole[len(opening) :] for whole in wholes]

    def prompt_ids(self, prompt: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Token ids of a prompt's `opening`. With a template, only the template adds BOS; see `begun`."""
        return self.begun(self.encode(self.opening(prompt, tools)))

    def generation_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids after which a model writes its answer to the messages.

        With a template this is the rendering with the generation prompt, including a thought that this opens. Without
        one it equals `prompt_ids`. Messages without a token raise `DataError`.
        """
        ids = self.begun(self.encode(self.render(messages, add_generation_prompt=True)))
        if not ids:
            raise DataError("the prompt has no token: give it some content")
        return ids

    def begun(self, ids: list[int]) -> list[int]:
        """Puts BOS in front if the tokenizer adds it, never twice, and never to text from a chat template."""
        bos = self.bos_id
        if bos is None or self.chat_template is not None or ids[:1] == [bos]:
            return ids
        adds = self.config.get("add_bos_token", bos in self.backend.encode("", add_special_tokens=True).ids)
        return [bos, *ids] if adds else ids

    def ending(self) -> list[int]:
        """The ids that end a sequence: EOS, or nothing if a chat template writes the end itself."""
        return [] if self.eos_id is None or self.chat_template is not None else [self.eos_id]

    def closing_ids(self) -> list[int]:
        """Token ids that end a response: those of `closing`, or EOS if there is no template."""
        return self.ending() if self.chat_template is None else self.encode(self.closing())

    def closing(self) -> str:
        """The text that the template writes after an answer; empty without one, or if it takes no plain answer."""
        try:
            return self.render([_QUESTION, _ANSWER]).rpartition(_ANSWER["content"])[2]
        except DataError:
            return ""

    def save(self, folder: str | Path) -> None:
        """Writes a folder that `load` and transformers' `AutoTokenizer` read back with equal ids."""
        folder = Path(folder)
        # The generic class takes tokenizer.json as it is; a model's own class may rebuild it.
        config = {**self.config, **self.special_tokens, "tokenizer_class": "PreTrainedTokenizerFast"}
        # "auto_map" names code that is not copied. The others are local paths that old transformers wrote.
        for key in ("auto_map", "name_or_path", "special_tokens_map_file", "tokenizer_file"):
            config.pop(key, None)
        config_text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "tokenizer.json").write_text(self.backend.to_str(pretty=True), encoding="utf-8")
            (folder / "tokenizer_config.json").write_text(config_text, encoding="utf-8")
            if self.chat_template is not None:
                (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8", newline="")
        except OSError as error:
            raise ModelError(f"{folder}: the tokenizer cannot be written: {error.strerror}") from error


def _render(
    template: str,
    messages: Sequence[Message],
    special_tokens: tuple[tuple[str, str], ...],
    add_generation_prompt: bool = False,
    tools: Sequence[Tool] = (),
) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    special: Any = dict(special_tokens)
    try:
        # transformers compiles the template once, runs it in jinja2's immutable sandbox and shows it plain data only.
        rendered: Any = render_jinja_template(
            # Without absent fields: templates would print "None".
            [[{key: value for key, value in one.items() if value is not None} for one in messages]],
            tools=[dict(tool) for tool in tools] or None,
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            **special,
        )
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(
            f"the chat template is not valid jinja2 (line {error.lineno}: {error.message})"
        ) from error
    except Exception as error:  # a template may raise anything
        reason = " ".join(str(error).split())
        raise DataError(f"the chat template cannot render these messages: {reason}") from error
    texts, _ = rendered  # the second are the places of `{% generation %}` blocks
    text: str = texts[0]
    return text


@lru_cache
def _continues_generation_prompt(template: str, special_tokens: tuple[tuple[str, str], ...]) -> bool:
    """Whether the rendering of a prompt with its answer begins with the rendering with the generation prompt.

    Templates of reasoning models may open a thought in the generation prompt that the full rendering drops: there the
    prompt must end before the assistant's header. This is decided once for a template, not for every response, so that
    all responses to a prompt share one prefix.
    """
    try:
        opened = _render(template, [_QUESTION], special_tokens, add_generation_prompt=True)
        return _render(template, [_QUESTION, _ANSWER], special_tokens).startswith(opened)
    except DataError:
        return True  # the template wants other roles: it is checked on the real messages


def scored_at(padding: int | None, tokenizer: Tokenizer) -> str:
    """Describes the token at which we, like transformers, read a score; `padding` is the config's `pad_token_id`."""
    if padding is None:
        return "the last token"
    named = f"{tokenizer.backend.id_to_token(padding)!r}, id {padding}"
    closes = ", which closes responses too" if padding in tokenizer.closing_ids() else ""
    return f"the last token that is not padding ({named}{closes})"


class UnknownTokens:
    """Rejects text that is mostly unknown to a tokenizer, and warns once of text that partly is."""

    def __init__(self, tokenizer: Tokenizer, model: str) -> None:
        self.tokenizer = tokenizer
        self._model = model
        self._warned = False
        # Some tokenizers name the end of a text as their unknown token, and never write it for unknown text.
        unknown = tokenizer.unk_id
        also = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
        self._unknown = None if unknown in also else unknown
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {identity for identity, token in added.items() if token.special} - {unknown}

    def check(self, texts: Iterable[Sequence[int]]) -> None:
        """Counts the unknown tokens of the texts of a query; `DataError` if they are more than half of one of them."""
        if self._unknown is None:  # most tokenizers know every text
            return
        counts = [
            (ids.count(self._unknown), sum(identity not in self._special for identity in ids))
            for ids in texts
            if self._unknown in ids
        ]
        if not counts:
            return
        unknown, total = max(counts, key=lambda count: count[0] / count[1])
        share = f"{unknown:,} of {total:,} tokens ({unknown / total:.1%})"
        found = f"{share} of a prompt or response are unknown to the tokenizer of {self._model}"
        if 2 * unknown > total:
            raise DataError(
                f"{found}, which cannot read this text; use text of its vocabulary, or another model"
            )
        if not self._warned:
            self._warned = True
            _logger.warning("%s, and all read as the same token; others may have some, too", found)
