"""Where evidence stands in the context of a row."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from longrm.types import Message, Span, message_text

_CONTEXT = re.compile(r"<(context(?:-\d+)?)>\n")  # how the judging prompts of our own rows begin


@dataclass(frozen=True, slots=True)
class EvidencePlaces:
    """Where the evidence of a row stands.

    Of every piece that was found `depths` has the share of the rest of the context before it, and `shares` that of the
    context that it takes (empty where nobody knows); `missing` says that a piece is told which the context does not
    hold.
    """

    depths: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    missing: bool = False


NOWHERE = EvidencePlaces()


def places_of(spans: Sequence[Span | None], regions: Sequence[Span]) -> EvidencePlaces:
    """Finds the spans of evidence, None where one cannot be read, in the regions of a context in reading order."""
    total = sum(region.end - region.start for region in regions)
    depths, shares, missing = [], [], False
    for span in spans:
        before = None if span is None else _before(span, regions)
        if span is None or before is None:
            missing = True
            continue
        size = span.end - span.start
        if size < total:  # else there is nothing that it could stand before or after
            depths.append(before / (total - size))
            shares.append(size / total)
    return EvidencePlaces(tuple(depths), tuple(shares), missing)


def places_recorded(metadata: Mapping[str, Any], prompt: Sequence[Message]) -> EvidencePlaces:
    """What a row of ours tells: the spans in its `evidence`, or else the `depths` that its maker wrote down."""
    spans = metadata.get("evidence")
    if isinstance(spans, list) and spans:
        return places_of([_span_of(value) for value in spans], region_of(prompt))
    told = metadata.get("depths")
    depths = [depth for depth in told if isinstance(depth, int | float)] if isinstance(told, list) else []
    return EvidencePlaces(tuple(depth for depth in depths if 0 <= depth <= 1))


def region_of(prompt: Sequence[Message]) -> tuple[Span, ...]:
    """The block of the context in a judging prompt of ours, or the whole prompt."""
    texts = [message_text(message) for message in prompt]
    block = _CONTEXT.match(texts[-1]) if texts else None
    end = texts[-1].find(f"\n</{block[1]}>", block.end()) if block else -1
    if block is not None and end > block.end():
        return (Span(len(texts) - 1, block.end(), end),)
    return tuple(Span(number, 0, len(text)) for number, text in enumerate(texts))


def _before(evidence: Span, regions: Sequence[Span]) -> int | None:
    """Characters of the regions before the evidence; None where it is not within one of them."""
    sizes = [region.end - region.start for region in regions]
    for region, before in zip(regions, accumulate(sizes, initial=0), strict=False):
        inside = region.start <= evidence.start <= evidence.end <= region.end
        if region.message == evidence.message and inside:
            return before + evidence.start - region.start
    return None


def _span_of(value: Any) -> Span | None:
    told = [value.get(name) for name in ("message", "start", "end")] if isinstance(value, Mapping) else []
    numbers = [number for number in told if type(number) is int]
    if len(numbers) != 3 or min(numbers) < 0 or numbers[1] > numbers[2]:
        return None
    return Span(*numbers)
