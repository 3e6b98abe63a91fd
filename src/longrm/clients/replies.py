"""What the replies of OpenAI-compatible servers mean: pure functions of status, header and body."""

import datetime
import email.utils
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from longrm.clients.completions import Completion, Echo, valid_token_count
from longrm.types import Outcome, message_text

RETRYABLE_STATUSES = frozenset([408, 409, 429])
"""Statuses below 500 after which the same request may succeed."""
REQUEST_STATUSES = frozenset([400, 413, 422])
"""Statuses that speak of one request; any other that is neither 200 nor passing speaks of all."""

# How servers say it: OpenAI and vLLM "maximum context length", llama.cpp "exceeds the available context size",
# TGI "`inputs` must have less than", Anthropic "prompt is too long", Gemini "input token count exceeds".
_LEAST_LOGPROB, _ROUNDING = -1e30, 1e-3

_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|(prompt|input|request) (is )?too (long|large)"
    r"|must have less than|input token count",
    re.IGNORECASE,
)
_HEAD = 300  # characters in which a server says what is wrong; after them it may repeat the prompt

Redact = Callable[[str], str]
"""Makes a server's words fit for messages and logs: see `redactor`. What decides an outcome is read before that."""


def read_completion(body: bytes, redact: Redact) -> Completion:
    """The completion in the body of a reply with status 200; raises `ValueError`, in one line, where it holds none."""
    choice, usage = _choice(body, redact)
    try:
        message, reason = choice["message"], choice.get("finish_reason")
        text, refusal = _text(message, reason), message.get("refusal")
    except (KeyError, ValueError, TypeError, AttributeError):
        raise ValueError(f"the server's answer holds no message: {redact(error_text(body))}") from None
    if reason in ("error", "abort"):
        raise ValueError(f"the server broke the answer off ({reason})")
    outcome, detail = Outcome.ANSWERED, ""
    if isinstance(refusal, str) and refusal:
        outcome, detail = Outcome.REFUSED, f"the model refused: {redact(refusal)}"
    elif reason == "content_filter":
        outcome, detail = Outcome.REFUSED, "the server's content filter stopped the answer"
    elif reason == "length":
        outcome, detail = Outcome.TRUNCATED, "the answer reached max_tokens before it ended"
    thoughts = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return Completion(
        outcome,
        _storable(text),
        _storable(next((thought for thought in thoughts if isinstance(thought, str)), "")),
        detail,
        valid_token_count(usage.get("prompt_tokens")),
        valid_token_count(usage.get("completion_tokens")),
        _first_tokens(choice.get("logprobs")),
    )


def read_echo(body: bytes, request: Echo, redact: Redact) -> Completion:
    """The log-probabilities of the last tokens of an echoed text, in the body of a reply with status 200.

    Its outcome is an error where the server read another number of tokens: others would be taken for the last ones.

    Raises:
        ValueError: The body holds no answer; the message says why in one line.
    """
    choice, usage = _choice(body, redact)
    found = choice.get("logprobs") if isinstance(choice, Mapping) else None
    values = found.get("token_logprobs") if isinstance(found, Mapping) else None
    tokens = found.get("tokens") if isinstance(found, Mapping) else None
    if not isinstance(values, list) or not isinstance(tokens, list) or len(values) != len(tokens):
        return Completion(Outcome.ANSWERED)
    written = valid_token_count(usage.get("completion_tokens"))
    written = 1 if written is None else written
    read = len(values) - written
    if read != request.tokens:
        detail = (
            f"the server read {read} tokens of the text, and remote.tokenizer has {request.tokens}: see that it is the "
            "server's, and that neither adds a token such as BOS"
        )
        return Completion(Outcome.ERROR, detail=detail, prompt_tokens=read)
    own = zip(tokens[read - request.last : read], values[read - request.last : read], strict=True)
    pairs = tuple((str(token), _logprob(value)) for token, value in own)
    return Completion(Outcome.ANSWERED, prompt_tokens=read, completion_tokens=written, logprobs=pairs)


def read_rejection(status: int, body: bytes, redact: Redact) -> Completion:
    """What became of a request that the server rejected with one of `REQUEST_STATUSES`."""
    said = error_text(body)
    if status == 413 or _TOO_LONG.search(" ".join(said.split())[:_HEAD]):
        return Completion(
            Outcome.TOO_LONG, detail=redact(said) or "the server says that the request is too large"
        )
    if "content_filter" in said or "content management policy" in said:
        return Completion(Outcome.REFUSED, detail=redact(said))
    return Completion(Outcome.ERROR, detail=f"the server answered {status}: {redact(said)}")


def error_text(body: bytes) -> str:
    """All that a server says about a failure, unchanged, with its code where it gives one."""
    try:
        reply = _parsed(body)
    except (ValueError, RecursionError):
        return _decoded(body)
    error = reply.get("error", reply) if isinstance(reply, Mapping) else reply
    if isinstance(error, str):
        return error
    if not isinstance(error, Mapping):
        return _decoded(body)
    said = next((error[name] for name in ("message", "detail") if error.get(name)), None)
    said = said if isinstance(said, str) else _decoded(body)
    code = error.get("code")
    return f"{said} ({code})" if isinstance(code, str) else said


def retry_after_seconds(header: str | None, now: float) -> float:
    """Seconds that a `Retry-After` header asks for: a number or a date; 0 where it says neither."""
    if header is None:
        return 0.0
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", header.strip()):
        return float(header.strip())
    try:
        date = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    return max(0.0, date.replace(tzinfo=date.tzinfo or datetime.UTC).timestamp() - now)


def _choice(body: bytes, redact: Redact) -> tuple[Any, Mapping[str, Any]]:
    """The one choice of an answer, or None in its place, and what it says of usage.

    Raises:
        ValueError: It is not JSON, or holds several choices.
    """
    try:
        reply = _parsed(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the server's answer is not JSON: {redact(f'{error}: {_decoded(body)}')}") from None
    choices = reply.get("choices") if isinstance(reply, Mapping) else None
    choices = choices if isinstance(choices, list) else []
    if len(choices) > 1:
        raise ValueError(f"the server's answer holds {len(choices)} choices, and one was asked for")
    usage = reply.get("usage") if isinstance(reply, Mapping) else None
    return next(iter(choices), None), usage if isinstance(usage, Mapping) else {}


def _first_tokens(logprobs: Any) -> tuple[tuple[str, float], ...] | None:
    """The likeliest tokens at the beginning of an answer; none where it is empty, None where nothing is told."""
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list):
        return None
    first = content[0].get("top_logprobs") if content and isinstance(content[0], Mapping) else []
    told = [one for one in first or [] if isinstance(one, Mapping)]
    return tuple((_storable(str(one.get("token"))), _logprob(one.get("logprob"))) for one in told)


def _logprob(value: Any) -> float:
    """A log-probability as a server gives it, minus infinity included: NaN where it is none.

    What is above 0 by more than rounding, or so far below that no sum of such numbers is finite, is none either: one
    answer with it must not end the run.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if value == -math.inf or _LEAST_LOGPROB < value < _ROUNDING else math.nan


def _text(message: Mapping[str, Any], reason: Any) -> str:
    """What a message says; `ValueError` where it holds no text, or nothing and the server does not say how it ended."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    whole = isinstance(content, str | list) or (content is None and isinstance(reason, str))
    if not whole or not all(isinstance(part.get("text"), str | None) for part in parts):
        raise ValueError
    return message_text(message)


def _parsed(body: bytes) -> Any:
    return json.loads(body, object_pairs_hook=_unambiguous)


def _unambiguous(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, unless it says two things under one name: nobody knows which of them is meant."""
    held = dict(fields)
    for name, value in fields if len(held) < len(fields) else ():
        if held[name] != value:
            raise ValueError(f"it says two things under '{name}'")
    return held


def _decoded(body: bytes) -> str:
    return body.decode(errors="replace")


def _storable(text: str) -> str:
    """JSON may hold halves of surrogate pairs, which no file can."""
    return text.encode(errors="replace").decode()
