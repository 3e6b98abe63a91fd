"""Metrics by length, depth, task and subtype; unweighted means over tasks and lengths; missing answers by part."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from textwrap import shorten
from typing import Any, Unpack

import numpy as np

from longrm.evaluation.estimates import bootstrap_interval, estimate_metric
from longrm.evaluation.metrics import TOP1, reported
from longrm.evaluation.metrics.metric import SHARE
from longrm.evaluation.summaries import (
    DEPTH_BINS,
    DepthBin,
    MacroMeans,
    MetricBreakdown,
    MissingAnswers,
    PairBreakdown,
    PartAnswers,
    depth_bin,
)
from longrm.evaluation.table import BEST_OF, Bootstrap, FloatArray, IntArray, ScoreTable, codes_of, is_scored
from longrm.runs.records import UNDEFINED, Estimate, JudgmentRecord
from longrm.types import Outcome


def breakdown(
    records: Sequence[JudgmentRecord], table: ScoreTable, **bootstrap: Unpack[Bootstrap]
) -> MetricBreakdown:
    """Metrics over everything and over every part that a record belongs to; the table is that of the records.

    Every part reports the metrics of the whole; they are undefined in a part without an answer. `pairs` has the parts
    of the pairs alone, if there are also rankings: the paper's tables report those.
    """
    metrics = reported(pairs_only=not (table.size > 2).any())

    def measure(part: ScoreTable) -> dict[str, Estimate]:
        return {metric.name: estimate_metric(part, metric, **bootstrap) for metric in metrics}

    def by_length(part: ScoreTable, lengths: Iterable[int]) -> dict[str, dict[str, Estimate]]:
        return {str(length): measure(part.subset(part.length == length)) for length in lengths}

    def by_depth(part: ScoreTable, bins: Iterable[DepthBin]) -> dict[DepthBin, dict[str, Estimate]]:
        place = np.floor(np.minimum(part.depth * len(DEPTH_BINS), len(DEPTH_BINS) - 1))
        return {name: measure(part.subset(place == DEPTH_BINS.index(name))) for name in sorted(set(bins))}

    overall = measure(table)  # first: the parts below take their rows of these samples
    scored = [record for record in records if is_scored(record)]
    lengths = sorted({record.length for record in records if record.length is not None})
    depths: dict[int | None, list[DepthBin]] = defaultdict(list)
    for record in records:
        if record.depth is not None:
            if not 0 <= record.depth <= 1:
                raise ValueError(f"record {record.id!r} has depth {record.depth}, outside [0, 1]")
            depths[record.length].append(depth_bin(record.depth))
    task = np.array([record.task for record in scored])
    subtype = np.array([record.subtype for record in scored])
    by_task = {name: table.subset(task == name) for name in sorted({r.task for r in records} - {""})}
    return MetricBreakdown(
        overall=overall,
        by_length=by_length(table, lengths),
        by_depth=by_depth(table, [name for bins in depths.values() for name in bins]),
        by_length_and_depth={
            str(length): by_depth(table.subset(table.length == length), depths[length])
            for length in lengths
            if length in depths
        },
        by_task={name: measure(part) for name, part in by_task.items()},
        by_subtype={
            name: measure(table.subset(subtype == name))
            for name in sorted({r.subtype for r in records} - {""})
        },
        by_task_and_length={
            name: by_length(part, sorted({r.length for r in records if r.task == name and r.length}))
            for name, part in by_task.items()
        },
        macro=_macro(scored, table, bootstrap),
        pairs=_pairs(scored, table, bootstrap),
    )


def _pairs(scored: Sequence[JudgmentRecord], table: ScoreTable, bootstrap: Bootstrap) -> PairBreakdown | None:
    is_pair = np.array([len(r.ranks or ()) == 2 and r.subtype not in BEST_OF for r in scored], bool)
    if is_pair.all() or not is_pair.any():
        return None
    pairs = [record for record, kept in zip(scored, is_pair, strict=True) if kept]
    table = table.subset(is_pair)
    task = np.array([record.task for record in pairs])

    def measure(part: ScoreTable) -> dict[str, Estimate]:
        return {m.name: estimate_metric(part, m, **bootstrap) for m in reported(pairs_only=True)}

    lengths = np.unique(table.length[table.length > 0]).tolist()
    return PairBreakdown(
        overall=measure(table),
        by_task={name: measure(table.subset(task == name)) for name in sorted({*task.tolist()} - {""})},
        by_length={str(length): measure(table.subset(table.length == length)) for length in lengths},
        macro=_macro(pairs, table, bootstrap),
    )


def _macro(scored: Sequence[JudgmentRecord], table: ScoreTable, bootstrap: Bootstrap) -> MacroMeans:
    """Unweighted means of main accuracy over tasks and over lengths; the overall value is a micro average."""
    tasks, known = codes_of(record.task for record in scored), np.array([bool(r.task) for r in scored], bool)
    bucketed = table.length > 0
    return MacroMeans(
        by_task=_mean_of_parts(table.subset(known), tasks[known], bootstrap),
        by_length=_mean_of_parts(table.subset(bucketed), table.length[bucketed], bootstrap),
    )


def _mean_of_parts(table: ScoreTable, part: IntArray, bootstrap: Bootstrap) -> Estimate:
    """The mean over parts of their accuracies; undefined if a part has no answer.

    Its limits are recovered from those of the parts (Zou and Donner 2008): value - sqrt(d' C d) / P, with the distances
    d of the P lower limits from their values and the correlation C of the parts' values, and likewise above. Resampling
    all groups at once instead would treat a part as certain if all of its groups agree, and would assume as many groups
    as all parts have together.
    """
    names, ends = np.unique(part), list[tuple[float, float, float]]()
    for name in names:
        # Top-1 is main accuracy for every row: on pairs it equals pair accuracy.
        own = table.subset(part == name)
        if not own.answered.any():
            return UNDEFINED
        sample = TOP1.sample(own)
        # Not Wilson's limits: they are pulled towards one half, which adds up over parts.
        replicates = sample.replicates(own.group, **bootstrap)
        low, high = bootstrap_interval(sample.value, replicates, own.groups, SHARE)
        ends.append((sample.value, sample.value - low, high - sample.value))
    if not ends:
        return UNDEFINED
    values, *reaches = np.array(ends, np.float64).T
    member = (part[:, None] == names).astype(np.float64)  # [rows, parts]
    correlation = _correlation(member * (TOP1.earned(table)[:, None] - values), table.group)
    # A part without variance has no correlations. The upper bound is how far two parts consist of the same groups.
    correlation = np.where(np.isnan(correlation), _correlation(member, table.group), correlation)
    below, above = (float(np.sqrt(max(0.0, d @ correlation @ d))) / names.size for d in reaches)
    value = float(values.mean())
    return Estimate(value, value - below, value + above, part.size, table.groups)


def _correlation(columns: FloatArray, group: IntArray) -> FloatArray:
    """The correlation of columns by their sums over groups, [columns, columns]; NaN for a column of zeros."""
    sums = np.stack([np.bincount(group, column) for column in columns.T], axis=1)
    size = np.linalg.norm(sums, axis=0)
    size[size < 1e-9] = np.nan
    return np.asarray(sums.T @ sums / np.outer(size, size))


def missing_answers(records: Sequence[JudgmentRecord]) -> MissingAnswers:
    """Every part in which some comparison was not answered, errors included, with the reasons.

    Without this, a part that has no answers would look like one that is all wrong.
    """

    def parts(key: Callable[[JudgmentRecord], Hashable]) -> dict[Any, PartAnswers]:
        """The incomplete parts, in ascending order; a record whose key is None is in no part."""
        members: dict[Any, list[JudgmentRecord]] = defaultdict(list)
        for record in records:
            if (place := key(record)) is not None:
                members[place].append(record)
        found = {place: _part_answers(members[place]) for place in sorted(members)}
        return {place: part for place, part in found.items() if part is not None}

    def nested(cells: dict[Any, PartAnswers]) -> dict[Any, dict[Any, PartAnswers]]:
        found: dict[Any, dict[Any, PartAnswers]] = defaultdict(dict)
        for (outer, inner), part in cells.items():
            found[str(outer)][str(inner)] = part
        return dict(found)

    by_cell = parts(lambda r: None if r.length is None or r.depth is None else (r.length, depth_bin(r.depth)))
    by_both = parts(lambda r: (r.task, r.length) if r.task and r.length is not None else None)
    return MissingAnswers(
        overall=parts(lambda _: "all").get("all"),
        by_length={str(length): part for length, part in parts(lambda r: r.length).items()},
        by_depth=parts(lambda r: None if r.depth is None else depth_bin(r.depth)),
        by_length_and_depth=nested(by_cell),
        by_task=parts(lambda r: r.task or None),
        by_subtype=parts(lambda r: r.subtype or None),
        by_task_and_length=nested(by_both),
    )


def _part_answers(records: Sequence[JudgmentRecord]) -> PartAnswers | None:
    """What is missing from some records; None if all are answered."""
    missing = [record for record in records if record.outcome is not Outcome.ANSWERED]
    if not missing:
        return None
    counts = Counter(record.outcome for record in missing)
    reasons = []
    for outcome, count in counts.most_common():
        first = next(record for record in missing if record.outcome is outcome)
        # In our messages, advice about this one comparison follows a semicolon.
        why = shorten(first.detail.partition(";")[0], 120, placeholder=" ...")
        name = outcome.replace("_", " ")
        reasons.append(f"{count:,} of {len(records):,} {name}" + (f": {why}" if why else ""))
    return PartAnswers(
        comparisons=len(records),
        answered=len(records) - len(missing),
        outcomes=dict(counts),
        reason="; ".join(reasons),
    )


def empty_cells(missing: MissingAnswers) -> dict[str, PartAnswers]:
    """The lengths, cells of a length and a depth, and tasks without any answer, by a description.

    Cells of a length that is completely empty are not listed again; if everything is empty, only the whole run is.
    """
    if missing.overall is not None and not missing.overall.answered:
        return {"in the whole run": missing.overall}
    found = {f"at {int(length):,} tokens": part for length, part in missing.by_length.items()}
    for length, depths in missing.by_length_and_depth.items():
        if length not in missing.by_length or missing.by_length[length].answered:
            found |= {f"at {int(length):,} tokens and depth {depth}": part for depth, part in depths.items()}
    found |= {f"in the task {task}": part for task, part in missing.by_task.items()}
    return {name: part for name, part in found.items() if not part.answered}
