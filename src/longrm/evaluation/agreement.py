"""Agreement corrected for chance: of a judge with gold, of its own repeats, and of two judges.

Exact match overstates agreement: a judge of pairs that guesses has 50% (arXiv 2606.19544).
"""

from collections import Counter
from collections.abc import Callable
from typing import Unpack

import numpy as np

from longrm.evaluation import summary_schema as schema
from longrm.evaluation.estimates import bootstrap_interval, ratio
from longrm.evaluation.judge_behavior import trials_by_order
from longrm.evaluation.table import (
    OUTCOMES,
    Bootstrap,
    FloatArray,
    IntArray,
    JudgmentTable,
    Mask,
    Ragged,
    recoded,
    resample_counts,
    top_responses,
)
from longrm.rng import seed_of
from longrm.runs.records import UNDEFINED, Estimate
from longrm.types import Outcome

_VERDICTS = 4  # the response shown first, the second, a tie, no verdict


def gold_agreement(table: JudgmentTable, **drawn: Unpack[Bootstrap]) -> schema.GoldAgreement | None:
    """Raw agreement and Cohen's kappa of a judge with gold on pairs; None without an answered pair that has gold.

    A verdict is the response shown first, the second, or a tie; gold ties count. A pair without a verdict agrees with
    nothing, as it is wrong in accuracy. Errors and comparisons of more responses are excluded.
    """
    table = table.take(np.flatnonzero((table.size == 2) & (table.outcome != OUTCOMES.index(Outcome.ERROR))))
    if not table.answered.any():
        return None
    first = shown_first(table)
    gold = _verdicts(Ragged(-table.ranks.flat, table.ranks.size), first)
    judged = _verdicts(table.values, first)

    def agreement(rows: Mask) -> dict[str, Estimate]:
        return _agreement(gold[rows], judged[rows], table.group[rows], **drawn)

    return schema.GoldAgreement(
        **agreement(np.ones_like(table.answered)),
        by_length={
            str(length): schema.Agreement(**agreement(table.length == length))
            for length in np.unique(table.length).tolist()
            if length >= 0
        },
    )


def judge_agreement(
    one: JudgmentTable, other: JudgmentTable, **drawn: Unpack[Bootstrap]
) -> schema.Agreement | None:
    """The same of two judges, on pairs that both answered; the tables have the same comparisons in the same rows."""
    rows = np.flatnonzero((one.size == 2) & one.answered & other.answered)
    if not rows.size:
        return None
    one, other = one.take(rows), other.take(rows)
    first = shown_first(one)
    verdicts = _verdicts(one.values, first), _verdicts(other.values, first)
    return schema.Agreement(**_agreement(*verdicts, one.group, **drawn))


def shown_first(table: JudgmentTable) -> IntArray:
    """The response of each pair that was presented first, 0 or 1, which is what kappa counts verdicts by.

    Chance agreement depends on how often each rater gives each label, so labels must be what a rater sees. Presented
    orders are drawn by a hash; those of a record are its own. Rows that were scored as they are have the chosen
    response first: gold is then constant, and kappa 0 for every judge. If gold prefers the same place in all pairs, the
    place is drawn by a hash of the id instead.
    """
    starts = np.cumsum(table.trials.size) - table.trials.size
    orders = np.array([order[0] if order else 0 for order in table.trial.orders], np.int64)
    first: IntArray = orders[table.trial.order[table.trials.flat[starts]]]
    gold = _verdicts(Ragged(-table.ranks.flat, table.ranks.size), first)
    if len({0, 1} & {*gold.tolist()}) < 2:
        first = np.array([seed_of("shown first", name) % 2 for name in table.id], np.int64)
    return first


def _verdicts(values: Ragged, first: IntArray) -> IntArray:
    """The verdict on each pair: 0 for the response shown first, 1 for the second, 2 for a tie, 3 without one."""
    codes = []
    for pair, at in zip(values, first.tolist(), strict=True):
        codes.append(3 if not pair else 2 if pair[0] == pair[1] else int(pair[at] < pair[1 - at]))
    return np.array(codes, np.int64)


def _agreement(
    one: IntArray, other: IntArray, group: IntArray, **drawn: Unpack[Bootstrap]
) -> dict[str, Estimate]:
    group, cells = recoded(group), _VERDICTS**2
    groups = int(group.max()) + 1
    counts = np.bincount(group * cells + one * _VERDICTS + other, minlength=groups * cells)
    return {
        "raw": ratio((one == other).astype(np.float64), np.ones(one.size), group, **drawn),
        "kappa": _estimate(cohen_kappa, counts.reshape(groups, cells), group, one.size, **drawn),
    }


def cohen_kappa(counts: FloatArray) -> FloatArray:
    """Cohen's kappa (1960) of counts of two raters' labels, [..., labels x labels]; NaN if both give only one label."""
    side = int(np.sqrt(counts.shape[-1]))
    cells = counts.reshape(*counts.shape[:-1], side, side)
    n = cells.sum((-2, -1))
    by_chance = (cells.sum(-1) * cells.sum(-2)).sum(-1) / n**2
    with np.errstate(invalid="ignore", divide="ignore"):
        kappa: FloatArray = (np.trace(cells, axis1=-2, axis2=-1) / n - by_chance) / (1 - by_chance)
    return np.where(np.isclose(by_chance, 1), np.nan, kappa)


def repeat_agreement(table: JudgmentTable, **drawn: Unpack[Bootstrap]) -> schema.RepeatAgreement | None:
    """Agreement of trials of one comparison in the same presented order; None if no order has two answers.

    A verdict is the place where the best response is shown, or a tie. Trials without a verdict are missing values.
    """
    ties = int(max((max(order, default=0) + 1 for order in table.trial.orders), default=0))
    rows, pairs, units = list[int](), list[tuple[float, float]](), list[list[float]]()
    for row, by_order in enumerate(trials_by_order(table)):
        for order, votes in by_order.items():
            shown, tops = table.trial.orders[order], (table.trial.values[number] for number in votes)
            best = [top_responses(values) for values in tops if values]
            if len(best) < 2:
                continue
            labels = Counter(shown.index(min(top)) if len(top) == 1 else ties for top in best)
            agreeing = sum(count * (count - 1) for count in labels.values())
            rows.append(row)
            pairs.append((agreeing / 2, len(best) * (len(best) - 1) / 2))
            units.append([agreeing / (len(best) - 1), *(float(labels[label]) for label in range(ties + 1))])
    if not rows:
        return None
    group = recoded(table.group[rows])
    sums = np.stack([np.bincount(group, column) for column in np.array(units).T], axis=1)
    equal, possible = np.array(pairs).T
    answers = round(float(sums[:, 1:].sum()))
    return schema.RepeatAgreement(
        raw=ratio(equal, possible, group, **drawn),
        alpha=_estimate(nominal_alpha, sums, group, answers, **drawn),
    )


def nominal_alpha(sums: FloatArray) -> FloatArray:
    """Krippendorff's alpha for nominal labels (2011, section C); NaN if all labels are equal.

    `sums` [..., 1 + labels]: of every unit's agreeing ordered pairs over its labels less one, then how often each label
    was given in units with two labels or more.
    """
    agreeing, counts = sums[..., 0], sums[..., 1:]
    n = counts.sum(-1)
    by_chance = n**2 - (counts**2).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        alpha: FloatArray = 1 - (n - 1) * (n - agreeing) / by_chance
    return np.where(by_chance > 0, alpha, np.nan)


def _estimate(
    statistic: Callable[[FloatArray], FloatArray],
    sums: FloatArray | IntArray,
    group: IntArray,
    n: int,
    **drawn: Unpack[Bootstrap],
) -> Estimate:
    """A statistic of the sums over groups [groups, columns], with its cluster-bootstrap interval."""
    groups = len(sums)
    value = float(statistic(sums.sum(axis=0).astype(np.float64)))
    if not np.isfinite(value):
        return UNDEFINED
    drawn_sums = (block.astype(np.float64) @ sums for block in resample_counts(groups, **drawn))
    replicates = np.concatenate([statistic(found) for found in drawn_sums])
    limits = bootstrap_interval(value, replicates, group, (-1.0, 1.0))
    return Estimate(value, *limits, n, groups)
