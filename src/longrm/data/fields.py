"""The fields of a row, checked one by one, so that an error can name the field."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from longrm.errors import DataError
from longrm.reading import FieldError, is_number, parse_json, short
from longrm.types import MAX_LENGTH, Comparison, Message, Response, Span, Tool, message_text

FileRow = Mapping[str, Any]
"""A row as its file holds it."""

GROUPS = ("group", "context_id", "document_id")
"""The columns that may name the group."""

QUESTIONS = ("question", "query")
"""The columns that may hold the question; the first one that a row fills counts."""

_TEXT_PARTS = (None, "text", "input_text", "output_text")


def required(row: FileRow, *names: str) -> tuple[str, Any]:
    """The first of these columns that the row fills, with its name."""
    for name in names:
        if row.get(name) is not None:
            return name, row[name]
    for name in names:
        if name in row:
            raise FieldError(name, "missing: it is null")
    others = f" (or {', '.join(names[1:])})" if names[1:] else ""
    raise FieldError(names[0], f"missing; add a column '{names[0]}'{others}")


def messages_of(value: Any, field: str, role: str) -> tuple[Message, ...]:
    """A text, which becomes one message with the role, or a list of messages, kept as they are."""
    messages: tuple[Message, ...]
    if isinstance(value, str):
        messages = ({"role": role, "content": value},)
    elif isinstance(value, list | tuple) and value:
        for index, message in enumerate(value):
            check_message(message, f"{field}[{index}]")
        messages = tuple(to_json_types(message) for message in value)
    else:
        raise FieldError(field, f"must be a text or a list of messages, got {short(value)}")
    texts = "".join(message_text(message) for message in messages)
    if not texts.strip() and not any(message.get("tool_calls") for message in messages):
        raise FieldError(field, "empty; give it some text, or remove the row")
    return messages


def check_message(message: Any, field: str) -> None:
    """Raises `FieldError` for a message without a role, or with content or tool calls that cannot be read."""
    if not isinstance(message, Mapping):
        raise FieldError(
            field, f"must be a message such as {{'role': 'user', 'content': '...'}}, got {short(message)}"
        )
    if not isinstance(message.get("role"), str):
        raise FieldError(f"{field}.role", "missing; every message needs a role such as 'user' or 'assistant'")
    content, calls = message.get("content"), message.get("tool_calls")
    if content is not None and not isinstance(content, str | list | tuple):
        raise FieldError(f"{field}.content", f"must be a text or a list of parts, got {short(content)}")
    for index, part in enumerate(content if isinstance(content, list | tuple) else ()):
        # Only texts are read: anything else would be judged unseen.
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str) or kind not in _TEXT_PARTS:
            found = f"type {kind!r:.40}" if kind else short(part)
            raise FieldError(
                f"{field}.content[{index}]",
                f"must be a part such as {{'type': 'text', 'text': '...'}}, got {found}; only texts are read",
            )
    if calls is not None and not isinstance(calls, list | tuple):
        raise FieldError(f"{field}.tool_calls", f"must be a list of calls, got {short(calls)}")
    for index, call in enumerate(calls or ()):
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise FieldError(
                f"{field}.tool_calls[{index}]",
                "must be a call such as {'type': 'function', 'function': {'name': ..., 'arguments': {...}}}, "
                f"got {short(call)}",
            )


def tools_of(value: Any, field: str = "tools") -> tuple[Tool, ...]:
    """The tools in a list, or in the JSON text of one, as tables hold it. Null and an empty text are no tools.

    Each is `{"type": "function", "function": {...}}`; the schema of a function alone is put into that form.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except ValueError as error:
            raise FieldError(field, f"must be a list of tools as JSON: {error}") from None
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise FieldError(field, f"must be a list of tools, got {short(value)}")
    tools = []
    for index, item in enumerate(value):
        tool = to_json_types(item)
        if isinstance(tool, Mapping) and "name" in tool and "function" not in tool:
            tool = {"type": "function", "function": tool}
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise FieldError(
                f"{field}[{index}]",
                "must be a tool such as {'type': 'function', 'function': {'name': ..., 'parameters': {...}}}, "
                f"got {short(tool)}",
            )
        tools.append(tool)
    return tuple(tools)


def responses_of(value: Any, field: str) -> list[Response]:
    """A list of at least two texts or lists of messages."""
    if not isinstance(value, list | tuple):
        raise FieldError(field, f"must be a list of responses, got {short(value)}")
    if len(value) < 2:
        raise FieldError(field, f"a comparison needs at least 2 responses, got {len(value)}")
    return [messages_of(item, f"{field}[{index}]", "assistant") for index, item in enumerate(value)]


def ranks_of(value: Any, count: int, field: str) -> tuple[int, ...]:
    """One whole number from 1 (the best) for each response."""
    if not isinstance(value, list | tuple) or not all(type(rank) is int and rank >= 1 for rank in value):
        raise FieldError(field, f"must be a list of whole numbers from 1 (the best), got {short(value)}")
    if len(value) != count:
        raise FieldError(field, f"{len(value)} ranks for {count} responses; give one rank for each")
    return tuple(value)


def scores_of(value: Any, count: int, field: str) -> Sequence[float]:
    """One number for each candidate."""
    if not isinstance(value, list | tuple) or not all(map(is_number, value)):
        raise FieldError(field, f"must be a list of numbers, got {short(value)}")
    if len(value) != count:
        raise FieldError(field, f"{len(value)} scores for {count} candidates; give one score for each")
    return value


def ranks_by_scores(scores: Sequence[float]) -> tuple[int, ...]:
    """The ranks of candidates that come best first; equal scores tie."""
    return tuple(accumulate((worse != better for better, worse in pairwise(scores)), initial=1))


def rising(scores: Sequence[float]) -> tuple[float, float] | None:
    """The first two neighbors whose scores rise (or are NaN), which contradicts a best-first order."""
    return next((pair for pair in pairwise(scores) if not pair[1] <= pair[0]), None)


def name_of(row: FileRow, field: str) -> str:
    """A field that names something: a text, or a number (tables with gaps turn whole numbers into floats)."""
    value = required(row, field)[1]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FieldError(field, f"must be a text or a whole number, got {short(value)}")
    if isinstance(value, float) and not value.is_integer():
        raise FieldError(field, f"must be a text or a whole number, got {value}")
    return str(value)


def group_of(row: FileRow, prompt: Sequence[Message], context: Sequence[Span], question: Span | None) -> str:
    """The row's own group, otherwise a hash of what it may share with other rows.

    That is the context if known, else the prompt up to the question, else the whole prompt.
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
    """Finds the text of a `context` column in the prompt; empty without such a column."""
    text = row.get("context")
    if not isinstance(text, str):
        return ()
    if not text.strip():
        raise FieldError("context", "empty; fill it, or remove the column")
    found = _find(text, prompt) or _find(text.strip(), prompt)
    if found is None:
        raise FieldError("context", "not part of the prompt; join it into the prompt, or drop the column")
    return (found,)


def find_question(row: FileRow, prompt: Sequence[Message]) -> Span | None:
    """Finds the last occurrence of the text of a `question` or `query` column in the prompt."""
    text = next((row[name] for name in QUESTIONS if isinstance(row.get(name), str)), "")
    return _find(text.strip(), prompt) if text.strip() else None


def _find(text: str, prompt: Sequence[Message]) -> Span | None:
    for index in reversed(range(len(prompt))):
        start = message_text(prompt[index]).rfind(text)
        if start >= 0:
            return Span(index, start, start + len(text))
    return None


def to_json_types(value: Any) -> Any:
    """Converts to JSON types: NaN and infinity become null, values of other types (dates, bytes) become their text."""
    if isinstance(value, Mapping):
        return {str(key): to_json_types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_types(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


class LengthAndDepth(NamedTuple):
    """The length bucket in tokens, and the depth of the evidence from 0 (start) to 1 (end); None if unknown."""

    length: int | None
    depth: float | None


def length_and_depth(comparison: Comparison) -> LengthAndDepth:
    """Reads `length` and `depth` of a comparison's metadata; a `DataError` names the comparison."""
    try:
        return length_and_depth_of(comparison.metadata)
    except FieldError as error:
        raise DataError(f"comparison '{comparison.id}', {error}") from error


def length_and_depth_of(metadata: Mapping[str, Any]) -> LengthAndDepth:
    """Reads `length` and `depth` of metadata."""
    length, depth = metadata.get("length"), metadata.get("depth")
    tokens = None if length is None else whole_length(length, "length")
    if depth is not None and not (is_number(depth) and 0 <= depth <= 1):
        raise FieldError("depth", f"must be a number from 0 (start) to 1 (end), got {short(depth)}")
    return LengthAndDepth(tokens, None if depth is None else float(depth))


def whole_length(value: Any, field: str) -> int:
    """Reads the tokens of a length bucket; a table may hold the whole number as a float."""
    if is_number(value) and 1 <= value <= MAX_LENGTH and value == int(value):
        return int(value)
    raise FieldError(
        field,
        f"must be a whole number of tokens from 1 to {MAX_LENGTH}, got {short(value)}; omit it to have the prompt "
        "measured",
    )
