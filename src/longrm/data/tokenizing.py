"""Tokens without transformers: the same ids, special tokens and chat templates, loaded in milliseconds.

`data.joining` makes tokens of a prompt and its responses.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import commonprefix
from pathlib import Path
from typing import Any, Self

import tokenizers

from longrm import hub
from longrm.data.chat_templates import continues_generation_prompt, render_messages
from longrm.data.tokenizer_files import FILES, as_transformers_has_it, read_tokenizer
from longrm.errors import DataError, ModelError, first_line
from longrm.reading import reading
from longrm.types import Message, Tool, text_of

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """A tokenizer and its chat template, made by `load` or `from_backend`.

    Attributes:
        backend: Truncation and padding are off.
        chat_template: The jinja2 source; None where there is none, and messages are joined as plain text.
        special_tokens: Names such as `bos_token` and their texts.
        config: What `tokenizer_config.json` holds beside these; written back by `save`.
    """

    backend: tokenizers.Tokenizer
    chat_template: str | None
    special_tokens: Mapping[str, str]
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """Loads a `tokenizer.json`, a folder that holds one, or a model of the Hugging Face Hub.

        Args:
            source: A file, a folder, or a Hub id: `owner/name` or `owner/name@revision`. The files beside it
                (`tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja`) are read too.

        Raises:
            ModelError: There is no such tokenizer, or its files cannot be read.
        """
        with reading(source, ModelError):
            path = Path(source).expanduser()
            if path.is_dir():
                return cls(*read_tokenizer(path / "tokenizer.json"))
            if path.exists():
                return cls(*read_tokenizer(path))
        if path.suffix == ".json" or hub.split_revision(str(source)) is None:
            lack = hub.missing_part(str(source))
            raise ModelError(f"{source}: {lack or 'there is no such tokenizer file or folder'}")
        return cls(*read_tokenizer(hub.fetch(str(source), FILES, ModelError) / "tokenizer.json"))

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
        """Wraps a tokenizer made in this process; the one passed is copied and stays as it is.

        The texts of the tokens that begin a sequence, end one, or fill batches must be in the vocabulary.

        Raises:
            ValueError: One is not.
        """
        given = {"bos_token": bos, "eos_token": eos, "pad_token": pad}
        special = {name: text for name, text in given.items() if text is not None}
        for name, text in special.items():
            if backend.token_to_id(text) is None:
                raise ValueError(f"{name} {text!r} is not in the vocabulary")
        copy = tokenizers.Tokenizer.from_str(backend.to_str())
        return cls(as_transformers_has_it(copy, special, {}), chat_template, special)

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
        """The id of the token that fills batches, if there is one."""
        return self._special_id("pad_token")

    @property
    def unk_id(self) -> int | None:
        """The id of unknown text, if there is one."""
        text = getattr(self.backend.model, "unk_token", None)  # which not every model of `tokenizers` has
        identity: int | None = None if text is None else self.backend.token_to_id(text)
        return identity

    @property
    def vocab_size(self) -> int:
        """Rows that an embedding needs: one more than the highest id."""
        return 1 + max(self.backend.get_vocab(with_added_tokens=True).values())

    def _special_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        identity: int | None = None if text is None else self.backend.token_to_id(text)
        return identity

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; no special token is added.

        Raises:
            DataError: The library fails on this text.
        """
        try:
            # Offsets, which `encode` keeps, take more than half of its time.
            ids: list[int] = self.backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except BaseException as error:
            # The library raises nothing narrower than Exception. A panic in Rust is a BaseException, and its type
            # cannot be imported.
            if type(error) is Exception or type(error).__name__ == "PanicException":
                raise DataError(f"the tokenizer fails on this text: {first_line(error)}") from error
            raise
        return ids

    def count(self, text: str) -> int:
        """The number of tokens of a text; no special token is added."""
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
        """Renders messages with the chat template, as transformers does; without one, as plain text, and no tools.

        Where the template refuses the messages, this and all that renders them raises `DataError`.
        """
        if self.chat_template is None:
            return text_of(messages)
        return render_messages(
            self.chat_template,
            messages,
            special_tokens=self.special_tokens,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
        )

    def opening(self, prompt: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The text that every response to a prompt continues; it depends on no response.

        With a template this is the rendering with its generation prompt, or without it where an answer does not
        continue that. Without a template it is the plain text.
        """
        generation = self.chat_template is not None and continues_generation_prompt(
            self.chat_template, tuple(self.special_tokens.items())
        )
        return self.render(prompt, add_generation_prompt=generation, tools=tools)

    def continuations(
        self, prompt: Sequence[Message], responses: Iterable[Sequence[Message]], tools: Sequence[Tool] = ()
    ) -> tuple[str, list[str]]:
        """The `opening` of a prompt, and the text with which each response continues it.

        A template that renders the prompt in another way once a response follows raises `DataError`. Where a later turn
        of a trajectory has it do so, as with one that writes the tools before the user's last turn, the opening ends
        where renderings part.
        """
        opening, responses = self.opening(prompt, tools), list(responses)
        if self.chat_template is None:
            return opening, [text_of(response) for response in responses]
        wholes = [self.render([*prompt, *response], tools=tools) for response in responses]
        if any(
            len(response) > 1 or response[0].get("role") != "assistant" for response in responses if response
        ):
            opening = commonprefix([opening, *wholes])  # noqa: RUF071  # they are no paths
        for whole in wholes:
            if not whole.startswith(opening):
                at = len(commonprefix([opening, whole]))  # noqa: RUF071  # they are no paths
                raise DataError(
                    "the chat template renders the prompt in another way once a response follows, so responses cannot "
                    f"share it: at character {at} {opening[at : at + 20]!r} becomes {whole[at : at + 20]!r}"
                )
        return opening, [whole[len(opening) :] for whole in wholes]

    def prompt_ids(self, prompt: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Token ids of a prompt's `opening`, with no response behind it.

        With a template it alone decides about BOS. Without one BOS comes first where the tokenizer adds it, and
        never twice.
        """
        return self.begun(self.encode(self.opening(prompt, tools)))

    def generation_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids after which a model writes its answer to the messages.

        With a template this is the rendering with its generation prompt, whatever that opens (such as a thought).
        Without one it is what `prompt_ids` gives. Messages without a token raise `DataError`.
        """
        ids = self.begun(self.encode(self.render(messages, add_generation_prompt=True)))
        if not ids:
            raise DataError("the prompt has no token: give it some content")
        return ids

    def begun(self, ids: list[int]) -> list[int]:
        """The ids of a text as those of a sequence: with BOS before them, unless the template decides about it."""
        bos = self.bos_id
        if bos is None or self.chat_template is not None or ids[:1] == [bos]:
            return ids
        adds = self.config.get("add_bos_token", bos in self.backend.encode("", add_special_tokens=True).ids)
        return [bos, *ids] if adds else ids

    def ending(self) -> list[int]:
        """The ids that end a sequence behind its text: EOS, unless the template decides about it."""
        return [] if self.eos_id is None or self.chat_template is not None else [self.eos_id]

    def closing_ids(self) -> list[int]:
        """Token ids that end a response: those with which the chat template closes it, or EOS where there is none.

        None where the template takes no plain question and answer.
        """
        return self.ending() if self.chat_template is None else self.encode(self.closing())

    def closing(self) -> str:
        """What the chat template writes behind an answer; empty without one, or where it takes no plain answer."""
        answer = "Answer."
        try:
            whole = self.render(
                [{"role": "user", "content": "Question?"}, {"role": "assistant", "content": answer}]
            )
        except DataError:
            return ""
        return whole.rpartition(answer)[2]

    def save(self, folder: str | Path) -> None:
        """Writes a folder that `load` and transformers' `AutoTokenizer` read back with equal ids."""
        folder = Path(folder)
        # The generic class takes tokenizer.json as it stands; a model's own class may rebuild it.
        config = {**self.config, **self.special_tokens, "tokenizer_class": "PreTrainedTokenizerFast"}
        config.pop("auto_map", None)  # names code that is not copied
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "tokenizer.json").write_text(self.backend.to_str(pretty=True), encoding="utf-8")
            (folder / "tokenizer_config.json").write_text(
                json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
            )
            if self.chat_template is not None:
                (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8", newline="")
        except OSError as error:
            raise ModelError(f"{folder}: the tokenizer cannot be written: {error.strerror}") from error


def scored_at(padding: int | None, tokenizer: Tokenizer) -> str:
    """Describes the token at which transformers reads a score, and so do we; `padding` is the config's."""
    if padding is None:
        return "the last token"
    named = f"{tokenizer.backend.id_to_token(padding)!r}, id {padding}"
    closes = ", which closes responses too" if padding in tokenizer.closing_ids() else ""
    return f"the last token that is not padding ({named}{closes})"


class UnknownTokens:
    """Refuses text that is mostly unknown to a tokenizer, and warns once of text that is in part.

    Args:
        tokenizer: One without an unknown token knows every text.
        model: The name of its model.
    """

    def __init__(self, tokenizer: Tokenizer, model: str) -> None:
        unknown, also = tokenizer.unk_id, (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
        # Some tokenizers name the end of a text as their unknown token, and never write it for unknown text.
        self._unknown = None if unknown in also else unknown
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {identity for identity, token in added.items() if token.special} - {unknown}
        self.tokenizer = tokenizer
        self._model = model
        self._warned = False

    def check(self, texts: Iterable[Sequence[int]]) -> None:
        """Counts the unknown tokens among those of a query, but for what its chat template writes.

        Raises:
            DataError: They are more than half.
        """
        texts = list(texts)
        unknown = 0 if self._unknown is None else sum(ids.count(self._unknown) for ids in texts)
        if not unknown:
            return
        total = sum(identity not in self._special for ids in texts for identity in ids)
        found = f"{unknown:,} of {total:,} tokens ({unknown / total:.1%}) are unknown to the tokenizer of {self._model}"
        if 2 * unknown > total:
            raise DataError(
                f"{found}, which cannot read this text; use text of its vocabulary, or another model"
            )
        if not self._warned:
            self._warned = True
            _logger.warning(
                "%s in one comparison, and all read as the same token; others may have some, too", found
            )
