"""The trials of one comparison: in which orders, and what their judgments say together."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from longrm.types import Judgment, Outcome, Trial


def latin_square(order: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """As many orders as there are responses, in which every response stands at every place once.

    The first row is the order itself, and every further one moves all responses one place on: a cyclic Latin
    square, seeded by how its first row was drawn. For two responses these are both orders.
    """
    return tuple(order[row:] + order[:row] for row in range(len(order)))


def trial_of(judgment: Judgment, order: tuple[int, ...]) -> Trial:
    """Puts what was judged in presented order back into the comparison's own order.

    A score that is not finite is no verdict: nothing can be told from it, and asking again would bring it again.
    """
    scores = _placed(judgment.scores, order)
    for number, score in enumerate(scores, start=1):
        if not math.isfinite(score):
            detail = f"the score of response {number} of {len(scores)} is {score}"
            return Trial(
                order=order, outcome=Outcome.UNPARSED, explanation=judgment.explanation, detail=detail
            )
    return Trial(
        order=order,
        outcome=judgment.outcome,
        scores=scores,
        ranking=tuple(order[position] for position in judgment.ranking),
        explanation=judgment.explanation,
        detail=judgment.detail,
        attempts=judgment.attempts,
        contradicted=judgment.contradicted,
        criteria=tuple(_placed(row, order) for row in judgment.criteria),
    )


def _placed(scores: Sequence[float], order: tuple[int, ...]) -> tuple[float, ...]:
    placed = dict(zip(order, scores, strict=False))
    return tuple(placed[index] for index in sorted(placed))


def points(trial: Trial) -> tuple[float, ...]:
    """One number a response, higher is better: its scores, or 1 for the best of a ranking down to 0; or none."""
    if trial.outcome is not Outcome.ANSWERED:
        return ()
    if trial.scores or not trial.ranking:
        return trial.scores
    last = len(trial.ranking) - 1
    places = {response: place for place, response in enumerate(trial.ranking)}
    return tuple((last - places[response]) / last for response in range(last + 1))


def by_order(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The trials of each presented order, in the order in which it was first asked."""
    trials_of_order: dict[tuple[int, ...], list[Trial]] = {}
    for trial in trials:
        trials_of_order.setdefault(trial.order, []).append(trial)
    return list(trials_of_order.values())


def together(trials: Sequence[Trial]) -> Trial:
    """All trials as one: its scores are means over the orders of means over the votes.

    An order without any answer leaves the whole unanswered, for its bias would not be cancelled; an error in
    any trial is an error, so that all are asked again.
    """
    if len(trials) == 1:
        return trials[0]
    failed = next((trial for trial in trials if trial.outcome is Outcome.ERROR), None)
    orders = by_order(trials)
    answered = [[trial for trial in votes if points(trial)] for votes in orders]
    silent = next((votes[0] for votes, found in zip(orders, answered, strict=True) if not found), None)
    without = failed or silent
    if without is not None:
        return Trial(order=trials[0].order, outcome=without.outcome, detail=without.detail)
    scores = _mean_of_orders(answered, points)
    several = range(len(answered[0][0].criteria))
    criteria = tuple(_mean_of_orders(answered, partial(_criterion, at)) for at in several)
    return Trial(order=trials[0].order, outcome=Outcome.ANSWERED, scores=scores, criteria=criteria)


def _criterion(at: int, trial: Trial) -> Sequence[float]:
    return trial.criteria[at]


def _mean_of_orders(
    orders: Sequence[Sequence[Trial]], read: Callable[[Trial], Sequence[float]]
) -> tuple[float, ...]:
    return mean_scores([_mean([read(trial) for trial in votes]) for votes in orders])


def mean_scores(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The mean of every column, rounded, so that equal shares tie whatever the order in which they were added."""
    return tuple(round(mean, 12) for mean in _mean(rows))


def best(trial: Trial) -> frozenset[int]:
    """The responses judged best, several where they tie; empty if not answered."""
    values = points(trial)
    return frozenset(index for index, value in enumerate(values) if value == max(values))


def _mean(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
