"""Compress, then judge: the chunks of a context that matter, and any other reward model on what they say."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from longrm.data.spans import apart, edited
from longrm.reward_models.lexical import Index, index
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.settings import Compress
from longrm.types import Judgment, Query, Span, message_text, text_of

LEFT_OUT = "\n[...]\n"
"""Stands where chunks of the context were left out."""


class CompressRewardModel(RewardModel):
    """Asks another reward model about a context of which only the chunks that matter are left.

    What matters does not depend on the order of the responses, so all orders see the same short context.
    """

    def __init__(self, inner: RewardModel, settings: Compress) -> None:
        self.name = f"compress:{inner.name}"
        self.sees_order, self.samples, self.scale = inner.sees_order, inner.samples, inner.scale
        self._inner, self._settings = inner, settings

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Compresses every query and passes on what the other model judges."""
        return self._inner.judge([compress(query, self._settings) for query in queries])

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The presented orders that the other model must be asked in."""
        return self._inner.orders(comparison)


def compress(query: Query, settings: Compress) -> Query:
    """Keeps the chunks of the context that are closest to the question and to the responses.

    Every chunk is scored by BM25 for the question and for each response, as a share of what the best chunk
    scores for it; so a long response claims no more room than a short one. The chunks with the largest sums
    that fit into `settings.tokens` stay, in their order, and `LEFT_OUT` stands for those between them.

    Returns:
        The query itself where its context is short enough, is not known, or stands in a message whose content
        is a list; else the query with its prompt shortened and its spans moved, those of the context without
        the question.
    """
    regions = apart(query.context, query.question)
    if not all(isinstance(query.prompt[region.message].get("content"), str) for region in regions):
        return query
    found = index(tuple(_text(query, region) for region in regions), min(settings.chunk, settings.tokens))
    if sum(chunk.size for chunk in found.chunks) <= settings.tokens:
        return query
    sought = sorted(text_of(response) for response in query.responses)
    if query.question is not None:
        sought.append(_text(query, query.question))
    kept = _choose(found, sought, settings.tokens)
    edits = [(span, LEFT_OUT) for span in _left_out(regions, found, kept)]
    return edited(replace(query, context=tuple(regions)), edits)


def _choose(found: Index, sought: Sequence[str], room: int) -> set[int]:
    """Numbers of the chunks that are closest to all sought texts and fit into so many words together."""
    total = np.zeros(len(found.chunks))
    for text in sought:
        scores = found.scores(text)
        total += scores / (scores.max() or 1.0)
    kept = set()
    for number in np.argsort(-total, kind="stable").tolist():
        size = found.chunks[number].size
        if size <= room:
            kept.add(number)
            room -= size
    return kept


def _left_out(regions: Sequence[Span], found: Index, kept: set[int]) -> Iterator[Span]:
    """The runs of chunks that were not kept, as spans of the prompt."""
    numbered = enumerate(found.chunks)
    for (stays, passage), run in groupby(numbered, lambda item: (item[0] in kept, item[1].passage)):
        if not stays:
            chunks = [chunk for _, chunk in run]
            region = regions[passage]
            yield Span(region.message, region.start + chunks[0].start, region.start + chunks[-1].end)


def _text(query: Query, span: Span) -> str:
    return message_text(query.prompt[span.message])[span.start : span.end]
