"""The metrics by length, depth, task and subtype, and their unweighted means over tasks and lengths."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from longrm.evaluation.intervals import IntArray, bootstrap_interval
from longrm.evaluation.metrics import SHARE, UNDEFINED, Metric, ratio_replicates, table_metrics
from longrm.evaluation.scoring import is_scored
from longrm.evaluation.table import PAIR_METRICS, MetricName, ScoreTable, codes_of
from longrm.runs.records import JudgmentRecord

DEPTH_BINS = ("0.0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1.0")
"""Depth 1 belongs to the last bin; every other edge to the bin above it."""

BEST_OF = ("2", "3", "4")
"""The subtypes by which Long-RewardBench tells its rankings from its pairs."""

Measure = Callable[[ScoreTable], dict[str, Any]]


def breakdown(
    records: Sequence[JudgmentRecord], table: ScoreTable, *, seed: int, resamples: int
) -> dict[str, Any]:
    """Metrics over everything and over every bucket that a record falls into.

    Args:
        records: All judgments of a run.
        table: The same, scored.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.

    Returns:
        A dictionary of JSON values. Every bucket reports the metrics of the whole; one without a scored record
        has metrics of null. `pairs` holds the buckets of the pairs alone where rankings are among the
        comparisons, as the paper's tables want them, else null.

    Raises:
        ValueError: If a depth lies outside [0, 1].
    """
    measured = _measure(table.names(), seed, resamples)
    lengths = sorted({record.length for record in records if record.length is not None})
    scored = [record for record in records if is_scored(record)]
    task = np.array([record.task for record in scored])
    subtype = np.array([record.subtype for record in scored])
    by_task = {name: table.subset(task == name) for name in sorted({r.task for r in records} - {""})}
    subtypes = sorted({r.subtype for r in records} - {""})
    return {
        "overall": measured(table),
        "by_length": _by_length(table, lengths, measured),
        **_by_depth(records, table, lengths, measured),
        "by_task": {name: measured(part) for name, part in by_task.items()},
        "by_subtype": {name: measured(table.subset(subtype == name)) for name in subtypes},
        "by_task_and_length": {
            name: _by_length(
                part, sorted({r.length for r in records if r.task == name and r.length}), measured
            )
            for name, part in by_task.items()
        },
        "macro": _macro(scored, table, seed, resamples),
        "pairs": _pairs(scored, table, seed, resamples),
    }


def _measure(names: Sequence[MetricName], seed: int, resamples: int) -> Measure:
    def measured(part: ScoreTable) -> dict[str, Any]:
        found = table_metrics(part, names, seed=seed, resamples=resamples)
        return {name: asdict(metric) for name, metric in found.items()}

    return measured


def _by_length(table: ScoreTable, lengths: Iterable[int], measured: Measure) -> dict[str, Any]:
    return {str(length): measured(table.subset(table.length == length)) for length in lengths}


def _by_depth(
    records: Sequence[JudgmentRecord], table: ScoreTable, lengths: Sequence[int], measured: Measure
) -> dict[str, Any]:
    depths = {(record.length, _depth_bin(record)) for record in records if record.depth is not None}

    def binned(part: ScoreTable, used: Iterable[int]) -> dict[str, Any]:
        place = np.minimum(part.depth * len(DEPTH_BINS), len(DEPTH_BINS) - 1)
        return {
            DEPTH_BINS[index]: measured(part.subset((place >= index) & (place < index + 1)))
            for index in sorted(set(used))
        }

    return {
        "by_depth": binned(table, (index for _, index in depths)),
        "by_length_and_depth": {
            str(length): binned(
                table.subset(table.length == length), (index for at, index in depths if at == length)
            )
            for length in lengths
            if any(at == length for at, _ in depths)
        },
    }


def _depth_bin(record: JudgmentRecord) -> int:
    assert record.depth is not None, "only known depths have a bin"
    if not 0 <= record.depth <= 1:
        raise ValueError(f"record {record.id!r} has depth {record.depth}; a depth is a fraction from 0 to 1")
    return min(int(record.depth * len(DEPTH_BINS)), len(DEPTH_BINS) - 1)


def _macro(scored: Sequence[JudgmentRecord], table: ScoreTable, seed: int, resamples: int) -> dict[str, Any]:
    """Unweighted means over tasks and over lengths of what accuracy means here; the overall figure is micro."""
    tasks, known = codes_of(record.task for record in scored), np.array([bool(r.task) for r in scored], bool)
    return {
        "by_task": asdict(_mean_of_parts(table.subset(known), tasks[known], seed, resamples)),
        "by_length": asdict(
            _mean_of_parts(table.subset(table.length > 0), table.length[table.length > 0], seed, resamples)
        ),
    }


def _mean_of_parts(table: ScoreTable, part: IntArray, seed: int, resamples: int) -> Metric:
    """The mean over parts of their accuracies; a part that a resample missed is left out of that one's mean."""
    if not part.size:
        return UNDEFINED
    weight = (part[:, None] == np.unique(part)).astype(np.float64)
    total = weight * table.order["top1"][:, None]
    value = float((total.sum(axis=0) / weight.sum(axis=0)).mean())
    parts = ratio_replicates(total, weight, table.group, seed=seed, resamples=resamples)
    limits = bootstrap_interval(value, np.nanmean(parts, axis=1), table.groups, SHARE)
    return Metric(value, *limits, part.size, table.groups)


def _pairs(
    scored: Sequence[JudgmentRecord], table: ScoreTable, seed: int, resamples: int
) -> dict[str, Any] | None:
    is_pair = np.array([len(r.ranks or ()) == 2 and r.subtype not in BEST_OF for r in scored], bool)
    if is_pair.all() or not is_pair.any():
        return None
    pairs, table = [r for r, kept in zip(scored, is_pair, strict=True) if kept], table.subset(is_pair)
    task = np.array([record.task for record in pairs])
    measured = _measure(PAIR_METRICS, seed, resamples)
    return {
        "overall": measured(table),
        "by_task": {name: measured(table.subset(task == name)) for name in sorted({*task.tolist()} - {""})},
        "by_length": _by_length(table, np.unique(table.length[table.length > 0]).tolist(), measured),
        "macro": _macro(pairs, table, seed, resamples),
    }
