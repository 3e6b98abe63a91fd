"""Edits of a prompt's texts that keep the spans of its context and question in place."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from longrm.errors import DataError
from longrm.types import Comparison, Message, Query, Span, message_text

WithContext = TypeVar("WithContext", Query, Comparison)


def disjoint_spans(context: Sequence[Span], question: Span | None) -> list[Span]:
    """Returns a context's spans in reading order, each character once, and none of the question."""
    found: list[Span] = []
    for span in sorted(context, key=lambda span: (span.message, span.start)):
        start = span.start
        if found and found[-1].message == span.message:
            start = max(start, found[-1].end)
        parts = [(start, span.end)]
        if question is not None and question.message == span.message:
            parts = [(start, min(question.start, span.end)), (max(question.end, start), span.end)]
        found += [Span(span.message, low, high) for low, high in parts if low < high]
    return found


def context_in(prompt: Sequence[Message], context: str | None) -> tuple[Span, ...]:
    """Finds a context in a prompt; empty without a context, `DataError` if no message contains it."""
    if context is None:
        return ()
    if not context.strip():
        raise DataError("the context is empty: send a part of the prompt, or omit the field")
    for number, message in enumerate(prompt):
        start = message_text(message).find(context)
        if start >= 0:
            return (Span(number, start, start + len(context)),)
    raise DataError("the context is not a part of the prompt: send it word for word")


def edit_context(holder: WithContext, edits: Sequence[tuple[Span, str]]) -> WithContext:
    """Rewrites parts of a context, as `rewrite` does; the spans of context and question follow the edits."""
    followed = holder.context if holder.question is None else (*holder.context, holder.question)
    prompt, spans = rewrite(holder.prompt, edits, followed)
    known = len(holder.context)
    return replace(holder, prompt=prompt, context=spans[:known], question=next(iter(spans[known:]), None))


def rewrite(
    prompt: Sequence[Message], edits: Sequence[tuple[Span, str]], followed: Sequence[Span]
) -> tuple[tuple[Message, ...], tuple[Span, ...]]:
    """Replaces parts of a prompt's texts, and moves the `followed` spans accordingly.

    The edits are spans that do not overlap, each with its new text. A followed span that contains one grows or shrinks
    with it, and one behind it moves.
    """
    messages = [dict(message) for message in prompt]
    for span, text in sorted(edits, key=lambda edit: (edit[0].message, edit[0].start), reverse=True):
        content = messages[span.message].get("content")
        if not isinstance(content, str):
            raise ValueError(f"message {span.message} has no plain text to edit")
        messages[span.message]["content"] = content[: span.start] + text + content[span.end :]
    return tuple(messages), tuple(_moved(span, edits) for span in followed)


def _moved(span: Span, edits: Sequence[tuple[Span, str]]) -> Span:
    start, end = span.start, span.end
    for edit, text in edits:
        grown = len(text) - (edit.end - edit.start)
        if edit.message == span.message:
            start += grown if edit.end <= span.start else 0
            end += grown if edit.end <= span.end else 0
    return Span(span.message, start, max(start, end))
