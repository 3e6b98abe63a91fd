"""Metrics by length, depth, task and subtype; unweighted means over tasks and lengths; missing answers by part."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import compress
from textwrap import shorten
from typing import Any, TypeVar, Unpack

import numpy as np

from longrm.evaluation import summary_schema as schema
from longrm.evaluation.estimates import bootstrap_interval, metrics_for
from longrm.evaluation.metrics import SHARE, TOP1
from longrm.evaluation.table import (
    BEST_OF,
    Bootstrap,
    FloatArray,
    IntArray,
    Mask,
    ScoreTable,
    codes_of,
    is_scored,
    recoded,
)
from longrm.runs.records import UNDEFINED, Estimate, JudgmentRecord
from longrm.types import Outcome

Part = TypeVar("Part")

PARTS: dict[str, Callable[[JudgmentRecord], Any]] = {
    "by_length": lambda r: r.length,
    "by_depth": lambda r: None if r.depth is None else schema.depth_bin(r.depth),
    "by_length_and_depth": lambda r: (
        None if r.length is None or r.depth is None else (r.length, schema.depth_bin(r.depth))
    ),
    "by_task": lambda r: r.task or None,
    "by_subtype": lambda r: r.subtype or None,
    "by_task_and_length": lambda r: (r.task, r.length) if r.task and r.length is not None else None,
}
"""The kinds of parts, each with the part that a record belongs to; None if it belongs to none."""


def by_parts(
    records: Sequence[JudgmentRecord],
    describe: Callable[[Mask], Part | None],
    kinds: Sequence[str] = tuple(PARTS),
) -> dict[str, Any]:
    """Describes every part of each kind, by its name, in ascending order; parts described by None are absent.

    Returns {kind: {name: description}}, or {kind: {outer name: {inner name: description}}} for parts of two names.
    """
    found: dict[str, Any] = {}
    for kind in kinds:
        of_record = [PARTS[kind](record) for record in records]
        names = sorted({part for part in of_record if part is not None})
        number = {part: index for index, part in enumerate(names)}
        place = np.array([number.get(part, -1) for part in of_record], np.int64)
        parts: dict[str, Any] = {}
        for part in names:
            description = describe(place == number[part])
            if description is None:
                continue
            if isinstance(part, tuple):
                parts.setdefault(str(part[0]), {})[str(part[1])] = description
            else:
                parts[str(part)] = description
        found[kind] = parts
    return found


def breakdown(
    records: Sequence[JudgmentRecord], table: ScoreTable, **bootstrap: Unpack[Bootstrap]
) -> schema.MetricBreakdown:
    """Metrics over everything and over every part that a record belongs to; the table is that of the records.

    Every part reports the metrics of the whole; they are undefined in a part without an answer. `pairs` has the parts
    of the pairs alone, if there are also rankings: the paper's tables report those.
    """
    for record in records:
        if record.depth is not None and not 0 <= record.depth <= 1:
            raise ValueError(f"record {record.id!r} has depth {record.depth}, outside [0, 1]")
    scored = np.array([is_scored(record) for record in records], np.bool_)
    parts = by_parts(records, lambda members: metrics_for(table, members[scored], **bootstrap))
    parts["by_task_and_length"] = {
        task: parts["by_task_and_length"].get(task, {}) for task in parts["by_task"]
    }
    return schema.MetricBreakdown(
        overall=metrics_for(table, **bootstrap),
        **parts,
        macro=_macro(table, np.ones(len(table.records), np.bool_), bootstrap),
        pairs=_pairs(table, bootstrap),
    )


def _pairs(table: ScoreTable, bootstrap: Bootstrap) -> schema.PairBreakdown | None:
    is_pair = np.array(
        [len(r.ranks or ()) == 2 and r.subtype not in BEST_OF for r in table.records], np.bool_
    )
    if is_pair.all() or not is_pair.any():
        return None

    def measure(rows: Mask) -> dict[str, Estimate] | None:
        pairs = rows & is_pair
        return metrics_for(table, pairs, pairs_only=True, **bootstrap) if pairs.any() else None

    return schema.PairBreakdown(
        overall=metrics_for(table, is_pair, pairs_only=True, **bootstrap),
        **by_parts(table.records, measure, ("by_task", "by_length")),
        macro=_macro(table, is_pair, bootstrap),
    )


def _macro(table: ScoreTable, rows: Mask, bootstrap: Bootstrap) -> schema.MacroMeans:
    """Unweighted means of main accuracy over tasks and over lengths; the overall value is a micro average."""
    task = codes_of(record.task for record in table.records)
    has_task = np.array([bool(record.task) for record in table.records], np.bool_)
    return schema.MacroMeans(
        by_task=_mean_of_parts(table, rows & has_task, task, bootstrap),
        by_length=_mean_of_parts(table, rows & (table.length > 0), table.length, bootstrap),
    )


def _mean_of_parts(table: ScoreTable, rows: Mask, part: IntArray, bootstrap: Bootstrap) -> Estimate:
    """The mean over parts of their accuracies; undefined if a part has no answer.

    Its limits are recovered from those of the parts (Zou and Donner 2008): value - sqrt(d' C d) / P, with the distances
    d of the P lower limits from their values and the correlation C of the parts' values, and likewise above. Resampling
    all groups at once instead would treat a part as certain if all of its groups agree, and would assume as many groups
    as all parts have together.
    """
    names, ends = np.unique(part[rows]), list[tuple[float, float, float]]()
    if not names.size:
        return UNDEFINED
    # Top-1 is main accuracy for every row: on pairs it equals pair accuracy.
    credits = TOP1.credits(table)
    for name in names:
        own = rows & (part == name)
        if not table.answered[own].any():
            return UNDEFINED
        sample, group = credits.subset(own), recoded(table.group[own])
        # Not Wilson's limits: they are pulled towards one half, which adds up over parts.
        replicates = sample.replicates(group, **bootstrap)
        low, high = bootstrap_interval(sample.value, replicates, group, SHARE)
        ends.append((sample.value, sample.value - low, high - sample.value))
    values, *reaches = np.array(ends, np.float64).T
    group = recoded(table.group[rows])
    member = (part[rows, None] == names).astype(np.float64)  # [rows, parts]
    correlation = _correlation(member * (credits.total[rows, None] - values), group)
    # A part without variance has no correlations. The upper bound is how far two parts consist of the same groups.
    correlation = np.where(np.isnan(correlation), _correlation(member, group), correlation)
    below, above = (float(np.sqrt(max(0.0, d @ correlation @ d))) / names.size for d in reaches)
    value = float(values.mean())
    return Estimate(value, value - below, value + above, group.size, int(group.max()) + 1)


def _correlation(columns: FloatArray, group: IntArray) -> FloatArray:
    """The correlation of columns by their sums over groups, [columns, columns]; NaN for a column of zeros."""
    sums = np.stack([np.bincount(group, column) for column in columns.T], axis=1)
    size = np.linalg.norm(sums, axis=0)
    size[size < 1e-9] = np.nan
    return np.asarray(sums.T @ sums / np.outer(size, size))


def missing_answers(records: Sequence[JudgmentRecord]) -> schema.MissingAnswers:
    """Every part in which some comparison was not answered, errors included, with the reasons.

    Without this, a part that has no answers would look like one that is all wrong.
    """

    def describe(members: Mask) -> schema.PartAnswers | None:
        return _part_answers(list(compress(records, members)))

    return schema.MissingAnswers(overall=_part_answers(records), **by_parts(records, describe))


def _part_answers(records: Sequence[JudgmentRecord]) -> schema.PartAnswers | None:
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
    return schema.PartAnswers(
        comparisons=len(records),
        answered=len(records) - len(missing),
        outcomes=dict(counts),
        reason="; ".join(reasons),
    )


def empty_cells(missing: schema.MissingAnswers) -> dict[str, schema.PartAnswers]:
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
