"""The fields of a row: checked one by one, so that a fault can name the field that holds it."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from longrm.errors import DataError
from longrm.reading import FieldError, is_number, short
from longrm.types import MAX_LENGTH, Comparison, Message, Response, Span, message_text

FileRow = Mapping[str, Any]
"""A row as its file holds it."""

GROUPS = ("group", "context_id", "document_id")
"""The columns that may name the group."""

_TEXT_PARTS = (None, "text", "input_text", "output_text")
QUESTIONS = ("question", "query")
"""The columns that may hold the question, of which the first one counts that a row fills."""


def required(row: FileRow, *names: str) -> tuple[str, Any]:
    """The first of these columns that the row fills, with its name."""
    for name in names:
        if row.get(name) is not None:
            return name, row[name]
    for name in names:
        if name in row:
            raise FieldError(name, "missing: it is null; give it a value")
    others = f" (or {', '.join(names[1:])})" if names[1:] else ""
    raise FieldError(names[0], f"missing; add a column '{names[0]}'{others}")


def messages_of(value: Any, field: str, role: str) -> tuple[Message, ...]:
    """A text, which becomes one message of the role, or a list of messages, kept as they are."""
    messages: tuple[Message, ...]
    if isinstance(value, str):
        messages = ({"role": role, "content": value},)
    elif isinstance(value, list | tuple) and value:
        for index, message in enumerate(value):
            check_message(message, f"{field}[{index}]")
        messages = tuple(to_json_types(message) for message in value)
    else:
        raise FieldError(field, f"needs a text or a list of messages, got {_kind(value)}")
    texts = "".join(message_text(message) for message in messages)
    if not texts.strip() and not any(message.get("tool_calls") for message in messages):
        raise FieldError(field, "empty; give it some text, or remove the row")
    return messages


def responses_of(value: Any, field: str) -> list[Response]:
    """A list of at least two texts or lists of messages."""
    if not isinstance(value, list | tuple):
        raise FieldError(field, f"needs a list of responses, got {_kind(value)}")
    if len(value) < 2:
        raise FieldError(field, f"a comparison needs at least 2 responses, got {len(value)}")
    return [messages_of(item, f"{field}[{index}]", "assistant") for index, item in enumerate(value)]


def ranks_of(value: Any, count: int, field: str) -> tuple[int, ...]:
    """One whole number from 1 up for each response."""
    if not isinstance(value, list | tuple):
        raise FieldError(field, f"needs a list of whole numbers, got {_kind(value)}")
    for rank in value:
        if type(rank) is not int:
            raise FieldError(field, f"needs whole numbers, got {_kind(rank)}")
        if rank < 1:
            raise FieldError(field, f"ranks count from 1 (the best), got {rank}")
    if len(value) != count:
        raise FieldError(field, f"{len(value)} ranks for {count} responses; give one rank for each")
    return tuple(value)


def scores_of(value: Any, count: int, field: str) -> Sequence[float]:
    """One number for each candidate."""
    if not isinstance(value, list | tuple) or not all(map(is_number, value)):
        raise FieldError(field, "needs a list of numbers")
    if len(value) != count:
        raise FieldError(field, f"{len(value)} scores for {count} candidates; give one score for each")
    return value


def ranks_by_scores(scores: Sequence[float]) -> tuple[int, ...]:
    """The ranks of what comes best first; equal scores tie."""
    return tuple(accumulate((worse != better for better, worse in pairwise(scores)), initial=1))


def rising(scores: Sequence[float]) -> tuple[float, float] | None:
    """The first two scores of which the second is not at most the first, as it should be where the best come first."""
    return next((pair for pair in pairwise(scores) if not pair[1] <= pair[0]), None)


def name_of(row: FileRow, field: str) -> str:
    """A field that names something: a text, or a number as a table with gaps may hold it."""
    value = required(row, field)[1]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FieldError(field, f"needs a text or a whole number, got {_kind(value)}")
    if isinstance(value, float) and not value.is_integer():
        raise FieldError(field, f"needs a text or a whole number, got {value}")
    return str(value)


def group_of(row: FileRow, prompt: Sequence[Message], context: Sequence[Span], question: Span | None) -> str:
    """The row's own group, else a hash of what it may share with others.

    That is the context where it is known, else the prompt up to the question, else the whole prompt.
    """
    for name in GROUPS:
        if row.get(name) is not None:
            return name_of(row, name)
    texts = [message_text(message) for message in prompt]
    if context:
        texts = [texts[span.message][span.start : span.end] for span in context]
    elif question is not None and (question.message or question.start):
        texts = [*texts[: question.message], texts[question.message][: question.start]]
    return hashlib.sha256("\x00".join(texts).encode()).hexdigest()[:16]


def find_context(row: FileRow, prompt: Sequence[Message]) -> tuple[Span, ...]:
    """Finds the text of a `context` column in the prompt; empty where there is no such column."""
    text = row.get("context")
    if not isinstance(text, str):
        return ()
    if not text.strip():
        raise FieldError("context", "empty; fill it, or remove the column where there is no context")
    found = _find(text, prompt) or _find(text.strip(), prompt)
    if found is None:
        raise FieldError(
            "context",
            "not part of the prompt, so no judge would see it; join it into the prompt, or drop the column",
        )
    return (found,)


def find_question(row: FileRow, prompt: Sequence[Message]) -> Span | None:
    """Finds the last occurrence of a `question` or `query` column's text in the prompt."""
    text = next((row[name] for name in QUESTIONS if isinstance(row.get(name), str)), "")
    return _find(text.strip(), prompt) if text.strip() else None


def to_json_types(value: Any) -> Any:
    """A value of JSON types: what has none becomes its text, a number that is none becomes null."""
    if isinstance(value, Mapping):
        return {str(key): to_json_types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_types(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


class LengthAndDepth(NamedTuple):
    """The length bucket in tokens, and the depth of the evidence from 0 (start) to 1 (end); None where unknown."""

    length: int | None
    depth: float | None


def length_and_depth(comparison: Comparison) -> LengthAndDepth:
    """Reads `length` and `depth` of a comparison's metadata; a `DataError` names the comparison."""
    try:
        return length_and_depth_of(comparison.metadata)
    except FieldError as fault:
        raise DataError(f"comparison '{comparison.id}', {fault}") from fault


def length_and_depth_of(metadata: Mapping[str, Any]) -> LengthAndDepth:
    """Reads `length` and `depth` of metadata; as `length_and_depth`, but raises `FieldError`."""
    length, depth = metadata.get("length"), metadata.get("depth")
    tokens = None if length is None else whole_length(length, "length")
    if depth is not None and not (is_number(depth) and 0 <= depth <= 1):
        raise FieldError("depth", f"needs a number from 0 (start) to 1 (end), got {short(depth)}")
    return LengthAndDepth(tokens, None if depth is None else float(depth))


def whole_length(value: Any, field: str) -> int:
    """Reads a whole number of tokens that a length bucket may have; a table may hold it as a floating one."""
    if is_number(value) and 1 <= value <= MAX_LENGTH and value == int(value):
        return int(value)
    raise FieldError(
        field,
        f"needs a whole number of tokens from 1 to {MAX_LENGTH}, got {short(value)}; "
        "leave it out to have the prompt measured",
    )


def _find(text: str, prompt: Sequence[Message]) -> Span | None:
    for index in reversed(range(len(prompt))):
        start = message_text(prompt[index]).rfind(text)
        if start >= 0:
            return Span(index, start, start + len(text))
    return None


def check_message(message: Any, field: str) -> None:
    """Checks that a message has a role, and as content and calls of tools what can be read.

    Raises:
        FieldError: It has not.
    """
    if not isinstance(message, Mapping):
        raise FieldError(
            field, f"needs a message such as {{'role': 'user', 'content': '...'}}, got {_kind(message)}"
        )
    if not isinstance(message.get("role"), str):
        raise FieldError(f"{field}.role", "missing; every message needs a role such as 'user' or 'assistant'")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list | tuple):
        raise FieldError(f"{field}.content", f"needs a text or a list of parts, got {_kind(content)}")
    if isinstance(content, list | tuple):
        for index, part in enumerate(content):
            _check_part(part, f"{field}.content[{index}]")
    _check_calls(message.get("tool_calls"), f"{field}.tool_calls")


def _check_calls(calls: Any, field: str) -> None:
    """Refuses calls of tools without a name, which templates cannot write."""
    if calls is not None and not isinstance(calls, list | tuple):
        raise FieldError(field, f"needs a list of calls, got {_kind(calls)}")
    for index, call in enumerate(calls or ()):
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise FieldError(
                f"{field}[{index}]",
                "needs a call such as {'type': 'function', 'function': {'name': ..., 'arguments': {...}}}, "
                f"got {_kind(call)}",
            )


def _check_part(part: Any, field: str) -> None:
    """Refuses parts that are no text: only texts are read, so anything else would be judged unseen."""
    if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
        found = (
            f"one of the type {part['type']!r:.40}"
            if isinstance(part, Mapping) and part.get("type")
            else _kind(part)
        )
        raise FieldError(
            field, f"needs a part such as {{'type': 'text', 'text': '...'}}, got {found}; only texts are read"
        )
    if part.get("type") not in _TEXT_PARTS:
        raise FieldError(field, f"is of the type {part['type']!r:.40}; only texts are read")


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Sequence) and not value:
        return "an empty list"
    kinds = {"dict": "an object", "list": "a list", "str": "a text", "bytes": "bytes"}
    return kinds.get(type(value).__name__, f"{value!r:.40}")
