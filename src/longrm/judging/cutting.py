"""Shortens prompts that do not fit, by cutting tokens out of the context and nothing else."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal, NamedTuple

from longrm.data.spans import disjoint_spans, edit_context
from longrm.data.tokenizing import Tokenizer
from longrm.types import Cut, Judgment, Outcome, Query, Span, message_text

Policy = Literal["middle", "left", "right", "refuse"]

MARK = "\n[... cut ...]\n"
"""Replaces the text that was cut."""

_MEASUREMENTS = 8  # attempts at finding the smallest cut
_SLACK = 8  # tokens; a result this close to the limit is not improved


class _Piece(NamedTuple):
    """A span of the context that may be cut."""

    span: Span
    starts: list[int]  # where each of its tokens starts, in characters of the message


def why_uncut(query: Query, policy: Policy) -> str:
    """The end of a message that a query is too long: why it was not cut."""
    if policy == "refuse":
        return "; judge.cut can shorten the context"
    if not query.context:
        return "; it was not cut because the data does not mark the context"
    return "; it is too long even without the context"


def too_long(query: Query, policy: Policy, tokens: int, limit: int, prompt_tokens: int) -> Judgment:
    """The judgment of a query whose prompt and longest response exceed a model's context window."""
    why = f"prompt and longest response exceed the context window{why_uncut(query, policy)}"
    detail = f"{tokens:,} > {limit:,} tokens; {why}"
    return Judgment(Outcome.TOO_LONG, detail=detail, prompt_tokens=prompt_tokens)


def fit(
    query: Query, measure: Callable[[Query], int], limit: int, tokenizer: Tokenizer, policy: Policy
) -> tuple[Query, Cut | None] | None:
    """Cuts tokens out of a query's context until it fits; several spans are cut as if they were joined.

    The question and the responses are not changed, and `MARK` replaces what was cut.

    Args:
        query: The query.
        measure: Counts the tokens of a query.
        limit: The most tokens by that count.
        tokenizer: Its token boundaries are where a cut may start and end.
        policy: What to cut of the context: its "middle", "left" (the beginning) or "right" (the end).

    Returns:
        The query, with its spans adjusted, and the cut (None if it fits uncut). None instead of both if it cannot fit:
        the policy is "refuse", the context is not marked or not plain text, or would be cut entirely.
    """
    total = measure(query)
    if total <= limit:
        return query, None
    pieces = [] if policy == "refuse" else _pieces(query, tokenizer)
    most = sum(len(piece.starts) for piece in pieces) - 1
    count = min(total - limit + tokenizer.count(MARK), most)
    best: tuple[int, Query] | None = None
    tried: set[int] = set()
    while 0 < count <= most and count not in tried and len(tried) < _MEASUREMENTS:
        tried.add(count)
        first = {"left": 0, "middle": (most + 2 - count) // 2, "right": most + 1 - count}[policy]
        marked, *others = _holes(pieces, first, first + count)
        shorter = edit_context(query, [(marked, MARK), *((hole, "") for hole in others)])
        tokens = measure(shorter)
        if tokens <= limit and (best is None or tokens > best[0]):
            best = tokens, shorter
        if tokens >= total or limit - _SLACK <= tokens <= limit:
            break
        # Linear interpolation: a template may show the context twice, and `measure` may use another tokenizer.
        count = min(count + ceil((tokens - limit) * count / (total - tokens)), most)
    return None if best is None else (best[1], Cut(policy, total - best[0]))


def _pieces(query: Query, tokenizer: Tokenizer) -> list[_Piece]:
    """The context without the question, in reading order; empty if one of its messages is not plain text."""
    if not all(isinstance(query.prompt[span.message].get("content"), str) for span in query.context):
        return []
    pieces = []
    for span in disjoint_spans(query.context, query.question):
        text = message_text(query.prompt[span.message])[span.start : span.end]
        offsets = tokenizer.backend.encode(text, add_special_tokens=False).offsets
        pieces.append(_Piece(span, [span.start + start for start, _ in offsets]))
    return pieces


def _holes(pieces: Sequence[_Piece], first: int, end: int) -> list[Span]:
    """The spans of the tokens `first` to `end` (exclusive), counted over all pieces."""
    holes = []
    for piece in pieces:
        size = len(piece.starts)
        low, high = max(first, 0), min(end, size)
        if low < high:
            start = piece.starts[low] if low else piece.span.start
            stop = piece.starts[high] if high < size else piece.span.end
            holes.append(Span(piece.span.message, start, stop))
        first, end = first - size, end - size
    return holes
