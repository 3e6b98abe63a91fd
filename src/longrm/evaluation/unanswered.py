"""What was not answered, part by part, and why: a part without an answer must not pass for one that was all wrong."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from textwrap import shorten
from typing import Any

from longrm.evaluation.summaries import DepthBin, MissingAnswers, PartAnswers, depth_bin
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome

_LONGEST_REASON = 120
"""Characters of what one record says; servers may say more."""


def missing_answers(records: Sequence[JudgmentRecord]) -> MissingAnswers:
    """Every part in which a comparison was not answered, errors included; depths lie in [0, 1]."""

    def parts(key: Callable[[JudgmentRecord], Hashable]) -> dict[Any, PartAnswers]:
        return _parts(records, key)

    by_cell = parts(lambda r: None if r.length is None or r.depth is None else (r.length, depth_bin(r.depth)))
    by_both = parts(lambda r: (r.task, r.length) if r.task and r.length is not None else None)
    return MissingAnswers(
        overall=parts(lambda _: "all").get("all"),
        by_length={str(length): part for length, part in parts(lambda r: r.length).items()},
        by_depth=parts(lambda r: None if r.depth is None else depth_bin(r.depth)),
        by_length_and_depth=_nested(by_cell),
        by_task=parts(lambda r: r.task or None),
        by_subtype=parts(lambda r: r.subtype or None),
        by_task_and_length={
            task: {str(length): part for length, part in found.items()}
            for task, found in _grouped(by_both).items()
        },
    )


def _parts(
    records: Sequence[JudgmentRecord], key: Callable[[JudgmentRecord], Hashable]
) -> dict[Any, PartAnswers]:
    """What is missing by part, in rising order; a record whose key is None lies in none."""
    held: dict[Any, list[JudgmentRecord]] = defaultdict(list)
    for record in records:
        place = key(record)
        if place is not None:
            held[place].append(record)
    return {place: part for place in sorted(held) if (part := _part(held[place]))}


def _part(records: Sequence[JudgmentRecord]) -> PartAnswers | None:
    """What is missing of some records; None where nothing is."""
    silent = [record for record in records if record.outcome is not Outcome.ANSWERED]
    if not silent:
        return None
    counts = Counter(record.outcome for record in silent)
    said = {outcome: next(r.detail for r in silent if r.outcome is outcome) for outcome in counts}
    reasons = []
    for outcome, count in counts.most_common():
        # What follows a semicolon says what to do about one of them.
        why = shorten(said[outcome].partition(";")[0], _LONGEST_REASON, placeholder=" ...")
        name = outcome.replace("_", " ")
        reasons.append(f"{count:,} of {len(records):,} {name}" + (f": {why}" if why else ""))
    return PartAnswers(
        comparisons=len(records),
        answered=len(records) - len(silent),
        outcomes=dict(counts),
        reason="; ".join(reasons),
    )


def _grouped(parts: Mapping[tuple[Any, Any], PartAnswers]) -> dict[Any, dict[Any, PartAnswers]]:
    found: dict[Any, dict[Any, PartAnswers]] = defaultdict(dict)
    for (first, second), part in parts.items():
        found[first][second] = part
    return dict(found)


def _nested(parts: Mapping[tuple[Any, Any], PartAnswers]) -> dict[str, dict[DepthBin, PartAnswers]]:
    return {str(length): found for length, found in _grouped(parts).items()}


def empty_cells(missing: MissingAnswers) -> dict[str, PartAnswers]:
    """The lengths, the cells of a length and a depth, and the tasks without any answer, by what they are called.

    A cell within a length that is empty as a whole is not named again; where everything is empty, that alone is.
    """
    if missing.overall is not None and not missing.overall.answered:
        return {"in the whole run": missing.overall}
    found = {f"at {int(at):,} tokens": part for at, part in missing.by_length.items()}
    for at, depths in missing.by_length_and_depth.items():
        if at not in missing.by_length or missing.by_length[at].answered:
            found |= {f"at {int(at):,} tokens and depth {depth}": part for depth, part in depths.items()}
    found |= {f"in the task {task}": part for task, part in missing.by_task.items()}
    return {name: part for name, part in found.items() if not part.answered}
