"""The sentences of a context, and parts of it that hold neighboring ones."""

from collections.abc import Sequence
from itertools import pairwise

from longrm.data.chunking import sentence_spans
from longrm.data.spans import disjoint_spans
from longrm.errors import DataError
from longrm.types import Query, Span, message_text

LONGEST = 64
"""Words and punctuation marks of a sentence; a longer one, such as a line of data, is cut between words."""


def context_sentences(query: Query) -> tuple[Span, ...]:
    """The sentences of a query's context in reading order; together they are all of it but the question.

    Where no context is known it is all the text of the prompt but the question. Messages whose content is no plain text
    hold none. White space belongs to the sentence before it.
    """
    return tuple(
        Span(region.message, region.start + start, region.start + end)
        for region in _regions(query)
        if isinstance(text := query.prompt[region.message].get("content"), str)
        for start, end in sentence_spans(text[region.start : region.end], LONGEST)
    )


def check_plain(query: Query) -> None:
    """Refuses a context of which a part cannot be left out.

    Raises:
        DataError: A message of it is a list of parts.
    """
    for region in _regions(query):
        if not isinstance(query.prompt[region.message].get("content"), str):
            raise DataError(
                f"message {region.message} of the prompt is a list of parts, of which no sentence can be left out: "
                "give its content as one text"
            )


def _regions(query: Query) -> list[Span]:
    known = query.context or tuple(
        Span(number, 0, len(message_text(message))) for number, message in enumerate(query.prompt)
    )
    return disjoint_spans(known, query.question)


def split(units: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Cuts numbers of sentences into at most `count` runs of nearly equal length."""
    count = min(count, len(units))
    edges = [len(units) * part // count for part in range(count + 1)] if count else []
    return [tuple(units[low:high]) for low, high in pairwise(edges)]
