"""How an attribution is shown: shaded sentences, a strip by depth, the strongest sentences, and the trust checks.

`attribution_map` serves the terminal and the report's browser of comparisons.
"""

from typing import Any

from longrm.attribution.records import AttributionRecord, SentenceWeight, is_evidence
from longrm.reading import cut
from longrm.reporting.formatting import decimal, listed
from longrm.runs.records import ExampleRecord
from longrm.types import Comparison, message_text

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
