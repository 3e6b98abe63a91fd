"""Compress, then judge: the chunks of a context that matter, and any other reward model on what they say."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from longrm.data.spans import disjoint_spans, edit_context
from longrm.reward_models.judge_settings import Compress
from longrm.reward_models.kinds import LoadRequest
from longrm.reward_models.lexical import LexicalIndex, index
from longrm.reward_models.protocol import RewardModel
from longrm.types import Cut, Judgment, Query, Span, message_text, text_of

_logger = logging.getLogger(__name__)

LEFT_OUT = "\n[...]\n"
"""Stands where chunks of the context were left out."""


class CompressRewardModel(RewardModel):
    """Asks another reward model about a context of which only the chunks that matter are left.

    What matters does not depend on the order of the responses, so all orders see the same short context. What is
    left out stands in the judgment's `cut`. The first prompt that goes through whole, because its context is not
    known, is told as a warning; it stands for all others.
    """

    def __init__(self, inner: RewardModel, settings: Compress) -> None:
        self.name = f"compress:{inner.name}"
        self.sees_order, self.samples, self.scale = inner.sees_order, inner.samples, inner.scale
        self.by_criterion = inner.by_criterion
        self.provenance = inner.provenance
        self._inner, self._settings = inner, settings
        self._warned = False

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Compresses every query and passes on what the other model judges."""
        self._tell_whole(queries)
        short = [compress(query, self._settings) for query in queries]
        judgments = self._inner.judge([query for query, _ in short])
        return [_with(judgment, cut) for judgment, (_, cut) in zip(judgments, short, strict=True)]

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The presented orders that the other model must be asked in."""
        return self._inner.orders(comparison)

    def _tell_whole(self, queries: Sequence[Query]) -> None:
        whole = next((query.id for query in queries if not _regions(query)), None)
        if whole is not None and not self._warned:
            self._warned = True
            _logger.warning(
                "%s: the context of '%s' is not known, or no plain text: this prompt, and all others of its kind, "
                "are judged whole",
                self.name,
                whole,
            )


def compress(query: Query, settings: Compress) -> tuple[Query, Cut | None]:
    """Keeps the chunks of the context that are closest to the question and to the responses.

    Every chunk is scored by BM25 for the question and for each response, as a share of what the best chunk
    scores for it; so a long response claims no more room than a short one. The chunks with the largest sums
    that fit into `settings.tokens` stay, in their order, and `LEFT_OUT` stands for those between them.

    Returns:
        The query itself, and no cut, where its context is short enough, is not known, or stands in a message
        whose content is a list; else the query with its prompt shortened and its spans moved, those of the
        context without the question, and how many words and punctuation marks were left out.
    """
    regions = _regions(query)
    lexicon = index(tuple(_text(query, region) for region in regions), min(settings.chunk, settings.tokens))
    if sum(chunk.size for chunk in lexicon.chunks) <= settings.tokens:
        return query, None
    sought = sorted(text_of(response) for response in query.responses)
    if query.question is not None:
        sought.append(_text(query, query.question))
    kept = _choose(lexicon, sought, settings.tokens)
    edits = [(span, LEFT_OUT) for span in _left_out(regions, lexicon, kept)]
    left_out = sum(chunk.size for number, chunk in enumerate(lexicon.chunks) if number not in kept)
    return edit_context(replace(query, context=tuple(regions)), edits), Cut("compress", left_out)


def _regions(query: Query) -> list[Span]:
    """The context without the question; empty where it is not known, or a message of it is no plain text."""
    regions = disjoint_spans(query.context, query.question)
    plain = all(isinstance(query.prompt[region.message].get("content"), str) for region in regions)
    return regions if plain else []


def _with(judgment: Judgment, cut: Cut | None) -> Judgment:
    """The judgment with what compression left out, and what the model itself cut after that added to it."""
    if cut is None:
        return judgment
    after = 0 if judgment.cut is None else judgment.cut.tokens
    return replace(judgment, cut=replace(cut, tokens=cut.tokens + after))


def _choose(lexicon: LexicalIndex, sought: Sequence[str], room: int) -> set[int]:
    """Numbers of the chunks that are closest to all sought texts and fit into so many words together."""
    total = np.zeros(len(lexicon.chunks))
    for text in sought:
        scores = lexicon.scores(text)
        total += scores / (scores.max() or 1.0)
    kept = set()
    for number in np.argsort(-total, kind="stable").tolist():
        size = lexicon.chunks[number].size
        if size <= room:
            kept.add(number)
            room -= size
    return kept


def _left_out(regions: Sequence[Span], lexicon: LexicalIndex, kept: set[int]) -> Iterator[Span]:
    """The runs of chunks that were not kept, as spans of the prompt."""
    numbered = enumerate(lexicon.chunks)
    for (stays, passage), run in groupby(numbered, lambda item: (item[0] in kept, item[1].passage)):
        if not stays:
            chunks = [chunk for _, chunk in run]
            region = regions[passage]
            yield Span(region.message, region.start + chunks[0].start, region.start + chunks[-1].end)


def _text(query: Query, span: Span) -> str:
    return message_text(query.prompt[span.message])[span.start : span.end]


def load_compress(name: str, request: LoadRequest) -> CompressRewardModel:
    """Loads `compress:MODEL`, whatever kind the model is of."""
    return CompressRewardModel(request.load(name), request.compress)
