"""What a comparison of two runs shows, in a sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from longrm.evaluation import wording
from longrm.evaluation.metrics import PAIR_ACCURACY, TOP1, metric_of

if TYPE_CHECKING:
    from longrm.evaluation.comparison.compared_parts import ComparedPart
    from longrm.evaluation.comparison.run_comparison import RunComparison


def first_sentence(found: "RunComparison") -> str:
    """Which of two runs is better, by how much, and at which lengths."""
    first, second, whole = found.first.name, found.second.name, found.overall
    at = {side: _lengths(found.by_length, side) for side in (1, -1)}
    if not whole.winner:
        where = [f"{name} is better {at[side]}" for side, name in ((-1, first), (1, second)) if at[side]]
        but = f"; but {wording.listed(where)}" if where else ""
        return f"No difference between {first} and {second} is shown: {_figures(found, (second, first), 1)}{but}."
    side = whole.winner
    better, worse = (second, first) if side > 0 else (first, second)
    main = found.metric in (PAIR_ACCURACY.name, TOP1.name)
    than = "is right more often than" if main else f"has a higher {metric_of(found.metric).title} than"
    where = [f"the difference is {at[side]}"] if at[side] else []
    if not at[side] and len(found.by_length) > 1:
        where = ["it is shown at no length alone"]
    where += [f"{worse} is better {at[-side]}"] if at[-side] else []
    return f"{better} {than} {worse}: {'; '.join([_figures(found, ('', ''), side), *where])}."


def _figures(found: "RunComparison", names: tuple[str, str], side: int) -> str:
    """Both values, the higher side's first, and the difference; `side` is 1 where that is the second run's."""
    part, metric = found.overall, metric_of(found.metric)
    write = wording.percent if metric.is_share else wording.decimal
    values = (part.second, part.first) if side > 0 else (part.first, part.second)
    high, low = (
        f"{write(value)} ({name})" if name else write(value)
        for value, name in zip(values, names, strict=True)
    )
    gap = _gap(part, side, metric.is_share)
    return f"{high} against {low} on the same {wording.plural(part.n, 'comparison')}, {gap}"


def _gap(part: "ComparedPart", side: int, in_points: bool) -> str:
    estimate = part.difference
    assert estimate.value is not None, "a part has comparisons"
    assert estimate.low is not None, "every value has an interval"
    assert estimate.high is not None, "every value has an interval"
    low, high = sorted((side * estimate.low, side * estimate.high))
    gap = replace(estimate, value=side * estimate.value, low=low, high=high)
    few = (
        f" from {wording.plural(part.groups, 'group')}, too few to trust the interval"
        if part.few_groups
        else ""
    )
    if in_points:
        return f"{wording.points(gap.value)} points {wording.points_interval(gap)}{few}"
    return f"{wording.decimal(gap.value)} {wording.decimal_interval(gap)}{few}"


def _lengths(by_length: Mapping[str, "ComparedPart"], side: int) -> str:
    """At which lengths, of several, a side is shown to be better; empty if at none."""
    lengths = [int(length) for length in by_length]
    won = [int(length) for length, part in by_length.items() if part.winner == side]
    if not won or len(lengths) < 2:
        return ""
    if won == lengths:
        return "at every length"
    if len(won) > 1 and won == lengths[-len(won) :]:
        return f"at {wording.tokens(won[0])} tokens and beyond"
    if len(won) > 1 and won == lengths[: len(won)]:
        return f"at {wording.tokens(won[-1])} tokens and below"
    return f"at {_named(won)} tokens"


def _named(lengths: Sequence[int]) -> str:
    return wording.listed([wording.tokens(length) for length in lengths])
