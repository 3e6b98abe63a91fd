"""What the attributions of many comparisons say together."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from longrm.attribution.attribution_records import AttributionRecord
from longrm.evaluation.estimates import RESAMPLES, ratio
from longrm.evaluation.summaries import DEPTH_BINS, AttributionPart, AttributionSummary, DepthBin, depth_bin
from longrm.runs.records import UNDEFINED, Estimate

_SHARES: dict[str, Callable[[AttributionRecord], float | None]] = {
    "shown": lambda one: None if one.trust is None else float(one.trust.shown),
    "lds": lambda one: None if one.trust is None else one.trust.lds,
    "evidence_auc": lambda one: None if one.evidence is None else one.evidence.auc,
    "evidence_recall": lambda one: None if one.evidence is None else one.evidence.recall,
    "evidence_share": lambda one: None if one.evidence is None else one.evidence.share,
}


def summary_of(records: Sequence[AttributionRecord], model: str, bench: str, seed: int) -> AttributionSummary:
    """Sums attributions up, overall and by length, depth and verdict, with cluster-bootstrap intervals."""
    lengths: dict[str, list[AttributionRecord]] = defaultdict(list)
    depths: dict[DepthBin, list[AttributionRecord]] = defaultdict(list)
    verdicts: dict[Literal["right", "wrong"], list[AttributionRecord]] = defaultdict(list)
    for one in sorted(records, key=lambda one: (one.length or 0, one.depth or 0.0)):
        if one.length is not None:
            lengths[str(one.length)].append(one)
        if one.depth is not None:
            depths[depth_bin(one.depth)].append(one)
        if one.right is not None:
            verdicts["right" if one.right else "wrong"].append(one)
    return AttributionSummary(
        model=model,
        bench=bench,
        comparisons=len(records),
        explained=sum(one.trust is not None for one in records),
        prompts=sum(one.prompts for one in records),
        tokens_computed=sum(one.tokens_computed for one in records),
        overall=_part(records, seed),
        by_length={length: _part(some, seed) for length, some in lengths.items()},
        by_depth={depth: _part(depths[depth], seed) for depth in DEPTH_BINS if depth in depths},
        by_verdict={verdict: _part(some, seed) for verdict, some in verdicts.items()},
    )


def _part(records: Sequence[AttributionRecord], seed: int) -> AttributionPart:
    return AttributionPart(**{name: _mean(records, read, seed) for name, read in _SHARES.items()})


def _mean(
    records: Sequence[AttributionRecord], read: Callable[[AttributionRecord], float | None], seed: int
) -> Estimate:
    known = [(value, one.group) for one in records if (value := read(one)) is not None]
    if not known:
        return UNDEFINED
    values = np.array([value for value, _ in known])
    codes = np.unique([group for _, group in known], return_inverse=True)[1]
    span = (-1.0, 1.0) if values.min() < 0 else (0.0, 1.0)
    return ratio(values, np.ones(len(known)), codes, span=span, seed=seed, resamples=RESAMPLES)
