"""What does not fit is cut out of the context, and of nothing else, by a policy that the user has named."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal, NamedTuple

from longrm.data.spans import disjoint_spans, edit_context
from longrm.data.tokenizing import Tokenizer
from longrm.types import Cut, Judgment, Outcome, Query, Span, message_text

Policy = Literal["middle", "left", "right", "refuse"]

MARK = "\n[... cut ...]\n"
"""Stands where text was cut out."""

_MEASUREMENTS = 8
_SLACK = 8


class _Piece(NamedTuple):
    """A part of the context that may be cut, and where each of its tokens starts, in characters of the message."""

    span: Span
    starts: list[int]


def why_uncut(query: Query, policy: Policy) -> str:
    """What to add to the news that a query does not fit: why nothing was cut."""
    if policy == "refuse":
        return "; judge.cut names what may be cut"
    if not query.context:
        return "; nothing was cut, for the data does not say where its context stands"
    return "; what remains without the context does not fit either"


def too_long(query: Query, policy: Policy, tokens: int, limit: int, prompt_tokens: int) -> Judgment:
    """The judgment of a query whose prompt and longest response have more tokens than a model reads."""
    said = "prompt and longest response have more than the model reads"
    detail = f"{tokens:,} > {limit:,} tokens; {said}{why_uncut(query, policy)}"
    return Judgment(Outcome.TOO_LONG, detail=detail, prompt_tokens=prompt_tokens)


def fit(
    query: Query, measure: Callable[[Query], int], limit: int, tokenizer: Tokenizer, policy: Policy
) -> tuple[Query, Cut | None] | None:
    """Cuts tokens out of a query's context until it fits; several spans are cut as if they were joined.

    The question and the responses stay as they are. A mark stands where text was cut out: from the "middle" of the
    context, its beginning ("left") or its end ("right"). `limit` is the most tokens as `measure` counts them, and the
    tokenizer tells where a cut may stand.

    Returns:
        The query, with its spans moved, and what was cut: None where it fits as it is. None instead of both where
        it cannot fit: the policy is "refuse", the context is not known or is no plain text, or something of it
        would not remain.
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
        # A template may show the context twice, or a token may count for more or less in another tokenizer.
        count = min(count + ceil((tokens - limit) * count / (total - tokens)), most)
    return None if best is None else (best[1], Cut(policy, total - best[0]))


def _pieces(query: Query, tokenizer: Tokenizer) -> list[_Piece]:
    """The context without the question, in reading order; empty where a message of it is no plain text."""
    if not all(isinstance(query.prompt[span.message].get("content"), str) for span in query.context):
        return []
    pieces = []
    for span in disjoint_spans(query.context, query.question):
        text = message_text(query.prompt[span.message])[span.start : span.end]
        offsets = tokenizer.backend.encode(text, add_special_tokens=False).offsets
        pieces.append(_Piece(span, [span.start + start for start, _ in offsets]))
    return pieces


def _holes(pieces: Sequence[_Piece], first: int, end: int) -> list[Span]:
    """Where the tokens `first` to `end` (exclusive) of all pieces together stand, in reading order."""
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
