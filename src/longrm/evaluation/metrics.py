"""What a set of judgments is worth: values with cluster-bootstrap intervals.

`ERROR` records and records without a gold order are left out. Every other record without an answer counts as
wrong, except in the two AUCs, which rank the scores that exist.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np

from longrm.evaluation.area import area_of, area_replicates
from longrm.evaluation.intervals import FloatArray, IntArray, bootstrap_interval, cluster_weights, wilson
from longrm.evaluation.table import ORDER_METRICS, MetricName, ScoreTable
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome

RESAMPLES = 2000
"""Bootstrap resamples of every interval, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A value with its 95% interval.

    Attributes:
        value: The metric as a fraction; None where it is undefined (n = 0).
        low: Lower limit; None where undefined.
        high: Upper limit; None where undefined.
        n: What the value is a mean over: gold-ordered pairs in `pair_accuracy` and `auc_margin`, responses in
            `auc_pooled`, askings or pairs where a metric says so, comparisons elsewhere.
        groups: Independent groups behind it.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    groups: int


SHARE = (0.0, 1.0)
"""The span of a share."""

UNDEFINED = Metric(None, None, None, 0, 0)
"""The metric of nothing."""


def metrics_for(
    records: Sequence[JudgmentRecord], *, seed: int = 0, resamples: int = RESAMPLES
) -> dict[MetricName, Metric]:
    """Every metric of the records: all seven where some comparison has N > 2 responses, else `PAIR_METRICS`.

    Intervals are those of `bootstrap_interval` over `group`; Wilson's where every group is a single comparison
    and the metric a share of 0/1 outcomes; `unanimity_bounds` where all groups agree.
    """
    table = ScoreTable.of(records)
    return table_metrics(table, table.names(), seed=seed, resamples=resamples)


def table_metrics(
    table: ScoreTable, names: Sequence[MetricName], *, seed: int, resamples: int
) -> dict[MetricName, Metric]:
    """Some metrics of records that are already scored."""
    return {name: metric_of(table, name, seed=seed, resamples=resamples) for name in names}


def main_metric(summary: Mapping[str, Any]) -> MetricName:
    """What accuracy means in a run: top-1 where a comparison has more than two responses, else of pairs.

    The column `top1` of a table holds it for every row, for with two responses both are one.
    """
    return "top1" if "top1" in summary["metrics"]["overall"] else "pair_accuracy"


def chance_of(table: ScoreTable, name: MetricName) -> float:
    """Chance level of one metric, averaged as the metric itself is."""
    if name == "auc_margin" or name == "auc_pooled":
        return 0.5
    return float(table.chance[name].sum() / table.weight(name).sum())


def metric_of(table: ScoreTable, name: MetricName, *, seed: int, resamples: int) -> Metric:
    """One metric of a table with its interval."""
    if name == "auc_margin" or name == "auc_pooled":
        table = table.with_area(name)
        if not table.size.size:
            return UNDEFINED
        value, n = value_of(table, name)
        drawn = replicates_of(table, name, seed=seed, resamples=resamples)
        return Metric(value, *bootstrap_interval(value, drawn, table.groups, (0.0, 1.0)), n, table.groups)
    match name:
        case "kendall_tau":
            span = (-1.0, 1.0)
        case "pair_accuracy" | "top1" | "exact_order" | "position_match":
            span = SHARE
        case unknown:
            assert_never(unknown)
    return ratio(
        table.order[name], table.weight(name), table.group, span=span, seed=seed, resamples=resamples
    )


def ratio(
    total: FloatArray,
    weight: FloatArray,
    group: IntArray,
    *,
    span: tuple[float, float] = SHARE,
    seed: int,
    resamples: int,
) -> Metric:
    """The sum of totals over the sum of weights, with its interval; rows without weight are left out.

    Args:
        total: What each row adds above.
        weight: What each row adds below, 1 in a plain mean.
        group: The code of each row's group.
        span: Smallest and largest value that the ratio can take.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
    """
    kept = weight > 0
    if not kept.any():
        return UNDEFINED
    total, weight = total[kept], weight[kept]
    groups, group = np.unique(group[kept], return_inverse=True)
    value, n = float(total.sum() / weight.sum()), round(weight.sum())
    if span == SHARE and _independent_outcomes(total, weight, groups.size):
        return Metric(value, *wilson(value, n), n, groups.size)
    drawn = ratio_replicates(total, weight, group.astype(np.int64), seed=seed, resamples=resamples)
    return Metric(value, *bootstrap_interval(value, drawn, groups.size, span), n, groups.size)


def ratio_replicates(
    total: FloatArray, weight: FloatArray, group: IntArray, *, seed: int, resamples: int
) -> FloatArray:
    """A ratio on every cluster-bootstrap resample of the groups 0 .. max, [resamples].

    Totals and weights may have further axes behind that of the rows: ratios on the same resamples, then
    [resamples, ...]. Where a resample drew no weight, the ratio is not a number.
    """
    groups = int(group.max()) + 1
    columns = np.stack([total, weight], axis=-1).reshape(group.size, -1)
    sums = np.stack([np.bincount(group, column, groups) for column in columns.T], axis=1)
    weights = cluster_weights(groups, resamples, seed)
    drawn = np.empty((resamples, sums.shape[1]))
    for start in range(0, resamples, 256):
        # In float64, counts and halves add up exactly, so that unanimity shows as such.
        drawn[start : start + 256] = weights[start : start + 256].astype(np.float64) @ sums
    above_below = drawn.reshape(resamples, *total.shape[1:], 2)
    with np.errstate(invalid="ignore"):
        ratios: FloatArray = above_below[..., 0] / above_below[..., 1]
    return ratios


def value_of(table: ScoreTable, name: MetricName) -> tuple[float, int]:
    """The value of a metric on a table with rows for it, and the n it is a mean over."""
    if name == "auc_margin" or name == "auc_pooled":
        sample = table.area[name]
        n = sample.positive.size + (sample.negative.size if name == "auc_pooled" else 0)
        return area_of(sample), n
    weight = table.weight(name)
    return float(table.order[name].sum() / weight.sum()), round(weight.sum())


def replicates_of(table: ScoreTable, name: MetricName, *, seed: int, resamples: int) -> FloatArray:
    """A metric on every cluster-bootstrap resample of the table's groups, [resamples]."""
    if name == "auc_margin" or name == "auc_pooled":
        weights = cluster_weights(table.groups, resamples, seed)
        return area_replicates(table.area[name], table.group, weights)
    return ratio_replicates(
        table.order[name], table.weight(name), table.group, seed=seed, resamples=resamples
    )


def paired_difference(
    a_records: Sequence[JudgmentRecord],
    b_records: Sequence[JudgmentRecord],
    metric: MetricName = "pair_accuracy",
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Metric:
    """Metric of `a` minus metric of `b` on the same comparisons, with both resampled together.

    A comparison that either side could not score (an error; in the AUCs, no scores) is left out of both.

    Raises:
        ValueError: If the two sides do not hold the same comparisons.
    """
    pairs = [
        (one, two)
        for one, two in _matched(a_records, b_records)
        if Outcome.ERROR not in (one.outcome, two.outcome)
        and (metric in ORDER_METRICS or (_has_scores(one) and _has_scores(two)))
    ]
    a, b = (ScoreTable.of([pair[side] for pair in pairs]) for side in (0, 1))
    if not a.size.size:
        return UNDEFINED
    (value_a, n), (value_b, _) = value_of(a, metric), value_of(b, metric)
    drawn_a, drawn_b = (replicates_of(t, metric, seed=seed, resamples=resamples) for t in (a, b))
    reach = 2.0 if metric == "kendall_tau" else 1.0
    value = value_a - value_b
    limits = bootstrap_interval(value, drawn_a - drawn_b, a.groups, (-reach, reach))
    return Metric(value, *limits, n, a.groups)


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


def _has_scores(record: JudgmentRecord) -> bool:
    return record.outcome is Outcome.ANSWERED and bool(record.scores)


def _independent_outcomes(total: FloatArray, weight: FloatArray, groups: int) -> bool:
    """Whether Wilson's interval applies: every group is a single 0/1 outcome."""
    return groups == total.size and bool((weight == 1).all() and np.isin(total, (0.0, 1.0)).all())
