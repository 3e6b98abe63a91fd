"""What the replies of OpenAI-compatible servers mean: pure functions of status, header and body."""

import datetime
import email.utils
import json
import re
from collections.abc import Mapping
from typing import Any

from longrm.clients.completions import Completion
from longrm.types import Outcome, message_text

PASSING = frozenset([408, 409, 429])
"""Statuses below 500 after which the same request may succeed."""
OF_THE_REQUEST = frozenset([400, 413, 422])
"""Statuses that speak of one request; any other that is neither 200 nor passing speaks of all."""

# How servers say it: OpenAI and vLLM "maximum context length", llama.cpp "exceeds the available context size",
# TGI "`inputs` must have less than", Anthropic "prompt is too long", Gemini "input token count exceeds".
_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|(prompt|input|request) (is )?too (long|large)"
    r"|must have less than|input token count",
    re.IGNORECASE,
)
_LONGEST_DETAIL = 300


def read_completion(body: bytes) -> Completion:
    """The completion in the body of a reply with status 200.

    Raises:
        ValueError: The body holds none; the message says why in one line.
    """
    reply = _object(body)
    if reply is None:
        raise ValueError(f"the server's answer is not a JSON object: {_one_line(_decoded(body))}")
    try:
        choice = reply["choices"][0]
        message = choice["message"]
        text, refusal = _storable(message_text(message)), message.get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError(f"the server's answer holds no message: {explanation(body)}") from None
    reason = choice.get("finish_reason")
    if reason in ("error", "abort"):
        raise ValueError(f"the server broke the answer off ({reason})")
    usage = reply.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    outcome, detail = Outcome.ANSWERED, ""
    if isinstance(refusal, str) and refusal:
        outcome, detail = Outcome.REFUSED, f"the model refused: {_one_line(refusal)}"
    elif reason == "content_filter":
        outcome, detail = Outcome.REFUSED, "the server's content filter stopped the answer"
    elif reason == "length":
        outcome, detail = Outcome.TRUNCATED, "the answer reached max_tokens before it ended"
    return Completion(
        outcome,
        text,
        _storable(_thinking(message)),
        detail,
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
    )


def read_rejection(status: int, body: bytes) -> Completion:
    """What became of a request that the server rejected with a status of `OF_THE_REQUEST`."""
    said = explanation(body)
    if status == 413 or _TOO_LONG.search(said):
        return Completion(Outcome.TOO_LONG, detail=said or "the server says that the request is too large")
    if "content_filter" in said or "content management policy" in said:
        return Completion(Outcome.REFUSED, detail=said)
    return Completion(Outcome.ERROR, detail=f"the server answered {status}: {said}")


def explanation(body: bytes) -> str:
    """What a server says about a failure, in one line; with its code, where it gives one."""
    reply = _object(body) or {}
    error = reply.get("error", reply)
    if isinstance(error, Mapping):
        said = error.get("message") or error.get("detail") or _decoded(body)
        code = error.get("code")
        return _one_line(f"{said} ({code})" if isinstance(code, str) else str(said))
    return _one_line(str(error))


def wait_asked_for(header: str | None, now: float) -> float:
    """Seconds that a `Retry-After` header asks for: a number or a date; 0 where it says neither."""
    if header is None:
        return 0.0
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*", header):
        return float(header)
    try:
        date = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    return max(0.0, date.replace(tzinfo=date.tzinfo or datetime.UTC).timestamp() - now)


def _thinking(message: Mapping[str, Any]) -> str:
    found = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return next((text for text in found if isinstance(text, str)), "")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _decoded(body: bytes) -> str:
    return body.decode(errors="replace")


def _storable(text: str) -> str:
    """JSON may hold halves of surrogate pairs, which no file can."""
    return text.encode(errors="replace").decode()


def _one_line(text: str) -> str:
    line = " ".join(_storable(text).split())
    return line if len(line) <= _LONGEST_DETAIL else line[:_LONGEST_DETAIL] + " ..."
