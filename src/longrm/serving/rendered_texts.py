"""Queries of what clients send: messages, plain texts, and texts or token ids that a chat template has rendered."""

import re
from collections.abc import Sequence

from longrm.data.joining import Encoded, TokenQuery, encode_texts
from longrm.data.spans import context_in
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.serving.wire import ScoreRequest
from longrm.types import Message, Query, as_messages

_USER: Message = {"role": "user", "content": "Question?"}


class QueryMaker:
    """Makes queries for one model.

    A text counts as rendered if it begins with a special token of the model's tokenizer. It is read as it is, and gets
    BOS if renderings of the model begin with BOS and this one does not. A response that comes separately from a
    rendered prompt is closed as the model's chat template closes an answer, whether or not the client did so.

    Args:
        tokenizer: The model's tokenizer; None for models that only read messages.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        if tokenizer is None:
            return
        special = {
            number: token.content
            for number, token in tokenizer.backend.get_added_tokens_decoder().items()
            if token.special and token.content
        }
        self._special_tokens = tuple(special.values())
        self._closing = tokenizer.closing()
        # A client may send all of the closing, or its beginning up to any special token in it (often EOS without the
        # newline that follows). Longest first.
        places = {
            match.end()
            for token in self._special_tokens
            for match in re.finditer(re.escape(token), self._closing)
        }
        places.add(len(self._closing.rstrip()))
        ends = [self._closing[:place] for place in sorted(places, reverse=True)]
        self._ends = [form for end in ends if end for form in dict.fromkeys([end, end.lstrip()])]

        self._bos: list[int] = []
        self._header = ""
        self._headers: list[list[int]] = []
        try:
            if tokenizer.bos_id is not None and tokenizer.prompt_ids([_USER])[:1] == [tokenizer.bos_id]:
                self._bos = [tokenizer.bos_id]
            if tokenizer.chat_template is not None:
                # The text between a user's message and the answer: the header of the assistant. Its last token may
                # merge with the first word of the answer, so the header is also searched without it.
                self._header = tokenizer.opening([_USER]).rpartition(str(_USER["content"]))[2]
                ids = tokenizer.encode(self._header)
                self._headers = [header for header in (ids, ids[:-1]) if special.keys() & set(header)]
        except DataError:
            pass  # a template that does not render this conversation: nothing is known about its renderings

    def query(self, request: ScoreRequest) -> Query:
        """The query of a request.

        Raises:
            DataError: The model cannot read this request; the message does not repeat its texts.
        """
        if request.rendered is not None:
            return self._rendered(request.rendered, request.add_bos)
        if isinstance(request.prompt, str) and self._is_rendered(request.prompt):
            return self._rendered_prompt(request)
        prompt = as_messages(request.prompt, "user")
        given = map(self._without_end, request.responses) if request.strip_end else request.responses
        responses = tuple(as_messages(response, "assistant") for response in given)
        if not prompt:
            raise DataError("the prompt has no message")
        if not all(responses):
            raise DataError("a response has no message")
        context = context_in(prompt, request.context)
        return Query("request", prompt, responses, context, tools=tuple(request.tools), steps=request.steps)

    def _is_rendered(self, text: str) -> bool:
        return self._tokenizer is not None and text.lstrip().startswith(self._special_tokens or "\0")

    def _rendered_prompt(self, request: ScoreRequest) -> Query:
        assert self._tokenizer is not None
        if request.tools:
            raise DataError("a rendered prompt contains its tools: tools cannot be sent separately")
        if not all(isinstance(response, str) for response in request.responses):
            raise DataError("the responses to a rendered prompt must be texts")
        texts = [self._closed(str(response)) for response in request.responses]
        encoded = encode_texts(self._tokenizer, str(request.prompt), texts)
        prompt = self._with_bos(list(encoded.prompt), request.add_bos)
        return TokenQuery(
            "request",
            (),
            ((),) * len(texts),
            encoded=Encoded(prompt, encoded.responses, encoded.prompt_overlap),
        )

    def _closed(self, text: str) -> str:
        """A response with the template's closing, of which it may have the beginning already."""
        bare = text.rstrip()
        for end in self._ends:
            if bare.endswith(end):
                return bare.removesuffix(end) + self._closing
        return text if self._closing and text.endswith(self._closing) else text + self._closing

    def _without_end(self, response: str | Sequence[Message]) -> str | Sequence[Message]:
        """A response without special tokens at its end, such as EOS: the chat template adds them again."""
        if not isinstance(response, str) or self._tokenizer is None:
            return response
        bare = response.rstrip()
        if not bare.endswith(self._special_tokens):
            return response
        while bare.endswith(self._special_tokens):
            ends = [token for token in self._special_tokens if bare.endswith(token)]
            bare = bare.removesuffix(max(ends, key=len)).rstrip()
        return bare

    def _rendered(self, rendered: str | Sequence[int], add_bos: bool) -> Query:
        """A whole conversation; the response is what follows the last header of the assistant."""
        if self._tokenizer is None:
            raise DataError("this model reads messages: send prompt and responses separately, to /v1/scores")
        if isinstance(rendered, str):
            ids = self._with_bos(self._ids(self._tokenizer, rendered), add_bos)
        else:
            ids = list(rendered)
            if min(ids, default=0) < 0:
                raise DataError("a token id is negative")
        if len(ids) < 2:
            raise DataError("the text has fewer than two tokens")
        start = self._response_start(ids)
        at = len(ids) - 1 if start is None else start
        return TokenQuery(
            "request", (), ((),), encoded=Encoded(ids[:at], [ids[at:]]), split=start is not None
        )

    def _ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """The ids of a whole text; `encode_texts` remembers those of its prompt."""
        prompt, header, response = text.rpartition(self._header) if self._headers else ("", "", "")
        if not header or not response:
            return tokenizer.encode(text)
        encoded = encode_texts(tokenizer, prompt + header, [response])
        return [*encoded.prompt, *encoded.responses[0]]

    def _with_bos(self, ids: list[int], add_bos: bool) -> list[int]:
        return [*self._bos, *ids] if add_bos and ids[: len(self._bos)] != self._bos else ids

    def _response_start(self, ids: list[int]) -> int | None:
        for header in self._headers:
            for start in range(len(ids) - len(header) - 1, 0, -1):
                if ids[start : start + len(header)] == header:
                    return start + len(header)
        return None
