"""What is shown of an attribution: shaded sentences, a strip by depth, the strongest sentences, and the trust checks.

`attribution_map` serves the terminal, the report's browser of comparisons, and the page of `longrm attribute --html`,
which `write_attribution` makes.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from longrm.attribution.records import AttributionRecord, SentenceWeight, Trust, is_evidence
from longrm.evaluation.attention_table import ATTENTION_MEASURES, AttentionTableRow
from longrm.evaluation.summaries import AttributionSummary
from longrm.reading import cut, short_name, visible
from longrm.report.formatting import (
    MISSING,
    count,
    decimal,
    few,
    few_note,
    html_page,
    interval,
    listed,
    percent,
    plural,
)
from longrm.report.tables import attribution_parts
from longrm.runs.folder import write_file
from longrm.runs.records import ExampleRecord
from longrm.types import Comparison, message_text, text_of

FAINTEST = 0.03  # of the largest weight: smaller ones are neither shaded nor drawn
_RANKED, _NUMBERED = 10, 5  # sentences in the list, and of those the ones that the text numbers
# The strip is 1,000 by 60 units: the line, the highest bar above or below it, and the narrowest visible bar.
_MIDDLE, _HIGHEST, _NARROWEST = 27, 25, 2.0


def attribution_map(record: AttributionRecord, texts: Comparison | ExampleRecord) -> dict[str, Any]:
    """What is shown of one attribution; without trust, only `reason`, `facts` and `trust` have contents.

    Args:
        record: The attribution.
        texts: The comparison that it explains, for its prompt and evidence.

    Returns:
        `reason`: why no map is shown, else empty. `shaded`: sentences with weight in reading order, with `message`,
        `start` and `end` in characters, `share` (percent of the largest weight, negative where it lowers the score),
        `weight` as text, `rank` among the strongest from 1 (None beyond ten) and `numbered`. `bars`: the same on the
        strip, with `left`, `width`, `top`, `height` and `raises`. `evidence`: `left` and `width` of the evidence.
        `ranked`: the strongest, with `text`, `weight`, `raises`, `depth` and `evidence`. `facts`: names and values.
        `tops` and `trust`: columns and rows of the table of trust checks. `redundant`: sentences that say
        the same.
    """
    trust = record.trust
    shown = trust is not None and trust.shown
    sentences = record.sentences
    largest = max((abs(one.weight) for one in sentences), default=0.0) or 1.0
    heavy = [one for one in sentences if abs(one.weight) >= FAINTEST * largest] if shown else []
    strongest = sorted(heavy, key=lambda one: -abs(one.weight))
    ranks = {one: rank for rank, one in enumerate(strongest, 1)}
    places = _strip_places(sentences)

    shaded, bars = [], []
    for one in heavy:
        share, rank = one.weight / largest, ranks[one]
        shaded.append(
            {
                "message": one.message,
                "start": one.start,
                "end": one.end,
                "share": round(100 * share),
                "weight": _signed(one.weight),
                "rank": rank if rank <= _RANKED else None,
                "numbered": rank <= _NUMBERED,
            }
        )
        left, width = places[one]
        top = _MIDDLE - _HIGHEST * max(share, 0.0)
        bars.append(
            {"left": left, "width": width, "top": top, "height": _HIGHEST * abs(share), "raises": share > 0}
        )
    ranked = [
        {
            "text": cut(message_text(texts.prompt[one.message])[one.start : one.end].strip()),
            "weight": _signed(one.weight),
            "raises": one.weight > 0,
            "depth": decimal(places[one][0] / 1000),
            "evidence": is_evidence(one.span, texts.evidence),
        }
        for one in strongest[:_RANKED]
    ]
    evidence = [places[one] for one in sentences if shown and is_evidence(one.span, texts.evidence)]
    found: dict[str, Any] = {
        "reason": "" if shown else trust.reason if trust is not None else record.detail,
        "shaded": shaded,
        "bars": bars,
        "evidence": [{"left": left, "width": width} for left, width in evidence],
        "ranked": ranked,
        "facts": [],
        "tops": [],
        "trust": [],
        "redundant": "",
    }
    if trust is not None:
        tops = trust.tops
        found["facts"] = [
            ("Lead", decimal(trust.score)),
            ("Deviation from random heads", decimal(trust.head_deviation)),
            ("Fit on fresh prompts (LDS)", decimal(trust.lds)),
        ]
        found["tops"] = [top.k for top in tops]
        found["trust"] = [
            ("drop without these sentences", [decimal(top.drop) for top in tops]),
            ("drop without random others", [decimal(top.drop_random) for top in tops]),
            ("drop without their neighbors", [decimal(top.drop_placebo) for top in tops]),
            ("lead with these sentences only", [decimal(top.only) for top in tops]),
        ]
        if shown:
            found["redundant"] = _redundant(sentences, trust, ranks)
    return found


def _strip_places(sentences: Sequence[SentenceWeight]) -> dict[SentenceWeight, tuple[float, float]]:
    """Left end and width of each sentence on the strip, in thousandths of the context's characters."""
    total = sum(one.end - one.start for one in sentences)
    places, before = {}, 0
    for one in sentences:
        size = one.end - one.start
        places[one] = 1000 * before / total, max(1000 * size / total, _NARROWEST)
        before += size
    return places


def _redundant(sentences: Sequence[SentenceWeight], trust: Trust, ranks: Mapping[SentenceWeight, int]) -> str:
    groups = [
        " with ".join(str(ranks.get(sentences[index], "one without weight")) for index in group)
        for group in trust.redundant
    ]
    if not groups:
        return ""
    return (
        f"These say the same: {listed(groups)}. The lead falls only without all of them, so their weights may be too "
        "small."
    )


def _signed(weight: float) -> str:
    return f"{'+' if weight > 0 else ''}{decimal(weight)}"


# --- The page of `longrm attribute --html` ---

_OPEN = 2  # sentences without weight that stay open next to those with weight
_SHORTEST_FOLD = 4  # sentences; fewer are not worth a click


def write_attribution(
    out: Path,
    summary: AttributionSummary,
    records: Sequence[AttributionRecord],
    comparisons: Mapping[str, Comparison],
    attention: Sequence[AttentionTableRow] = (),
) -> None:
    """Writes the page, and the figures of attention as SVG and PNG into `<stem of out>-figures/` next to it."""
    section = None
    if attention:
        from longrm.report import charts  # here, because drawing needs the extra `report`

        figures = charts.attention(attention)
        for figure in figures:
            file = out.with_name(f"{out.stem}-figures") / figure.name
            write_file(file.with_suffix(".svg"), figure.alone)
            write_file(file.with_suffix(".png"), figure.png())
        n = {
            right: max((r.value.n for r in attention if r.right == right), default=0)
            for right in (True, False)
        }
        section = {
            "figures": figures,
            "regions": charts.region_styles(attention),
            "measures": {title: ATTENTION_MEASURES[name] for name, title in charts.ATTENTION_TITLES.items()},
            "judged": f"{plural(n[True], 'comparison')} judged right, {n[False]:,} wrong",
            "few_note": few_note(few(row.value.groups) for row in attention),
        }
    write_file(out, attribution_page(summary, records, comparisons, section))


def attribution_page(
    summary: AttributionSummary,
    records: Sequence[AttributionRecord],
    comparisons: Mapping[str, Comparison],
    attention: Mapping[str, Any] | None = None,
) -> str:
    """The page of these attributions. It loads nothing, and equal runs give equal bytes."""
    rows = []
    for name, part in attribution_parts(summary).items():
        estimates = (part.shown, part.evidence_auc, part.evidence_share)
        rows.append((name, [(percent(one.value), interval(one)) for one in estimates]))
    page = html_page(
        "report/attribution.html.j2",
        command="longrm attribute",
        title=f"Why {short_name(summary.model)} prefers a response",
        heading="Why this score",
        model=short_name(summary.model),
        bench=short_name(summary.bench),
        cost=f"{plural(summary.prompts, 'prompt')}, {count(summary.tokens_computed)} tokens computed",
        rows=rows,
        attention=attention,
        few_note=few_note(limits for _, cells in rows for _, limits in cells),
        explained=[_explained(record, comparisons[record.id]) for record in records],
    )
    return visible(page)  # control characters of the data, such as bidirectional overrides, become escapes


def _explained(record: AttributionRecord, comparison: Comparison) -> dict[str, Any]:
    """What the template prints of one comparison."""
    shown = attribution_map(record, comparison)
    tied = record.trust is not None and not record.trust.score
    right = "tied" if tied else {None: MISSING, True: "right", False: "wrong"}[record.right]
    facts = [
        ("Tokens", count(record.length)),
        ("Depth of the evidence", decimal(record.depth)),
        ("Judged", right),
    ]
    question = comparison.question
    # The two responses of the lead, and the gold one if it is neither.
    roles = {record.target.response: "tied" if tied else "which the model prefers"}
    if record.target.against is not None:
        roles[record.target.against] = "tied" if tied else "to which it is preferred"
    ranks = comparison.ranks or ()
    gold = [index for index, rank in enumerate(ranks) if rank == min(ranks) < max(ranks)]
    responses = [
        {
            "number": index + 1,
            "role": roles.get(index, ""),
            "gold": index in gold,
            "text": text_of(comparison.responses[index]),
        }
        for index in dict.fromkeys((*roles, *gold))
    ]
    return {
        "id": record.id,
        "map": shown,
        "facts": [*facts, *shown["facts"]],
        "question": message_text(comparison.prompt[question.message])[question.start : question.end]
        if question
        else "",
        "responses": responses,
        "pieces": _pieces(record.sentences, comparison, shown["shaded"]),
    }


def _pieces(
    sentences: Sequence[SentenceWeight], comparison: Comparison, shaded: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The context in reading order: shaded sentences one by one, and runs without weight, of which long ones fold."""
    shades = {(one["message"], one["start"]): one for one in shaded}
    contents = [message_text(message) for message in comparison.prompt]
    texts, gaps = [], []
    for one, following in zip(sentences, [*sentences[1:], None], strict=True):
        texts.append(contents[one.message][one.start : one.end])
        adjacent = following is None or (one.message, one.end) == (following.message, following.start)
        gaps.append("" if adjacent else "\n[…]\n")  # text of the prompt that is not context is left out
    pieces: list[dict[str, Any]] = []

    def add(indices: Sequence[int], folded: int = 0) -> None:
        text = "".join(texts[index] + gaps[index] for index in indices)
        if text:
            pieces.append({"text": text, "shade": None, "folded": folded, "after": ""})

    for heavy, run in groupby(
        range(len(sentences)), key=lambda index: (sentences[index].message, sentences[index].start) in shades
    ):
        indices = list(run)
        if heavy:
            for index in indices:
                # The number of a sentence stays before the line break that ends it.
                text = texts[index].rstrip()
                after = texts[index][len(text) :] + gaps[index]
                shade = shades[sentences[index].message, sentences[index].start]
                pieces.append({"text": text, "shade": shade, "folded": 0, "after": after})
        elif len(indices) - 2 * _OPEN < _SHORTEST_FOLD:
            add(indices)
        else:
            add(indices[:_OPEN])
            add(indices[_OPEN:-_OPEN], folded=len(indices) - 2 * _OPEN)
            add(indices[-_OPEN:])
    return pieces
