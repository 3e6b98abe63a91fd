"""Estimates: values with cluster-bootstrap intervals.

`ERROR` records and records without a gold order are left out. Every other record without an answer counts as
wrong, except in the areas under ROC curves, which rank the scores that exist.
"""

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from longrm.evaluation.intervals import bootstrap_interval, wilson
from longrm.evaluation.metrics import PAIR_ACCURACY, EvaluationMetric, metric_of, reported
from longrm.evaluation.metrics.metric import SHARE
from longrm.evaluation.samples import Bootstrap, FloatArray, IntArray, RatioSample, Sample
from longrm.evaluation.table import ScoreTable
from longrm.runs.records import UNDEFINED, Estimate, JudgmentRecord
from longrm.types import Outcome

RESAMPLES = 2000
"""Bootstrap resamples of every interval by default."""


def metrics_for(
    records: Sequence[JudgmentRecord], *, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Estimate]:
    """Every metric that is reported of the records.

    Intervals are those of `bootstrap_interval` over `group`; Wilson's where every group is a single comparison
    and the metric a share of 0/1 outcomes; `unanimity_bounds` where all groups agree.
    """
    table = ScoreTable.of(records)
    names = reported(pairs_only=not (table.size > 2).any())
    return {metric.name: estimate_metric(table, metric, seed=seed, resamples=resamples) for metric in names}


_ROUNDING = 1e-9


def estimate_metric(table: ScoreTable, metric: EvaluationMetric, **drawn: Unpack[Bootstrap]) -> Estimate:
    """One metric of a table with its interval."""
    rows = table.rows_for(metric.needs)
    sample, group = metric.sample(table), table.group
    if not rows.all():
        sample, group = sample.subset(rows), group[rows]
    found = estimate(sample, group, span=metric.span, **drawn)
    low, high = metric.span
    assert found.value is None or low - _ROUNDING <= found.value <= high + _ROUNDING, (
        f"the metric {metric.name} is {found.value}, outside its span of {low:g} to {high:g}"
    )
    return found


def ratio(
    total: FloatArray,
    weight: FloatArray,
    group: IntArray,
    *,
    span: tuple[float, float] = SHARE,
    **drawn: Unpack[Bootstrap],
) -> Estimate:
    """The sum of totals over the sum of weights (1 in a plain mean), with its interval; see `estimate`."""
    return estimate(RatioSample(total, weight), group, span=span, **drawn)


def estimate(
    sample: Sample, group: IntArray, *, span: tuple[float, float], **drawn: Unpack[Bootstrap]
) -> Estimate:
    """The value of a sample with its interval; rows that it does not use are left out.

    Args:
        sample: What is measured.
        group: The code of each row's group.
        span: Smallest and largest value that it can take.
        drawn: How the interval is drawn.
    """
    used = sample.used
    if not used.any():
        return UNDEFINED
    sample = sample.subset(used)
    groups, group = np.unique(group[used], return_inverse=True)
    value, n = sample.value, sample.n
    if span == SHARE and sample.is_independent(groups.size):
        return Estimate(value, *wilson(value, n), n, groups.size)
    replicates = sample.replicates(group.astype(np.int64), **drawn)
    return Estimate(value, *bootstrap_interval(value, replicates, groups.size, span), n, groups.size)


def paired_difference(
    a_records: Sequence[JudgmentRecord],
    b_records: Sequence[JudgmentRecord],
    name: str = PAIR_ACCURACY.name,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """A metric of `a` minus that of `b` on the same comparisons, with both resampled together.

    A comparison that either side could not score (an error; where the metric needs scores, one without them) is
    left out of both.

    Raises:
        ValueError: If there is no such metric, or the two sides do not hold the same comparisons.
    """
    metric = metric_of(name)
    pairs = [
        pair
        for pair in _matched(a_records, b_records)
        if Outcome.ERROR not in (pair[0].outcome, pair[1].outcome)
    ]
    a, b = (ScoreTable.of([pair[side] for pair in pairs]) for side in (0, 1))
    used = a.rows_for(metric.needs) & b.rows_for(metric.needs)
    if not used.any():
        return UNDEFINED
    if not used.all():
        a, b = a.subset(used), b.subset(used)
    one, two = metric.sample(a), metric.sample(b)
    drawn_a, drawn_b = (sample.replicates(a.group, seed=seed, resamples=resamples) for sample in (one, two))
    reach = metric.span[1] - metric.span[0]
    value = one.value - two.value
    limits = bootstrap_interval(value, drawn_a - drawn_b, a.groups, (-reach, reach))
    return Estimate(value, *limits, one.n, a.groups)


def _matched(
    a_records: Sequence[JudgmentRecord], b_records: Sequence[JudgmentRecord]
) -> list[tuple[JudgmentRecord, JudgmentRecord]]:
    a, b = ({record.id: record for record in side} for side in (a_records, b_records))
    if (len(a), len(b)) != (len(a_records), len(b_records)):
        raise ValueError("a paired difference needs unique ids, but some id occurs twice on one side")
    if a.keys() != b.keys():
        odd = a.keys() ^ b.keys()
        raise ValueError(
            f"a paired difference needs the same comparisons on both sides, but {len(odd)} ids are on one"
            f" side only, such as {min(odd)!r}; evaluate both models on the same data"
        )
    for key, record in a.items():
        if (record.group, record.ranks) != (b[key].group, b[key].ranks):
            raise ValueError(f"record {key!r} has another group or other gold ranks on the two sides")
    return [(record, b[key]) for key, record in a.items()]
