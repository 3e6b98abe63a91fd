"""A language model behind an OpenAI-compatible server."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from longrm.clients import Completion, Echo, Request, TextGenerator
from longrm.clients.cache import Cache, open_cache
from longrm.clients.endpoint import Ask, Endpoint, RequestFailed, RequestRejected
from longrm.clients.remote_settings import CHAT, Remote
from longrm.errors import RunError
from longrm.types import Message, Outcome, message_text

# OpenAI and vLLM say "maximum context length", llama.cpp "exceeds the available context size", TGI "`inputs` must have
# less than", Anthropic "prompt is too long", Gemini "input token count exceeds".
_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|(prompt|input|request) (is )?too (long|large)"
    r"|must have less than|input token count",
    re.IGNORECASE,
)


_IDS = "logprob_token_ids"  # vLLM's field; servers that do not know it ignore or reject it


class OpenAIClient(TextGenerator):
    """Sends requests concurrently, within a budget, and caches the answers.

    An error that concerns one request becomes its outcome; what concerns all of them (a server that cannot be reached,
    a rejected key) is raised.

    Args:
        url: The server's URL.
        model: The model's name on the server.
        settings: How requests are sent.
        limit: The context window in tokens, if known.
        count: Counts the tokens of a prompt as the model reads it.
        on_usage: Called with every answer that was paid for, in another thread.
        path: The path of the requests; only `/completions` can echo.

    Attributes:
        endpoint: The URL, with the requests and tokens of its budget so far.

    Raises:
        ConfigError: The URL is not valid, or the key cannot be sent.
    """

    def __init__(
        self,
        url: str,
        model: str,
        settings: Remote,
        *,
        limit: int | None = None,
        count: Callable[[Sequence[Message]], int] | None = None,
        on_usage: Callable[[Completion], None] | None = None,
        path: str = CHAT,
    ) -> None:
        self.name = f"openai:{url}#{model}"
        self.limit = limit
        self._model, self._settings = model, settings
        self._count, self._on_usage = count, on_usage
        self.endpoint = Endpoint(
            url,
            path,
            settings,
            self._parse_completion if path == CHAT else _parse_echo,
            advice=f"check the URL (it often ends in /v1) and the model's name '{model}'",
        )
        # OpenAI renamed the field and rejects the old name for reasoning models; other servers know the old one.
        host = urlsplit(url).hostname or ""
        renamed = host == "api.openai.com" or host.endswith(".openai.azure.com")
        self._length_field = "max_completion_tokens" if renamed else "max_tokens"
        self._rejects_ids = False

    def tokens(self, messages: Sequence[Message]) -> int | None:
        """The number of tokens of a prompt, if the client was given a way to count them."""
        return None if self._count is None else self._count(messages)

    def generate(self, requests: Sequence[Request | Echo]) -> list[Completion]:
        """Answers the requests, in order. May be called while an event loop is running.

        Raises:
            ModelError: The server cannot be reached, or refuses every request.
            RunError: The budget is spent, the server was lost, or the cache cannot be used.
        """
        path = self._settings.cache
        with open_cache(Path(path)) if path else nullcontext() as cache:
            return self.endpoint.map(requests, partial(self._complete, cache), self.on_progress)

    async def _complete(
        self, cache: Cache | None, ask: Ask[Completion], request: Request | Echo
    ) -> Completion:
        """The answer to a request, from the cache if it is there."""
        fields = self._body(request)
        body = json.dumps(fields, sort_keys=True)
        key = hashlib.sha256(f"{self.endpoint.url}\0{body}".encode()).hexdigest()
        cached = cache.get(key) if cache else None
        if cached is not None:
            return cached
        try:
            completion = await ask(body.encode())
        except RequestFailed as failure:
            return Completion(Outcome.ERROR, detail=str(failure))
        except RequestRejected as rejection:
            if _IDS in fields and _IDS in rejection.text:
                self._rejects_ids = True
                return await self._complete(cache, ask, request)
            completion = self._rejected(rejection)
        if isinstance(request, Echo):
            completion = _last_tokens(completion, request)
        elif self._settings.json_schema and request.verdict and completion.outcome is Outcome.ANSWERED:
            completion = replace(completion, text=_from_schema(completion.text))
        if cache and completion.outcome is not Outcome.ERROR:
            cache.put(key, completion)
        self._charge(completion)
        return completion

    def _body(self, request: Request | Echo) -> dict[str, Any]:
        if isinstance(request, Echo):
            # Not every server accepts max_tokens = 0.
            body = {"prompt": request.text, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        else:
            body = {
                "messages": [dict(message) for message in request.messages],
                self._length_field: request.max_tokens,
                "temperature": request.temperature,
            }
            if request.temperature > 0:
                body["seed"] = request.seed
            if self._settings.json_schema and request.verdict:
                body["response_format"] = _response_format(request.verdict)
            if request.top:
                body |= {"logprobs": True, "top_logprobs": request.top}
            if request.ids and not self._rejects_ids:
                body[_IDS] = list(request.ids)
        # Some servers stream by default.
        return {"model": self._model, **body, **self._settings.extra, "stream": False}

    def _charge(self, completion: Completion) -> None:
        counts = (completion.prompt_tokens, completion.completion_tokens)
        generated = completion.outcome in (Outcome.ANSWERED, Outcome.TRUNCATED)
        self.endpoint.tokens += sum(count or 0 for count in counts)
        if self._on_usage is not None and (generated or counts != (None, None)):
            self._on_usage(completion)
        if self._settings.max_total_tokens is not None and generated and None in counts:
            raise RunError(
                f"{self.endpoint.url} does not report token counts, so max_total_tokens cannot be enforced; set "
                "max_requests instead"
            )

    def _parse_completion(self, body: bytes) -> Completion:
        """Parses an answer of `/chat/completions`; raises `ValueError` if it is malformed."""
        redact = self.endpoint.redact
        try:
            choice, usage = _parse(body)
            message, reason = choice["message"], choice.get("finish_reason")
            text, refusal = _message_text(message, reason), message.get("refusal")
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            raise ValueError(
                f"the server's answer is malformed: {redact(body.decode(errors='replace'))}"
            ) from None
        if reason in ("error", "abort"):
            raise ValueError(f"the server aborted the answer ({reason})")
        outcome, detail = Outcome.ANSWERED, ""
        if isinstance(refusal, str) and refusal:
            outcome, detail = Outcome.REFUSED, f"the model refused: {redact(refusal)}"
        elif reason == "content_filter":
            outcome, detail = Outcome.REFUSED, "the server's content filter stopped the answer"
        elif reason == "length":
            outcome, detail = Outcome.TRUNCATED, "the answer reached max_tokens"
        thoughts = (message.get(name) for name in ("reasoning_content", "reasoning"))
        return Completion(
            outcome,
            text,
            _storable(next((thought for thought in thoughts if isinstance(thought, str)), "")),
            detail,
            _token_count(usage.get("prompt_tokens")),
            _token_count(usage.get("completion_tokens")),
            _first_logprobs(choice.get("logprobs")),
        )

    def _rejected(self, rejection: RequestRejected) -> Completion:
        text, message = rejection.text, self.endpoint.redact(rejection.text)
        # Only the beginning is searched: the server may repeat the prompt after it.
        if rejection.status == 413 or _TOO_LONG.search(" ".join(text.split())[:300]):
            return Completion(
                Outcome.TOO_LONG, detail=message or "the server rejected the request as too large"
            )
        if "content_filter" in text or "content management policy" in text:
            return Completion(Outcome.REFUSED, detail=message)
        return Completion(Outcome.ERROR, detail=f"the server answered {rejection.status}: {message}")


def _parse(body: bytes) -> tuple[Any, Mapping[str, Any]]:
    reply = json.loads(body)
    (choice,) = reply["choices"]
    usage = reply.get("usage")
    return choice, usage if isinstance(usage, Mapping) else {}


def _message_text(message: Mapping[str, Any], reason: Any) -> str:
    content = message.get("content")
    if content is None:
        if not isinstance(reason, str):
            raise ValueError("neither content nor a reason why there is none")
    elif not isinstance(content, str) and not all(
        isinstance(part.get("text"), str | None) for part in content
    ):
        raise ValueError("the content is not text")
    return _storable(message_text(message))


def _first_logprobs(logprobs: Any) -> tuple[tuple[str, float], ...] | None:
    """The most likely first tokens; empty for an empty answer, None if the server reports none."""
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list):
        return None
    first = content[0].get("top_logprobs") if content and isinstance(content[0], Mapping) else None
    entries = [entry for entry in first or () if isinstance(entry, Mapping)]
    return tuple((_storable(str(entry.get("token"))), _logprob(entry.get("logprob"))) for entry in entries)


def _parse_echo(body: bytes) -> Completion:
    """Parses an answer of `/completions` with log-probabilities: of the prompt's tokens, then of generated ones."""
    try:
        choice, usage = _parse(body)
        logprobs = choice.get("logprobs") or {}
        values, tokens = logprobs.get("token_logprobs"), logprobs.get("tokens")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise ValueError("the server's answer is malformed") from None
    if not isinstance(values, list) or not isinstance(tokens, list) or len(values) != len(tokens):
        return Completion(Outcome.ANSWERED)
    generated = _token_count(usage.get("completion_tokens"))
    generated = 1 if generated is None else generated
    pairs = tuple(
        (_storable(str(token)), _logprob(value)) for token, value in zip(tokens, values, strict=True)
    )
    return Completion(
        Outcome.ANSWERED, prompt_tokens=len(pairs) - generated, completion_tokens=generated, logprobs=pairs
    )


def _last_tokens(echoed: Completion, request: Echo) -> Completion:
    """Keeps the requested tokens; an error if the server tokenized the text differently, so that they do not match."""
    if echoed.logprobs is None or echoed.prompt_tokens is None:
        return echoed
    read = echoed.prompt_tokens
    if read != request.tokens:
        detail = (
            f"the server counts {read} tokens and remote.tokenizer {request.tokens}; use the server's tokenizer, and "
            "make sure that neither adds a token such as BOS"
        )
        return Completion(Outcome.ERROR, detail=detail, prompt_tokens=read)
    return replace(echoed, logprobs=echoed.logprobs[read - request.last : read])


def _token_count(value: object) -> int | None:
    """A server's count of tokens; None if it is not a plausible number."""
    return value if type(value) is int and 0 <= value <= 10**9 else None


def _logprob(value: Any) -> float:
    """A server's log-probability, which may be minus infinity; NaN if it is not plausible.

    Numbers that are positive beyond rounding, or so negative that their sum overflows, are not plausible: one bad
    answer must not end a run.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if value == -math.inf or -1e30 < value < 1e-3 else math.nan


def _storable(text: str) -> str:
    """Replaces lone surrogates, which JSON can contain and files cannot."""
    return text.encode(errors="replace").decode()


def _response_format(verdict: str) -> dict[str, Any]:
    """A schema of an analysis and a verdict. The analysis comes first, so that the verdict can depend on it."""
    properties = {"analysis": {"type": "string"}, "verdict": {"type": "string", "pattern": f"^{verdict}$"}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "judgment", "strict": True, "schema": schema}}


def _from_schema(text: str) -> str:
    """An answer under that schema as plain text with the verdict on the last line.

    Other answers are not changed: some servers accept a schema and ignore it.
    """
    try:
        answer = json.loads(text)
        return f"{str(answer['analysis']).strip()}\n\n{str(answer['verdict']).strip()}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return text
