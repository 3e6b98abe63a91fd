"""How an attribution is shown: shaded sentences, a strip by depth, the strongest sentences, and the trust checks.

`attribution_map` serves the terminal, the report's browser of comparisons, and the page of `longrm attribute --html`,
which `write_attribution` makes.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from longrm.attribution.records import AttributionRecord, SentenceWeight, is_evidence
from longrm.evaluation.attention_table import ATTENTION_MEASURES, AttentionTableRow
from longrm.evaluation.summary_schema import AttributionSummary
from longrm.reading import cut, short_name, visible
from longrm.report.formatting import (
    FEW_TERM,
    MISSING,
    count,
    decimal,
    html_page,
    listed,
    plural,
)
from longrm.report.tables import ATTRIBUTION_TERMS, attribution_table
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
        `weight` as text, `rank` among the strongest from 1 (None beyond ten), `numbered`, and `left`, `width`, `top`
        and `height` of its bar on the strip. `evidence`: `left` and `width` of the evidence. `ranked`: the strongest,
        with `text`, `weight`, `raises`, `depth` and `evidence`. `facts`: names and values. `tops` and `trust`: columns
        and rows of the table of trust checks. `redundant`: sentences that say the same.
    """
    trust = record.trust
    if trust is None:
        return {"reason": record.detail, "facts": [], "tops": [], "trust": [], **_no_map()}
    tops = trust.tops
    checks = {
        "facts": [
            ("Lead", decimal(trust.score)),
            ("Deviation from random heads", decimal(trust.head_deviation)),
            ("Fit on fresh prompts (LDS)", decimal(trust.lds)),
        ],
        "tops": [top.k for top in tops],
        "trust": [
            ("drop without these sentences", [decimal(top.drop) for top in tops]),
            ("drop without random others", [decimal(top.drop_random) for top in tops]),
            ("drop without their neighbors", [decimal(top.drop_placebo) for top in tops]),
            ("lead with these sentences only", [decimal(top.only) for top in tops]),
        ],
    }
    if not trust.shown:
        return {"reason": trust.reason, **checks, **_no_map()}

    sentences = record.sentences
    total, before = sum(one.end - one.start for one in sentences), 0
    starts = {}  # of each sentence, as a share of the context's characters
    for one in sentences:
        starts[one] = before / total
        before += one.end - one.start

    def place(one: SentenceWeight) -> dict[str, float]:
        width = max(1000 * (one.end - one.start) / total, _NARROWEST)
        return {"left": round(1000 * starts[one], 1), "width": round(width, 1)}

    largest = max((abs(one.weight) for one in sentences), default=0.0) or 1.0
    heavy = [one for one in sentences if abs(one.weight) >= FAINTEST * largest]
    strongest = sorted(heavy, key=lambda one: -abs(one.weight))
    ranks = {one: rank for rank, one in enumerate(strongest, 1)}
    shaded = []
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
                **place(one),
                "top": round(_MIDDLE - _HIGHEST * max(share, 0.0), 1),
                "height": round(_HIGHEST * abs(share), 1),
            }
        )
    ranked = [
        {
            "text": cut(message_text(texts.prompt[one.message])[one.start : one.end].strip()),
            "weight": _signed(one.weight),
            "raises": one.weight > 0,
            "depth": decimal(starts[one]),
            "evidence": is_evidence(one.span, texts.evidence),
        }
        for one in strongest[:_RANKED]
    ]
    groups = [
        " with ".join(str(ranks.get(sentences[index], "one without weight")) for index in group)
        for group in trust.redundant
    ]
    redundant = (
        f"These say the same: {listed(groups)}. The lead falls only without all of them, so their weights may be too "
        "small."
    )
    return {
        "reason": "",
        **checks,
        "shaded": shaded,
        "evidence": [place(one) for one in sentences if is_evidence(one.span, texts.evidence)],
        "ranked": ranked,
        "redundant": redundant if groups else "",
    }


def _no_map() -> dict[str, Any]:
    return {"shaded": [], "evidence": [], "ranked": [], "redundant": ""}


def _signed(weight: float) -> str:
    return f"{'+' if weight > 0 else ''}{decimal(weight)}"


# --- The page of `longrm attribute --html` ---

_OPEN = 2  # sentences without weight that stay open next to those with weight, and at both ends
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
            figure.write(out.with_name(f"{out.stem}-figures"))
        right, wrong = (
            max((row.value.n for row in attention if row.right == judged), default=0)
            for judged in (True, False)
        )
        section = {
            "figures": figures,
            "regions": charts.region_styles(attention),
            "terms": {title: ATTENTION_MEASURES[name] for name, title in charts.ATTENTION_TITLES.items()},
            "judged": f"{plural(right, 'comparison')} judged right, {wrong:,} wrong",
        }
    write_file(out, attribution_page(summary, records, comparisons, section))


def attribution_page(
    summary: AttributionSummary,
    records: Sequence[AttributionRecord],
    comparisons: Mapping[str, Comparison],
    attention: Mapping[str, Any] | None = None,
) -> str:
    """The page of these attributions. It loads nothing, and equal runs give equal bytes."""
    page = html_page(
        "report/attribution.html.j2",
        command="longrm attribute",
        title=f"Why {short_name(summary.model)} prefers a response",
        heading="Why this score",
        model=short_name(summary.model),
        bench=short_name(summary.bench),
        cost=f"{plural(summary.prompts, 'prompt')}, {count(summary.tokens_computed)} tokens computed",
        weights=attribution_table("Weight on the evidence, with 95% intervals", summary),
        terms=ATTRIBUTION_TERMS | (attention or {}).get("terms", {}) | FEW_TERM,
        browser=None,
        attention=attention,
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
    """The context in reading order: sentences one by one, except runs without weight, which fold."""
    shades = {(one["message"], one["start"]): one for one in shaded}
    # Text, what follows it (a mark where prompt text that is not context was left out), and shade of each sentence.
    parts = []
    for one, following in zip(sentences, [*sentences[1:], None], strict=True):
        text = message_text(comparison.prompt[one.message])[one.start : one.end]
        adjacent = following is None or (one.message, one.end) == (following.message, following.start)
        parts.append((text, "" if adjacent else "\n[…]\n", shades.get((one.message, one.start))))
    anchors = [-1, *(index for index, (*_, shade) in enumerate(parts) if shade), len(parts)]
    near = {index for anchor in anchors for index in range(anchor - _OPEN, anchor + _OPEN + 1)}
    pieces: list[dict[str, Any]] = []
    for far, group in groupby(range(len(parts)), lambda index: index not in near):
        run = [parts[index] for index in group]
        if far and len(run) >= _SHORTEST_FOLD:
            text = "".join(sentence + gap for sentence, gap, _ in run)
            pieces.append({"text": text, "after": "", "shade": None, "folded": len(run)})
            continue
        for text, gap, shade in run:
            bare = text.rstrip()  # the number of a sentence stays before the line break that ends it
            pieces.append({"text": bare, "after": text[len(bare) :] + gap, "shade": shade, "folded": 0})
    return pieces
