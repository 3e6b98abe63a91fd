"""Sums up one evaluation as plain JSON; `runs/summary.schema.json` describes the result."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from longrm.evaluation.diagnosis import Boundary, boundary_of
from longrm.evaluation.metrics import RESAMPLES, chance_of, table_metrics
from longrm.evaluation.scoring import has_gold_order
from longrm.evaluation.table import MetricName, ScoreTable
from longrm.runs.folder import SCHEMA_VERSION
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome

DEPTH_BINS = ("0.0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1.0")
"""Depth 1 belongs to the last bin; every other edge to the bin above it."""


def summarize(
    records: Sequence[JudgmentRecord],
    *,
    model: str,
    bench: str,
    seed: int = 0,
    resamples: int = RESAMPLES,
    tau: float | None = None,
) -> dict[str, Any]:
    """Counts, metrics with intervals, and the context boundary of one model on one benchmark.

    Args:
        records: All judgments of the run.
        model: The reward model's name.
        bench: The benchmark's name.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
        tau: Level that defines the boundary; (1 + chance) / 2 if None.

    Returns:
        A dictionary of JSON values. `complete` is false where a record is an error. Buckets without a scored
        record have metrics of null with n = 0.

    Raises:
        ValueError: If a depth lies outside [0, 1], tau outside (0, 1), or an answer does not fit its gold.
    """
    table = ScoreTable.of(records)
    outcomes = Counter(record.outcome for record in records)
    boundary = boundary_of(table, tau=tau, seed=seed, resamples=resamples)

    def measured(part: ScoreTable) -> dict[MetricName, dict[str, Any]]:
        # Buckets report the metrics of the whole, so that every bucket has the same keys.
        found = table_metrics(part, table.names(), seed=seed, resamples=resamples)
        return {name: asdict(metric) for name, metric in found.items()}

    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "evaluation",
        "model": model,
        "bench": bench,
        "complete": not outcomes[Outcome.ERROR],
        "counts": {
            "comparisons": len(records),
            "groups": len({record.group for record in records}),
            "outcomes": {outcome.value: outcomes[outcome] for outcome in Outcome},
            "without_gold": sum(not has_gold_order(record) for record in records),
        },
        "chance": {name: chance_of(table, name) for name in table.names()} if table.size.size else {},
        "metrics": _bucketed(records, table, measured),
        "boundary": None if boundary is None else _boundary(boundary),
    }


def _bucketed(
    records: Sequence[JudgmentRecord],
    table: ScoreTable,
    measured: Callable[[ScoreTable], dict[MetricName, dict[str, Any]]],
) -> dict[str, Any]:
    lengths = sorted({record.length for record in records if record.length is not None})
    depths = {(record.length, _depth_bin(record)) for record in records if record.depth is not None}

    def by_depth(part: ScoreTable, used: Iterable[int]) -> dict[str, Any]:
        place = np.minimum(part.depth * len(DEPTH_BINS), len(DEPTH_BINS) - 1)
        return {
            DEPTH_BINS[index]: measured(part.subset((place >= index) & (place < index + 1)))
            for index in sorted(set(used))
        }

    by_length = {length: table.subset(table.length == length) for length in lengths}
    return {
        "overall": measured(table),
        "by_length": {str(length): measured(part) for length, part in by_length.items()},
        "by_depth": by_depth(table, (index for _, index in depths)),
        "by_length_and_depth": {
            str(length): by_depth(part, (index for at, index in depths if at == length))
            for length, part in by_length.items()
            if any(at == length for at, _ in depths)
        },
    }


def _depth_bin(record: JudgmentRecord) -> int:
    assert record.depth is not None, "only known depths have a bin"
    if not 0 <= record.depth <= 1:
        raise ValueError(f"record {record.id!r} has depth {record.depth}; a depth is a fraction from 0 to 1")
    return min(int(record.depth * len(DEPTH_BINS)), len(DEPTH_BINS) - 1)


def _boundary(boundary: Boundary) -> dict[str, Any]:
    effective = {str(length): n for length, n in boundary.effective_n.items()}
    return asdict(boundary) | {"effective_n": effective}
