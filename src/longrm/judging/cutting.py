"""Shortens prompts that do not fit, by cutting tokens out of the context and nothing else."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, repeat
from math import ceil
from operator import itemgetter
from typing import Literal

from longrm.data.spans import disjoint_spans, edit_context
from longrm.data.tokenizing import Tokenizer
from longrm.types import Cut, Judgment, Outcome, Query, Span, message_text

TruncationSide = Literal["middle", "left", "right", "refuse"]

MARK = "\n[... cut ...]\n"
"""Replaces the text that was cut."""

OMITTED = "[omitted]"
"""Replaces a whole message of a trajectory."""

_MEASUREMENTS = 8  # attempts at finding the smallest cut
_SLACK = 8  # tokens; a result this close to the limit is not improved


def why_uncut(query: Query, policy: TruncationSide) -> str:
    """The end of a message that a query is too long: why it was not cut."""
    if policy == "refuse":
        return "; model_args.cut (--cut middle) can shorten the context"
    if not query.context:
        return "; it was not cut because the data does not mark the context"
    return "; it is too long even without the context"


def too_long(query: Query, policy: TruncationSide, tokens: int, limit: int, prompt_tokens: int) -> Judgment:
    """The judgment of a query whose prompt and longest response exceed a model's context window."""
    why = f"prompt and longest response exceed the context window{why_uncut(query, policy)}"
    detail = f"{tokens:,} > {limit:,} tokens; {why}"
    return Judgment(Outcome.TOO_LONG, detail=detail, prompt_tokens=prompt_tokens)


def truncate_context(
    query: Query, measure: Callable[[Query], int], limit: int, tokenizer: Tokenizer, policy: TruncationSide
) -> tuple[Query, Cut | None] | None:
    """Cuts tokens out of a query's context, at borders of the tokenizer's tokens, until `measure` is at most `limit`.

    The question and the responses are not changed, and `MARK` replaces the cut text. Several spans are cut as if they
    were joined. Of a trajectory whole messages that are not the assistant's are omitted, the first ones by "left".

    Returns:
        The query, with its spans adjusted, and the cut (None if it fits uncut). None instead of both if it cannot fit:
        the policy is "refuse", the context is not marked or not plain text, or would be cut entirely.
    """
    total = measure(query)
    if total <= limit:
        return query, None
    if query.steps:
        return None if policy == "refuse" else _omit_results(query, measure, limit, policy, total)
    cuttable = [] if policy == "refuse" else _cuttable(query, tokenizer)
    most = len(cuttable) - 1  # at least one token of the context stays
    count = min(total - limit + tokenizer.count(MARK), most)
    best: tuple[int, Query] | None = None
    tried: set[int] = set()
    while 0 < count <= most and count not in tried and len(tried) < _MEASUREMENTS:
        tried.add(count)
        first = {"left": 0, "middle": (most + 2 - count) // 2, "right": most + 1 - count}[policy]
        holes = []
        for span, group in groupby(cuttable[first : first + count], key=itemgetter(0)):
            run = list(group)
            holes.append(Span(span.message, run[0][1], run[-1][2]))
        shorter = edit_context(query, [(holes[0], MARK), *((hole, "") for hole in holes[1:])])
        tokens = measure(shorter)
        if tokens <= limit and (best is None or tokens > best[0]):
            best = tokens, shorter
        if tokens >= total or limit - _SLACK <= tokens <= limit:
            break
        # Linear interpolation: a template may show the context twice, and `measure` may use another tokenizer.
        count = min(count + ceil((tokens - limit) * count / (total - tokens)), most)
    return None if best is None else (best[1], Cut(policy, total - best[0]))


def _omit_results(
    query: Query, measure: Callable[[Query], int], limit: int, policy: TruncationSide, total: int
) -> tuple[Query, Cut] | None:
    """Replaces whole messages between the assistant's turns by `OMITTED`, as few as it takes; None if none suffice."""
    places = [at for at, one in enumerate(query.responses[-1]) if one.get("role") != "assistant"]
    middle = len(places) / 2
    first = {"left": lambda at: at, "right": lambda at: -at, "middle": lambda at: abs(at + 0.5 - middle)}[
        policy
    ]
    order = [places[at] for at in sorted(range(len(places)), key=first)]

    def shorter(count: int) -> Query:
        gone = {*order[:count]}
        cut = [
            tuple({**one, "content": OMITTED} if at in gone else one for at, one in enumerate(response))
            for response in query.responses
        ]
        return replace(query, responses=tuple(cut))

    count = bisect_left(range(len(order) + 1), True, key=lambda omitted: measure(shorter(omitted)) <= limit)
    if count > len(order):
        return None
    return shorter(count), Cut(policy, total - measure(shorter(count)))


def _cuttable(query: Query, tokenizer: Tokenizer) -> list[tuple[Span, int, int]]:
    """The tokens of the context without the question, in reading order, each as its span, start and end.

    Empty if a message of the context is not plain text.
    """
    if not all(isinstance(query.prompt[span.message].get("content"), str) for span in query.context):
        return []
    tokens: list[tuple[Span, int, int]] = []
    for span in disjoint_spans(query.context, query.question):
        text = message_text(query.prompt[span.message])[span.start : span.end]
        offsets = tokenizer.backend.encode(text, add_special_tokens=False).offsets
        if offsets:
            # Each token with what follows it up to the next one: some tokenizers skip spaces.
            bounds = [span.start, *(span.start + start for start, _ in offsets[1:]), span.end]
            tokens += zip(repeat(span), bounds, bounds[1:], strict=False)
    return tokens
