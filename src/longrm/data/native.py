"""The project's own rows: a comparison as a plain dict and back, without loss."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from longrm.data.assembly import assemble_comparison
from longrm.data.fields import FileRow, ranks_of, required, responses_of
from longrm.data.row_prompts import prompt_of
from longrm.reading import FieldError
from longrm.types import Comparison, Message, Span, message_text

_KEYS = frozenset({"prompt", "responses", "ranks", "context", "question", "evidence", "role"})


def to_native_row(comparison: Comparison) -> dict[str, Any]:
    """A comparison as a plain dict; what holds its default is left out."""
    optional = {
        "ranks": None if comparison.ranks is None else list(comparison.ranks),
        "metadata": dict(comparison.metadata),
        "context": [asdict(span) for span in comparison.context],
        "question": comparison.question and asdict(comparison.question),
        "evidence": [asdict(span) for span in comparison.evidence],
        "tools": [dict(tool) for tool in comparison.tools],
        "rubrics": [{"criterion": one.text, "weight": one.weight} for one in comparison.rubrics],
        "role": comparison.role if comparison.role != "response" else None,
    }
    return {
        "id": comparison.id,
        "group": comparison.group,
        "prompt": [dict(message) for message in comparison.prompt],
        "responses": [[dict(message) for message in response] for response in comparison.responses],
        **{key: value for key, value in optional.items() if value not in (None, {}, [])},
    }


def from_native_row(row: FileRow, number: int) -> Comparison:
    """The inverse of `to_native_row`; columns that are not ours become metadata."""
    known = prompt_of(row, "prompt")
    prompt = known.messages
    responses = responses_of(required(row, "responses")[1], "responses")
    ranks = None if row.get("ranks") is None else ranks_of(row["ranks"], len(responses), "ranks")
    if not isinstance(row.get("metadata") or {}, Mapping):
        raise FieldError("metadata", "needs an object")
    role = row.get("role")
    if role not in (None, "response", "judgment"):
        raise FieldError("role", f"needs 'response' or 'judgment', got {role!r}")
    return assemble_comparison(
        row,
        number,
        used=_KEYS,
        prompt=prompt,
        responses=responses,
        ranks=ranks,
        field="responses",
        role="judgment" if role == "judgment" else "response",
        context=known.context or _spans(row, "context", prompt),
        question=known.question or next(iter(_spans(row, "question", prompt)), None),
        evidence=_spans(row, "evidence", prompt),
    )


def _spans(row: FileRow, field: str, prompt: Sequence[Message]) -> tuple[Span, ...]:
    value = row.get(field)
    if value is None or isinstance(value, str):
        return ()
    values = [value] if isinstance(value, Mapping) else value
    if not isinstance(values, list | tuple):
        raise FieldError(field, f"needs spans such as {asdict(Span(0, 0, 9))}")
    return tuple(_span(item, field, prompt) for item in values)


def _span(value: Any, field: str, prompt: Sequence[Message]) -> Span:
    if not isinstance(value, Mapping) or not all(
        type(value.get(key)) is int for key in ("message", "start", "end")
    ):
        raise FieldError(field, f"needs spans such as {asdict(Span(0, 0, 9))}, got {value!r:.60}")
    message, start, end = value["message"], value["start"], value["end"]
    if not 0 <= message < len(prompt):
        raise FieldError(field, f"names message {message}, but the prompt has {len(prompt)}")
    length = len(message_text(prompt[message]))
    if not 0 <= start <= end <= length:
        raise FieldError(field, f"characters {start} to {end} are not within the message's {length}")
    if not message_text(prompt[message])[start:end].strip():
        raise FieldError(field, "empty; let it cover some text, or leave it out")
    return Span(message, start, end)
