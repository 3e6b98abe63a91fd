"""Several trials of one comparison: presented orders, and the average of their judgments."""

import math
from collections.abc import Sequence

from longrm.types import Judgment, Outcome, Scale, Trial


def latin_square(order: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """All rotations of an order, over which position bias cancels; for two responses these are both orders."""
    return tuple(order[row:] + order[:row] for row in range(len(order)))


def trial_of(judgment: Judgment, order: tuple[int, ...]) -> Trial:
    """Converts a judgment in presented order to the comparison's own order.

    A score that is not finite makes it `unparsed` and not `error`: the model is deterministic, so a retry is useless.
    """

    def in_own_order(scores: Sequence[float]) -> tuple[float, ...]:
        by_index = dict(zip(order, scores, strict=False))  # no scores if not answered
        return tuple(by_index[index] for index in sorted(by_index))

    scores = in_own_order(judgment.scores)
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
        criteria=tuple(in_own_order(row) for row in judgment.criteria),
        standard_errors=in_own_order(judgment.standard_errors),
    )


def presented(trial: Trial) -> Judgment:
    """The judgment of a trial in presented order: the inverse of `trial_of`."""
    order = trial.order
    return Judgment(
        trial.outcome,
        scores=tuple(trial.scores[index] for index in order) if trial.scores else (),
        ranking=tuple(order.index(index) for index in trial.ranking),
        explanation=trial.explanation,
        detail=trial.detail,
        prompt_tokens=trial.prompt_tokens,
        cut=trial.cut,
        attempts=trial.attempts,
        contradicted=trial.contradicted,
        criteria=tuple(tuple(row[index] for index in order) for row in trial.criteria),
    )


def to_scores(judgment: Judgment) -> tuple[float, ...]:
    """One number per response: its score, or 1 for the first of a ranking to 0 for the last; empty if not answered."""
    if judgment.outcome is not Outcome.ANSWERED:
        return ()
    if judgment.scores or not judgment.ranking:
        return judgment.scores
    last = len(judgment.ranking) - 1
    places = {response: place for place, response in enumerate(judgment.ranking)}
    return tuple((last - places[response]) / last for response in range(last + 1))


def best(trial: Judgment) -> frozenset[int]:
    """The responses judged best, several if they tie; empty if not answered."""
    values = to_scores(trial)
    return frozenset(index for index, value in enumerate(values) if value == max(values))


def by_order(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The trials grouped by presented order, in the order of first appearance."""
    groups: dict[tuple[int, ...], list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.order, []).append(trial)
    return list(groups.values())


def aggregate_trials(trials: Sequence[Trial]) -> Trial:
    """Combines trials into one: scores are averaged over the answered votes of each order, then over orders.

    If an order has no answer the result has none either, because its position bias would not be cancelled. If any trial
    is an error the result is one, so that all trials are repeated.
    """
    if len(trials) == 1:
        return trials[0]
    orders = by_order(trials)
    answered = [[trial for trial in votes if to_scores(trial)] for votes in orders]
    errors = [trial for trial in trials if trial.outcome is Outcome.ERROR]
    unanswered = [votes[0] for votes, answers in zip(orders, answered, strict=True) if not answers]
    for failed in errors + unanswered:
        return Trial(order=trials[0].order, outcome=failed.outcome, detail=failed.detail)
    # Votes are averaged before orders, so that an order with fewer answered votes does not weigh less. A row has the
    # scores, then each criterion's contribution to them.
    by_row = [
        [_mean(rows) for rows in zip(*([to_scores(trial), *trial.criteria] for trial in votes), strict=True)]
        for votes in answered
    ]
    scores, *criteria = [mean_scores(rows) for rows in zip(*by_row, strict=True)]
    return Trial(order=trials[0].order, outcome=Outcome.ANSWERED, scores=scores, criteria=tuple(criteria))


def merge_judgments(judgments: Sequence[Judgment], explanation: str) -> Judgment:
    """The answered judgment that several questions about one query lead to, still without scores."""
    tokens = [one.prompt_tokens for one in judgments if one.prompt_tokens is not None]
    return Judgment(
        Outcome.ANSWERED,
        explanation=explanation,
        prompt_tokens=max(tokens, default=None),
        cached_tokens=sum(one.cached_tokens for one in judgments),
        cut=max((one.cut for one in judgments if one.cut), key=lambda cut: cut.tokens, default=None),
        attempts=max(one.attempts for one in judgments),
        committed=next((one.committed for one in judgments if one.committed is not None), None),
    )


def mean_scores(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The mean of every column. Rounded, so that ties do not depend on the order of summation."""
    return tuple(round(mean, 12) for mean in _mean(rows))


def _mean(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))


def as_share(score: float, scale: Scale) -> float:
    """The score of a response on its own, from 0 to 1: points out of 10, or log-odds as a probability."""
    # The logistic function by tanh, which does not overflow.
    return score / 10 if scale == "points" else 0.5 + 0.5 * math.tanh(score / 2)
