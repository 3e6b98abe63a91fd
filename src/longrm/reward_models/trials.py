"""Several trials of one comparison: presented orders, and the average of their judgments."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from longrm.types import Judgment, Outcome, Trial


def latin_square(order: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """All rotations of an order: as many orders as responses, with every response in every position once.

    Averaging over them cancels position bias. For two responses these are both orders.
    """
    return tuple(order[row:] + order[:row] for row in range(len(order)))


def trial_of(judgment: Judgment, order: tuple[int, ...]) -> Trial:
    """Converts a judgment in presented order to the comparison's own order.

    A score that is not finite makes it `unparsed` and not `error`: the model is deterministic, so a retry is useless.
    """
    scores = _unpresented(judgment.scores, order)
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
        criteria=tuple(_unpresented(row, order) for row in judgment.criteria),
    )


def _unpresented(scores: Sequence[float], order: tuple[int, ...]) -> tuple[float, ...]:
    placed = dict(zip(order, scores, strict=False))
    return tuple(placed[index] for index in sorted(placed))


def points(judgment: Judgment) -> tuple[float, ...]:
    """One number a response, higher is better: the scores, or 1 for the first of a ranking down to 0 for the last.

    Empty if not answered.
    """
    if judgment.outcome is not Outcome.ANSWERED:
        return ()
    if judgment.scores or not judgment.ranking:
        return judgment.scores
    last = len(judgment.ranking) - 1
    places = {response: place for place, response in enumerate(judgment.ranking)}
    return tuple((last - places[response]) / last for response in range(last + 1))


def best(trial: Judgment) -> frozenset[int]:
    """The responses judged best, several if they tie; empty if not answered."""
    values = points(trial)
    return frozenset(index for index, value in enumerate(values) if value == max(values))


def by_order(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The trials grouped by presented order, in the order of first appearance."""
    groups: dict[tuple[int, ...], list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.order, []).append(trial)
    return list(groups.values())


def together(trials: Sequence[Trial]) -> Trial:
    """All trials as one, whose scores are means over the orders of means over the answered votes.

    If an order has no answer the result has none either, because its position bias would not be cancelled. If any trial
    is an error the result is one, so that all trials are repeated.
    """
    if len(trials) == 1:
        return trials[0]
    orders = by_order(trials)
    answered = [[trial for trial in votes if points(trial)] for votes in orders]
    errors = [trial for trial in trials if trial.outcome is Outcome.ERROR]
    unanswered = [votes[0] for votes, answers in zip(orders, answered, strict=True) if not answers]
    for failed in errors + unanswered:
        return Trial(order=trials[0].order, outcome=failed.outcome, detail=failed.detail)

    def mean(read: Callable[[Trial], Sequence[float]]) -> tuple[float, ...]:
        return mean_scores([_mean([read(trial) for trial in votes]) for votes in answered])

    return Trial(
        order=trials[0].order,
        outcome=Outcome.ANSWERED,
        scores=mean(points),
        criteria=tuple(mean(partial(_criterion, at)) for at in range(len(answered[0][0].criteria))),
    )


def _criterion(at: int, trial: Trial) -> Sequence[float]:
    return trial.criteria[at]


def mean_scores(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The mean of every column. Rounded, so that ties do not depend on the order of summation."""
    return tuple(round(mean, 12) for mean in _mean(rows))


def _mean(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
