"""The metrics by length, depth, task and subtype, and their unweighted means over tasks and lengths."""

from collections.abc import Callable, Iterable, Sequence
from typing import Unpack

import numpy as np

from longrm.evaluation.estimates import bootstrap_interval, estimate_metric
from longrm.evaluation.metrics import TOP1, EvaluationMetric, reported
from longrm.evaluation.metrics.metric import SHARE
from longrm.evaluation.samples import Bootstrap, FloatArray, IntArray
from longrm.evaluation.summaries import (
    DEPTH_BINS,
    DepthBin,
    MacroMeans,
    MetricBreakdown,
    PairBreakdown,
    depth_bin,
)
from longrm.evaluation.table import BEST_OF, ScoreTable, codes_of, is_scored
from longrm.runs.records import UNDEFINED, Estimate, JudgmentRecord

_NO_SPREAD = 1e-9

_Measured = dict[str, Estimate]
_MeasurePart = Callable[[ScoreTable], _Measured]


def breakdown(
    records: Sequence[JudgmentRecord], table: ScoreTable, **drawn: Unpack[Bootstrap]
) -> MetricBreakdown:
    """Metrics over everything and over every bucket that a record falls into; the table is made of the records.

    Returns:
        Every bucket reports the metrics of the whole; one without an answered record has metrics of null. `pairs` holds
        the buckets of the pairs alone where rankings are among the comparisons, as the paper's tables want them.

    Raises:
        ValueError: If a depth lies outside [0, 1].
    """
    measure = _measure(reported(pairs_only=not (table.size > 2).any()), drawn)
    overall = measure(table)  # first, so that every part takes its rows of what was measured here
    lengths = sorted({record.length for record in records if record.length is not None})
    scored = [record for record in records if is_scored(record)]
    task = np.array([record.task for record in scored])
    subtype = np.array([record.subtype for record in scored])
    by_task = {name: table.subset(task == name) for name in sorted({r.task for r in records} - {""})}
    subtypes = sorted({r.subtype for r in records} - {""})
    by_depth, by_length_and_depth = _by_depth(records, table, lengths, measure)
    return MetricBreakdown(
        overall=overall,
        by_length=_by_length(table, lengths, measure),
        by_depth=by_depth,
        by_length_and_depth=by_length_and_depth,
        by_task={name: measure(part) for name, part in by_task.items()},
        by_subtype={name: measure(table.subset(subtype == name)) for name in subtypes},
        by_task_and_length={
            name: _by_length(
                part, sorted({r.length for r in records if r.task == name and r.length}), measure
            )
            for name, part in by_task.items()
        },
        macro=_macro(scored, table, drawn),
        pairs=_pairs(scored, table, drawn),
    )


def _measure(metrics: Sequence[EvaluationMetric], drawn: Bootstrap) -> _MeasurePart:
    return lambda part: {metric.name: estimate_metric(part, metric, **drawn) for metric in metrics}


def _by_length(table: ScoreTable, lengths: Iterable[int], measure: _MeasurePart) -> dict[str, _Measured]:
    return {str(length): measure(table.subset(table.length == length)) for length in lengths}


def _by_depth(
    records: Sequence[JudgmentRecord], table: ScoreTable, lengths: Sequence[int], measure: _MeasurePart
) -> tuple[dict[DepthBin, _Measured], dict[str, dict[DepthBin, _Measured]]]:
    """The metrics by depth, and by length and depth."""
    depths = set()
    for record in records:
        if record.depth is not None:
            if not 0 <= record.depth <= 1:
                raise ValueError(
                    f"record {record.id!r} has depth {record.depth}; a depth is a fraction from 0 to 1"
                )
            depths.add((record.length, depth_bin(record.depth)))

    def binned(part: ScoreTable, used: Iterable[DepthBin]) -> dict[DepthBin, _Measured]:
        place = np.floor(np.minimum(part.depth * len(DEPTH_BINS), len(DEPTH_BINS) - 1))
        return {name: measure(part.subset(place == DEPTH_BINS.index(name))) for name in sorted(set(used))}

    return binned(table, (name for _, name in depths)), {
        str(length): binned(
            table.subset(table.length == length), (name for at, name in depths if at == length)
        )
        for length in lengths
        if any(at == length for at, _ in depths)
    }


def _macro(scored: Sequence[JudgmentRecord], table: ScoreTable, drawn: Bootstrap) -> MacroMeans:
    """Unweighted means over tasks and over lengths of main accuracy; the overall value is micro."""
    tasks, known = codes_of(record.task for record in scored), np.array([bool(r.task) for r in scored], bool)
    bucketed = table.length > 0
    return MacroMeans(
        by_task=_mean_of_parts(table.subset(known), tasks[known], drawn),
        by_length=_mean_of_parts(table.subset(bucketed), table.length[bucketed], drawn),
    )


def _mean_of_parts(table: ScoreTable, part: IntArray, drawn: Bootstrap) -> Estimate:
    """The mean over parts of their accuracies; undefined where a part has no answer.

    Its limits are recovered from those of the parts (Zou and Donner 2008): value - sqrt(d' C d) / P with the distances
    d of the P lower limits from their values and the correlation C of the parts' values, and likewise above. Resampling
    all groups at once would hold a part to be certain in which all groups agree, and takes for granted as many groups
    as all parts have together.
    """
    names, ends = np.unique(part), list[tuple[float, float, float]]()
    # With two responses top-1 and pair accuracy are one, so that it holds main accuracy for every row.
    for own in (table.subset(part == name) for name in names):
        if not own.answered.any():
            return UNDEFINED
        sample = TOP1.sample(own)
        # Not Wilson's limits: they lean to one half, and over several parts that adds up.
        replicates = sample.replicates(own.group, **drawn)
        low, high = bootstrap_interval(sample.value, replicates, own.groups, SHARE)
        ends.append((sample.value, sample.value - low, high - sample.value))
    if not ends:
        return UNDEFINED
    values, *reaches = np.array(ends, np.float64).T
    weight = (part[:, None] == names).astype(np.float64)
    together = _correlation(weight * (TOP1.earned(table)[:, None] - values), table.group)
    # Of a part without spread nothing tells; at worst it goes with another as far as both have the same groups.
    together = np.where(np.isnan(together), _correlation(weight, table.group), together)
    below, above = (float(np.sqrt(max(0.0, reach @ together @ reach))) / names.size for reach in reaches)
    value = float(values.mean())
    return Estimate(value, value - below, value + above, part.size, table.groups)


def _correlation(columns: FloatArray, group: IntArray) -> FloatArray:
    """The correlation of columns by their sums over groups, [columns, columns]; NaN where a column has none."""
    sums = np.stack([np.bincount(group, column) for column in columns.T], axis=1)
    size = np.linalg.norm(sums, axis=0)
    size[size < _NO_SPREAD] = np.nan
    return np.asarray(sums.T @ sums / np.outer(size, size))


def _pairs(scored: Sequence[JudgmentRecord], table: ScoreTable, drawn: Bootstrap) -> PairBreakdown | None:
    is_pair = np.array([len(r.ranks or ()) == 2 and r.subtype not in BEST_OF for r in scored], bool)
    if is_pair.all() or not is_pair.any():
        return None
    pairs, table = [r for r, kept in zip(scored, is_pair, strict=True) if kept], table.subset(is_pair)
    task = np.array([record.task for record in pairs])
    measure = _measure(reported(pairs_only=True), drawn)
    return PairBreakdown(
        overall=measure(table),
        by_task={name: measure(table.subset(task == name)) for name in sorted({*task.tolist()} - {""})},
        by_length=_by_length(table, np.unique(table.length[table.length > 0]).tolist(), measure),
        macro=_macro(pairs, table, drawn),
    )
