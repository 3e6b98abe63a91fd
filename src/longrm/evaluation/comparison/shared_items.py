"""The comparisons that two runs share, by the text of prompt and responses, and what sets the runs apart."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longrm import reading
from longrm.config import changed_settings
from longrm.errors import RunError
from longrm.evaluation.comparison_trials import JudgingSettings
from longrm.evaluation.evaluation_run import Evaluation
from longrm.evaluation.run import Run
from longrm.evaluation.samples import Bootstrap
from longrm.evaluation.table import has_gold_order
from longrm.runs.judgments import GOLD
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome

_JUDGES = ("model", "recorded")
"""Settings in which compared runs differ by purpose."""

_PLACES = ("length", "depth", "task")
"""What tells the part that a comparison is counted in."""

LEFT_OUT = {
    "only_in_first": "only {first} holds",
    "only_in_second": "only {second} holds",
    "gold_differs": "have another gold order in the two runs",
    "without_gold": "have no gold order",
    "error_in_first": "{first} could not judge (error)",
    "error_in_second": "{second} could not judge (error)",
    "error_in_both": "neither could judge (error)",
}
"""Why comparisons are not compared, in words."""

JudgedPair = tuple[JudgmentRecord, JudgmentRecord]
"""One comparison as the first run judged it, and as the second did."""


@dataclass(frozen=True, slots=True)
class SharedItems:
    """What two runs share.

    Attributes:
        pairs: The comparisons that both runs judged and gold orders; id, group, length, depth and task are the first's.
        left_out: How many comparisons are not among them, by reason.
        differs_in: One line for each thing but the judge in which the runs differ.
    """

    pairs: Sequence[JudgedPair]
    left_out: Mapping[str, int]
    differs_in: tuple[str, ...]


def bootstrap_of(run: Run) -> Bootstrap:
    """The bootstrap seed and size of a run's own intervals."""
    judging = JudgingSettings(**_settings(run).get("judging", {}))
    return {"seed": judging.seed, "resamples": judging.resamples}


def _settings(run: Run) -> Mapping[str, Any]:
    """The settings that define what was judged, and how; not by which model."""
    return Evaluation.defining({key: value for key, value in run.settings.items() if key not in _JUDGES})


def _by_text(run: Run) -> dict[str, list[JudgmentRecord]]:
    """The judgments of a run by the digest of prompt and responses; several where comparisons share their text."""
    found: dict[str, list[JudgmentRecord]] = defaultdict(list)
    for record in run.judgments:
        gold = run.gold.get(record.id)
        if gold is None or not gold.digest:
            raise RunError(
                f"{run.path / GOLD} has no digest of {reading.short(record.id)}, which identifies it in another run; "
                "evaluate again into another folder"
            )
        found[gold.digest].append(record)
    return found


def shared_items(first: Run, second: Run) -> SharedItems:
    """Pairs the comparisons of two finished evaluations.

    Raises:
        RunError: They share no comparison that both could be scored on.
    """
    ours, theirs = _by_text(first), _by_text(second)
    found = list(_matched(ours, theirs))
    reasons = [_reason(*pair) for pair in found]
    left_out = dict.fromkeys(LEFT_OUT, 0) | Counter(filter(None, reasons))
    for side, items in (("only_in_first", ours), ("only_in_second", theirs)):
        left_out[side] = sum(map(len, items.values())) - len(found)
    kept = [pair for pair, reason in zip(found, reasons, strict=True) if not reason]
    if not kept:
        benches = first.evaluation.bench, second.evaluation.bench
        why = f"share no comparison ({', '.join(benches)})"
        if found:
            counted = ", ".join(f"{reason.replace('_', ' ')} {n:,}" for reason, n in left_out.items() if n)
            why = f"share {len(found):,} comparisons, none of which can be scored in both runs ({counted})"
        advice = "evaluate both models on the same data with gold"
        if benches == ("probe", "probe") and not found:
            advice = "probe both models with the same --lengths, --depths, --tasks, --n and --tokenizer"
        raise RunError(f"{first.path} and {second.path} {why}; {advice}")
    settings = changed_settings(_settings(first), _settings(second))
    places = [line for name in _PLACES if (line := _elsewhere(kept, name))]
    same = [(a, replace(b, id=a.id, group=a.group)) for a, b in kept]
    return SharedItems(same, left_out, (*settings, *places, *_regrouped(kept)))


def _matched(
    first: Mapping[str, Sequence[JudgmentRecord]], second: Mapping[str, Sequence[JudgmentRecord]]
) -> Iterator[JudgedPair]:
    """What both hold, in the order of the first; comparisons of one text are told apart by their ids."""
    for digest, ours in first.items():
        theirs = second.get(digest, ())
        if len(ours) == len(theirs) == 1:
            yield ours[0], theirs[0]
        else:
            named = {record.id: record for record in theirs}
            yield from ((record, named[record.id]) for record in ours if record.id in named)


def _reason(first: JudgmentRecord, second: JudgmentRecord) -> str:
    """Why a shared comparison is left out; empty if it is not."""
    if first.ranks != second.ranks:
        return "gold_differs"
    if not has_gold_order(first):
        return "without_gold"
    match first.outcome is Outcome.ERROR, second.outcome is Outcome.ERROR:
        case True, True:
            return "error_in_both"
        case True, False:
            return "error_in_first"
        case False, True:
            return "error_in_second"
    return ""


def _elsewhere(pairs: Sequence[JudgedPair], name: str) -> str:
    """That the runs place comparisons differently, where they do."""
    moved = [
        (a.id, getattr(a, name), getattr(b, name)) for a, b in pairs if getattr(a, name) != getattr(b, name)
    ]
    if not moved:
        return ""
    one, was, now = moved[0]
    return (
        f"{name}: of {len(moved):,} comparisons, such as {reading.short(one)} ({was!r} -> {now!r}); "
        "they are counted where the first run has them"
    )


def _regrouped(pairs: Sequence[JudgedPair]) -> list[str]:
    groups = {a.group for a, _ in pairs}, {b.group for _, b in pairs}, {(a.group, b.group) for a, b in pairs}
    if len({len(found) for found in groups}) == 1:
        return []
    return ["groups: comparisons that share a context in one run do not in the other; the first run's count"]
