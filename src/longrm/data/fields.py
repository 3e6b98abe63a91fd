"""Checks of single fields of a row; a `FieldError` names the field."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from longrm.reading import FieldError, cut, error_message, is_number, parse_json, short, short_name
from longrm.types import MAX_LENGTH, Comparison, Message, Response, Span, Tool, Trajectory, message_text

FileRow = Mapping[str, Any]
"""A row of a file."""

# The columns that may say whether a completion is good, or bad, or score it; the first one that does counts.
_LABELS = (
    *("label", "chosen", "is_chosen", "preferred", "is_preferred", "accepted", "desirable"),
    *("correct", "is_correct", "good", "is_good", "rejected", "is_rejected", "is_bad"),
)
_BAD_LABELS = {"rejected", "is_rejected", "is_bad"}
_SCORES = ("score", "reward", "rating")
_LABEL_TEXTS = {
    **dict.fromkeys(("true", "1", "good", "chosen", "desirable"), True),
    **dict.fromkeys(("false", "0", "-1", "bad", "rejected", "undesirable"), False),
}

GOLD = ("ranks", "winner", "strength", "scores")
"""The columns that may hold the gold order of `responses`; the first one that a row fills counts."""

_TIES = frozenset(
    {
        "tie",
        "tie (bothbad)",
        "bothbad",
        "both_bad",
        "both bad",
        "both_good",
        "both good",
        "equal",
        "same",
        "draw",
    }
)
_WINNER = re.compile(r"(?:(?:model|response|assistant|answer|option|output)[\s_-]*)?([a-z])")

# Roles of ShareGPT's turns; others have the field's names.
_ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}

GROUPS = ("group", "context_id", "document_id")
"""The columns that may name the group."""

QUESTIONS = ("question", "query")
"""The columns that may hold the question; the first one that a row fills counts."""


def required(row: FileRow, *names: str) -> tuple[str, Any]:
    """The first of these columns that the row fills, with its name."""
    for name in names:
        if row.get(name) is not None:
            return name, row[name]
    for name in names:
        if name in row:
            raise FieldError(name, "missing: it is null")
    others = f" (or {', '.join(names[1:])})" if names[1:] else ""
    raise FieldError(names[0], f"missing{others}; {found_in(row)}")


def found_in(value: Any) -> str:
    """What is there instead of a missing field, for a message: a misspelling, or a row of another benchmark."""
    names = ", ".join(value) if isinstance(value, Mapping) else ""
    return f"found only {cut(names, 80)}" if names else f"got {short(value)}"


class _Part(BaseModel):
    # Only texts: an image would be ignored, and its response judged without it.
    type: Literal["text", "input_text", "output_text"] | None = None
    text: str


class _Function(BaseModel):
    name: str


# A function alone, or {"type": "function", "function": {...}}.
_Call = Annotated[
    _Function, BeforeValidator(lambda call: call.get("function", call) if isinstance(call, Mapping) else call)
]


# A list of parts, or a text, which needs no further check.
_Content = Annotated[
    list[_Part] | None, BeforeValidator(lambda given: None if isinstance(given, str) else given)
]


class _Message(BaseModel):
    role: str
    content: _Content = None
    tool_calls: list[_Call] | None = None


_MESSAGES, _TOOLS = TypeAdapter(list[_Message]), TypeAdapter(list[_Call])


def validated(adapter: TypeAdapter[Any], value: Any, field: str = "") -> Any:
    """Validates a field, or a whole row if no field is given; a `FieldError` names the first wrong field."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        found = found_in(first["input"]) if first["type"] == "missing" else f"got {short(first['input'])}"
        problem = f"{error_message(first)}, {found}"
        raise FieldError((field + place).removeprefix("."), problem) from None


def check_messages(value: Any, field: str) -> None:
    """Raises `FieldError` for a message without a role, or with content or tool calls that cannot be read."""
    validated(_MESSAGES, value, field)


def messages_of(value: Any, field: str, role: str) -> tuple[Message, ...]:
    """A text, which becomes one message with the role, or messages (a list, or a single one), kept as they are.

    Turns of ShareGPT, which have `from` and `value`, become messages.
    """
    messages: tuple[Message, ...] = ({"role": role, "content": value},)
    if not isinstance(value, str):
        if isinstance(value, Mapping):
            value = [value]
        if isinstance(value, list | tuple):
            value = [_as_message(message) for message in value]
        if not isinstance(value, list | tuple) or not value:
            raise FieldError(field, f"must be a text or a list of messages, got {short(value)}")
        check_messages(value, field)
        messages = tuple(to_json_types(message) for message in value)
    texts = "".join(message_text(message) for message in messages)
    if not texts.strip() and not any(message.get("tool_calls") for message in messages):
        raise FieldError(field, "empty; give it some text, or remove the row")
    return messages


def _as_message(turn: Any) -> Any:
    if not isinstance(turn, Mapping) or "from" not in turn or "role" in turn:
        return turn
    return {"role": _ROLES.get(turn["from"], turn["from"]), "content": turn.get("value") or ""}


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
    validated(_TOOLS, value, field)
    tools = map(to_json_types, value)
    return tuple(tool if "function" in tool else {"type": "function", "function": tool} for tool in tools)


def responses_of(value: Any, field: str) -> list[Response]:
    """A list of at least two texts or lists of messages."""
    if not isinstance(value, list | tuple):
        raise FieldError(field, f"must be a list of responses, got {short(value)}")
    if len(value) < 2:
        raise FieldError(field, f"a comparison needs at least 2 responses, got {len(value)}")
    return [messages_of(item, f"{field}[{index}]", "assistant") for index, item in enumerate(value)]


def ranks_of(value: Any, count: int, field: str) -> tuple[int, ...]:
    """One whole number from 1 (the best) for each response; tables may hold them as floats, and CSV as texts."""
    if isinstance(value, list | tuple):
        numbers = [rank if isinstance(rank, bool) else number_in(rank) for rank in value]
        value = [int(rank) if isinstance(rank, float) and rank.is_integer() else rank for rank in numbers]
    if not isinstance(value, list) or not all(type(rank) is int and rank >= 1 for rank in value):
        raise FieldError(field, f"must be a list of whole numbers from 1 (the best), got {short(value)}")
    if len(value) != count:
        raise FieldError(field, f"{len(value)} ranks for {count} responses; give one rank for each")
    return tuple(value)


def scores_of(value: Any, count: int, field: str) -> Sequence[float]:
    """One number for each response."""
    if not isinstance(value, list | tuple) or not all(map(is_number, value)):
        raise FieldError(field, f"must be a list of numbers, got {short(value)}")
    if len(value) != count:
        raise FieldError(field, f"{len(value)} scores for {count} responses; give one score for each")
    return value


def gold_ranks(row: FileRow, count: int) -> tuple[int, ...] | None:
    """The gold ranks of a row's responses by the first of `GOLD` that it fills; None if it fills none.

    Scores that `longrm score` wrote are no gold.
    """
    if row.get("ranks") is not None:
        return ranks_of(row["ranks"], count, "ranks")
    if row.get("winner") is not None:
        return ranks_by_winner(row["winner"], count, "winner")
    if row.get("strength") is not None:
        return ranks_by_strength(row["strength"], count, "strength")
    if row.get("scores") is None or scored_by(row) is not None:
        return None
    return ranks_by_value(row["scores"], count, "scores")


def number_in(value: Any) -> Any:
    """A number written as a text (CSV), or a label such as true, as a number; anything else as it is."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return int(value) if isinstance(value, bool) else value


def ranks_by_value(value: Any, count: int, field: str) -> tuple[int, ...]:
    """The ranks of responses by one number each, higher is better; equal numbers tie."""
    scores = scores_of([*map(number_in, value)] if isinstance(value, list | tuple) else value, count, field)
    if not all(map(math.isfinite, scores)):
        raise FieldError(field, f"must be finite numbers, got {short(scores)}")
    best_first = sorted({*scores}, reverse=True)
    return tuple(best_first.index(score) + 1 for score in scores)


def ranks_by_winner(value: Any, count: int, field: str) -> tuple[int, ...]:
    """The ranks of responses by the letter of the best one ("b", "model_b" or "Response B"), or by a tie.

    A number is an error: whether it counts from 0 or from 1 is not known.
    """
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in _TIES:
        return (1,) * count
    found = _WINNER.fullmatch(text)
    best = ord(found[1]) - ord("a") if found else count
    if best >= count:
        last = chr(ord("A") + count - 1)
        raise FieldError(
            field,
            f"must be 'A' (the first response) to '{last}', or 'tie' (signed numbers are a "
            f"'strength'); got {short(value)}",
        )
    return tuple(1 if at == best else 2 for at in range(count))


def ranks_by_strength(value: Any, count: int, field: str) -> tuple[int, ...]:
    """The ranks of two responses by a signed number: negative if the first one is better, 0 for a tie."""
    strength = number_in(value)
    if not is_number(strength) or not math.isfinite(strength):
        raise FieldError(
            field, f"must be a number, negative if the first response is better; got {short(value)}"
        )
    if count != 2:
        raise FieldError(field, f"orders 2 responses, got {count}")
    return (1, 1) if strength == 0 else (1, 2) if strength < 0 else (2, 1)


def scored_by(row: FileRow) -> str | None:
    """The model of the column `scores` if `longrm score` wrote it."""
    written = "scores_outcome" in row or "scores_by" in row
    return str(row.get("scores_by") or "a model") if written else None


def why_no_gold(row: FileRow) -> str:
    """Why a row without gold ranks has none, and how to add some."""
    if row.get("scores") is not None and (model := scored_by(row)) is not None:
        return f"'scores' are those of {short_name(model)}, not gold; longrm rank makes ranks of them"
    return (
        "add a column 'ranks' (1 is the best), 'scores' (higher is better), 'winner' or 'strength', or map one with "
        "--columns"
    )


def label_of(row: FileRow) -> bool | None:
    """Whether a row says that its completion is good: true or false, 1 or 0, or a text such as "undesirable".

    Other texts are no label: a column `label` may also name a category.
    """
    for name in _LABELS:
        value = row.get(name)
        if isinstance(value, str):
            value = _LABEL_TEXTS.get(value.strip().lower())
        if is_number(value):
            if value not in (-1, 0, 1):
                problem = (
                    f"must be true or false, got {short(value)}; if it is no label, give it another name"
                )
                raise FieldError(name, problem)
            value = value > 0
        if isinstance(value, bool):
            return value != (name in _BAD_LABELS)
    return None


def score_of(row: FileRow) -> float | None:
    """The score that a row gives its completion."""
    if row.get("judge") is not None:
        return None  # of `longrm synthesize short-to-long`, whose score is the one that the completion states
    values = (row.get(name) for name in _SCORES)
    return next((float(value) for value in values if is_number(value) and math.isfinite(value)), None)


def ranks_by_scores(scores: Sequence[float]) -> tuple[int, ...]:
    """The ranks of candidates that come best first; equal scores tie."""
    return tuple(accumulate((worse != better for better, worse in pairwise(scores)), initial=1))


def rising(scores: Sequence[float]) -> tuple[float, float] | None:
    """The first two neighbors whose scores rise (or are NaN), which contradicts a best-first order."""
    return next((pair for pair in pairwise(scores) if not pair[1] <= pair[0]), None)


def name_of(row: FileRow, field: str) -> str:
    """A field that names something: a text, or a number (tables with gaps turn whole numbers into floats)."""
    value = required(row, field)[1]
    is_whole = is_number(value) and (isinstance(value, int) or value.is_integer())
    if not isinstance(value, str) and not is_whole:
        raise FieldError(field, f"must be a text or a whole number, got {short(value)}")
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
    found = find_text(text, prompt) or find_text(text.strip(), prompt)
    if found is None:
        raise FieldError("context", "not part of the prompt; join it into the prompt, or drop the column")
    return (found,)


def find_question(row: FileRow, prompt: Sequence[Message]) -> Span | None:
    """Finds the last occurrence of the text of a `question` or `query` column in the prompt."""
    text = next((row[name] for name in QUESTIONS if isinstance(row.get(name), str)), "")
    return find_text(text.strip(), prompt) if text.strip() else None


def find_text(text: str, prompt: Sequence[Message]) -> Span | None:
    """Finds the last occurrence of a text in the messages of a prompt."""
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


def length_and_depth(comparison: Comparison | Trajectory) -> LengthAndDepth:
    """Reads `length` and `depth` of the metadata."""
    length, depth = comparison.metadata.get("length"), comparison.metadata.get("depth")
    if depth is not None and not (is_number(depth) and 0 <= depth <= 1):
        raise FieldError("depth", f"must be a number from 0 (start) to 1 (end), got {short(depth)}")
    return LengthAndDepth(
        None if length is None else whole_length(length, "length"), None if depth is None else float(depth)
    )


def writers_of(comparison: Comparison) -> tuple[str, ...]:
    """Who wrote each response: the metadata `models`, or `chosen_model` and `rejected_model`; empty if unknown."""
    metadata = comparison.metadata
    names = metadata.get("models") or [metadata.get("chosen_model"), metadata.get("rejected_model")]
    known = isinstance(names, list) and len(names) == len(comparison.responses)
    return tuple(names) if known and all(isinstance(name, str) for name in names) else ()


def whole_length(value: Any, field: str) -> int:
    """Reads the tokens of a length bucket; a table may hold the whole number as a float."""
    if is_number(value) and 1 <= value <= MAX_LENGTH and value == int(value):
        return int(value)
    problem = f"must be a whole number of tokens from 1 to {MAX_LENGTH}, got {short(value)}"
    raise FieldError(field, f"{problem}; omit it to have the prompt measured")
