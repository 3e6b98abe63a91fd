"""Metrics by length, depth, task and subtype; unweighted means over tasks and lengths; missing answers by part."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from textwrap import shorten
from typing import Any, TypeVar, Unpack

import numpy as np

from longrm.evaluation import summary_schema as schema
from longrm.evaluation.estimates import bootstrap_interval, metrics_for
from longrm.evaluation.metrics import SHARE, TOP1
from longrm.evaluation.table import (
    BEST_OF,
    OUTCOMES,
    Bootstrap,
    FloatArray,
    IntArray,
    JudgmentTable,
    Mask,
    Texts,
    codes_of,
    recoded,
)
from longrm.runs.records import UNDEFINED, Estimate
from longrm.types import Outcome

Part = TypeVar("Part")


def _lengths(table: JudgmentTable) -> list[int | None]:
    return [None if length < 0 else length for length in table.length.tolist()]


def _depths(table: JudgmentTable) -> list[str | None]:
    return [None if math.isnan(depth) else schema.depth_bin(depth) for depth in table.depth.tolist()]


def _both(outer: Sequence[Any], inner: Sequence[Any]) -> list[tuple[Any, Any] | None]:
    return [None if None in part else part for part in zip(outer, inner, strict=True)]


def _named(texts: Texts) -> list[str | None]:
    return [text or None for text in texts]


PARTS: dict[str, Callable[[JudgmentTable], Sequence[Any]]] = {
    "by_length": _lengths,
    "by_depth": _depths,
    "by_length_and_depth": lambda table: _both(_lengths(table), _depths(table)),
    "by_task": lambda table: _named(table.task),
    "by_subtype": lambda table: _named(table.subtype),
    "by_task_and_length": lambda table: _both(_named(table.task), _lengths(table)),
}
"""The kinds of parts, each with the part that every row belongs to; None if it belongs to none."""


def by_parts(
    table: JudgmentTable,
    describe: Callable[[Mask], Part | None],
    kinds: Sequence[str] = tuple(PARTS),
) -> dict[str, Any]:
    """Describes every part of each kind, by its name, in ascending order; parts described by None are absent.

    Returns {kind: {name: description}}, or {kind: {outer name: {inner name: description}}} for parts of two names.
    """
    found: dict[str, Any] = {}
    for kind in kinds:
        of_row = PARTS[kind](table)
        names = sorted({part for part in of_row if part is not None})
        number = {part: index for index, part in enumerate(names)}
        place = np.array([number.get(part, -1) for part in of_row], np.int64)
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


def breakdown(table: JudgmentTable, **bootstrap: Unpack[Bootstrap]) -> schema.MetricBreakdown:
    """Metrics over everything and over every part that a row belongs to.

    Every part reports the metrics of the whole; they are undefined in a part without an answer. `pairs` has the parts
    of the pairs alone, if there are also rankings: the paper's tables report those.
    """
    outside = np.flatnonzero((table.depth < 0) | (table.depth > 1))
    if outside.size:
        row = outside[0]
        raise ValueError(f"record {table.id[row]!r} has depth {table.depth[row]}, outside [0, 1]")
    scored = table.scored
    parts = by_parts(table, lambda members: metrics_for(scored, members[table.is_scored], **bootstrap))
    parts["by_task_and_length"] = {
        task: parts["by_task_and_length"].get(task, {}) for task in parts["by_task"]
    }
    return schema.MetricBreakdown(
        overall=metrics_for(scored, **bootstrap),
        **parts,
        macro=_macro(scored, np.ones(len(scored), np.bool_), bootstrap),
        pairs=_pairs(scored, bootstrap),
    )


def _pairs(table: JudgmentTable, bootstrap: Bootstrap) -> schema.PairBreakdown | None:
    is_pair = (table.size == 2) & ~np.isin(table.subtype, BEST_OF)
    if is_pair.all() or not is_pair.any():
        return None

    def measure(rows: Mask) -> dict[str, Estimate] | None:
        pairs = rows & is_pair
        return metrics_for(table, pairs, pairs_only=True, **bootstrap) if pairs.any() else None

    return schema.PairBreakdown(
        overall=metrics_for(table, is_pair, pairs_only=True, **bootstrap),
        **by_parts(table, measure, ("by_task", "by_length")),
        macro=_macro(table, is_pair, bootstrap),
    )


def _macro(table: JudgmentTable, rows: Mask, bootstrap: Bootstrap) -> schema.MacroMeans:
    """Unweighted means of main accuracy over tasks and over lengths; the overall value is a micro average."""
    return schema.MacroMeans(
        by_task=_mean_of_parts(table, rows & (table.task != ""), codes_of(table.task), bootstrap),
        by_length=_mean_of_parts(table, rows & (table.length > 0), table.length, bootstrap),
    )


def _mean_of_parts(table: JudgmentTable, rows: Mask, part: IntArray, bootstrap: Bootstrap) -> Estimate:
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


def missing_answers(table: JudgmentTable) -> schema.MissingAnswers:
    """Every part in which some comparison was not answered, errors included, with the reasons.

    Without this, a part that has no answers would look like one that is all wrong.
    """
    silent = table.outcome != OUTCOMES.index(Outcome.ANSWERED)

    def describe(members: Mask) -> schema.PartAnswers | None:
        missing = np.flatnonzero(members & silent)
        if not missing.size:
            return None
        outcomes, comparisons = [OUTCOMES[code] for code in table.outcome[missing]], int(members.sum())
        reasons = []
        for outcome, count in Counter(outcomes).most_common():
            detail = table.detail[missing[outcomes.index(outcome)]]
            # In our messages, advice about this one comparison follows a semicolon.
            why = shorten(detail.partition(";")[0], 120, placeholder=" ...")
            name = outcome.replace("_", " ")
            reasons.append(f"{count:,} of {comparisons:,} {name}" + (f": {why}" if why else ""))
        return schema.PartAnswers(
            comparisons=comparisons,
            answered=comparisons - missing.size,
            outcomes=dict(Counter(outcomes)),
            reason="; ".join(reasons),
        )

    everything = np.ones(len(table), np.bool_)
    return schema.MissingAnswers(overall=describe(everything), **by_parts(table, describe))


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
