"""Attributions as one HTML page that loads nothing: contexts with the sentences that mattered marked in them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from longrm.attribution.attribute import AttributionRecord, SentenceWeight
from longrm.evaluation import wording
from longrm.evaluation.summaries import AttributionPart, AttributionSummary
from longrm.reading import visible
from longrm.report.html_page import html_page
from longrm.types import Comparison, message_text, text_of

_LISTED = 10
_STEPS = 5
_FOLDED = 8  # sentences without weight in a row
_BESIDE = 2  # sentences that stay open on either side of what is folded
_LONGEST_RESPONSE = 600  # characters


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a message's text: a marked sentence, text that is shown plainly, or text that is folded."""

    text: str
    mark: str = ""
    rank: int = 0
    weight: str = ""
    folded: str = ""


def attribution_page(
    summary: AttributionSummary,
    records: Sequence[AttributionRecord],
    comparisons: Mapping[str, Comparison],
) -> str:
    """Makes the page; equal attributions give equal bytes.

    Where an attribution cannot be trusted its context is left out, and the reason stands in its place.

    Args:
        summary: What the run says as a whole.
        records: The attributions.
        comparisons: The comparisons that were explained, by id.
    """
    parts = {"all": summary.overall, **{f"{int(size):,}": part for size, part in summary.by_length.items()}}
    page = html_page(
        "attribution/page.html.j2",
        command="longrm attribute",
        title=f"Why {summary.model} scored as it did",
        heading=f"Why {summary.model} scored as it did",
        bench=summary.bench,
        parts=[(name, *_figures(part)) for name, part in parts.items()],
        few=wording.few_note([interval for part in parts.values() for _, interval in _figures(part)]),
        items=[_item(number, record, comparisons[record.id]) for number, record in enumerate(records, 1)],
        steps=range(1, _STEPS + 1),
    )
    return visible(page)


def _figures(part: AttributionPart) -> list[tuple[str, str]]:
    """A part's shares in percent, each with its interval."""
    found = (part.shown, part.evidence_auc, part.evidence_recall, part.evidence_share)
    return [
        ("–", "") if one.value is None else (f"{100 * one.value:.1f}", wording.percent_interval(one))
        for one in found
    ]


def _item(number: int, record: AttributionRecord, comparison: Comparison) -> dict[str, object]:
    target, trust = record.target, record.trust
    named = [target.response] if target.against is None else [target.response, target.against]
    shown = trust is not None and trust.shown
    verdict = "" if record.right is None else ("judged right" if record.right else "judged wrong")
    length = "" if record.length is None else f"{record.length:,} tokens"
    ranked = sorted((one for one in record.sentences if one.weight), key=lambda one: -abs(one.weight))
    ranks = {one: rank for rank, one in enumerate(ranked[:_LISTED], 1)}
    return {
        "number": number,
        "id": record.id,
        "about": ", ".join(filter(None, (length, verdict))),
        "responses": [_shortened(text_of(comparison.responses[at])) for at in named],
        "trust": trust,
        "detail": record.detail,
        "messages": [*_messages(record, comparison, ranks)] if shown else [],
        "ranked": [(rank, f"{one.weight:+.2f}", _text(one, comparison)) for one, rank in ranks.items()]
        if shown
        else [],
        "map": _map(record) if shown else [],
    }


def _messages(
    record: AttributionRecord, comparison: Comparison, ranks: Mapping[SentenceWeight, int]
) -> Iterator[tuple[str, list[_Piece]]]:
    """The prompt, message by message, in pieces."""
    largest = max(abs(one.weight) for one in record.sentences)
    for number, message in enumerate(comparison.prompt):
        text, place, pieces = message_text(message), 0, list[_Piece]()
        held = [one for one in record.sentences if one.message == number]
        for weighed, run in groupby(held, key=lambda one: bool(one.weight)):
            for piece, end in _run([*run], text, weighed, largest, ranks):
                pieces += [_Piece(text[place : piece.start])] if piece.start > place else []
                pieces.append(end)
                place = piece.end
        pieces += [_Piece(text[place:])] if place < len(text) else []
        yield str(message.get("role", "")), pieces


def _run(
    sentences: Sequence[SentenceWeight],
    text: str,
    weighed: bool,
    largest: float,
    ranks: Mapping[SentenceWeight, int],
) -> Iterator[tuple[SentenceWeight, _Piece]]:
    """The sentences of a run that all have weight, or that all have none, with what is shown of each."""
    if weighed:
        for one in sentences:
            step = max(1, round(_STEPS * abs(one.weight) / largest))
            mark = f"{'up' if one.weight > 0 else 'down'}-{step}"
            yield one, _Piece(text[one.start : one.end], mark, ranks.get(one, 0), f"{one.weight:+.2f}")
        return
    inner = range(_BESIDE, len(sentences) - _BESIDE) if len(sentences) > _FOLDED else range(0)
    for at, one in enumerate(sentences):
        if at not in inner:
            yield one, _Piece(text[one.start : one.end])
        elif at == inner[0]:
            last = sentences[inner[-1]]
            whole = SentenceWeight(one.message, one.start, last.end, 0.0)
            yield whole, _Piece(text[one.start : last.end], folded=f"{len(inner):,} sentences without weight")


def _map(record: AttributionRecord) -> list[tuple[float, float, str]]:
    """Where the sentences with weight stand: their beginning and width in percent of the context, and their mark."""
    total = sum(one.end - one.start for one in record.sentences)
    largest, place, found = max(abs(one.weight) for one in record.sentences), 0, []
    for one in record.sentences:
        size = one.end - one.start
        if one.weight:
            step = max(1, round(_STEPS * abs(one.weight) / largest))
            mark = f"{'up' if one.weight > 0 else 'down'}-{step}"
            found.append((100 * place / total, max(0.4, 100 * size / total), mark))
        place += size
    return found


def _text(sentence: SentenceWeight, comparison: Comparison) -> str:
    return message_text(comparison.prompt[sentence.message])[sentence.start : sentence.end].strip()


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_RESPONSE else f"{text[:_LONGEST_RESPONSE]} …"
