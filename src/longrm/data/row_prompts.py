"""The prompt of a row: a column of its own, or context and question, which are joined."""

from typing import NamedTuple

from longrm.data.fields import QUESTIONS, FileRow, messages_of, required
from longrm.types import Message, Span


class KnownPrompt(NamedTuple):
    """A prompt with the column that it is from, and where context and question stand in it, as far as that is told."""

    column: str
    messages: tuple[Message, ...]
    context: tuple[Span, ...] = ()
    question: Span | None = None


def prompt_of(row: FileRow, *names: str) -> KnownPrompt:
    """The prompt that one of these columns holds, else context, blank line and question.

    Raises:
        FieldError: There is neither, or it is no prompt.
    """
    if all(row.get(name) is None for name in names):
        joined = joined_prompt(row)
        if joined is not None:
            return joined
    name, given = required(row, *names)
    return KnownPrompt(name, messages_of(given, name, "user"))


def joined_prompt(row: FileRow) -> KnownPrompt | None:
    """The texts of the columns `context` and `question` or `query` as one prompt; None where one is missing."""
    context = row.get("context")
    question = next((row[name] for name in QUESTIONS if isinstance(row.get(name), str)), "")
    if not isinstance(context, str) or not context.strip() or not question.strip():
        return None
    text = f"{context}\n\n{question}"
    return KnownPrompt(
        "prompt",
        ({"role": "user", "content": text},),
        (Span(0, 0, len(context)),),
        Span(0, len(text) - len(question), len(text)),
    )
