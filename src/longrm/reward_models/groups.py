"""Group rewards: verdicts about two responses at a time become one number for each response of a group."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from longrm.errors import ConfigError
from longrm.reward_models.protocol import RewardModel, WrappedRewardModel
from longrm.reward_models.trials import merge_judgments, to_scores, trial_of
from longrm.rng import key_hash
from longrm.types import Judgment, Outcome, Query, text_of

_logger = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]
Pair = tuple[int, int]
"""Two responses in the order in which they are shown."""

# Pairs whose prompts begin alike are neighbors, so that a prefix cache finds the first response, too.


def _round_robin(count: int, anchor: int) -> list[Pair]:
    return list(permutations(range(count), 2))


def _anchored(count: int, anchor: int) -> list[Pair]:
    others = [index for index in range(count) if index != anchor]
    return [(anchor, other) for other in others] + [(other, anchor) for other in others]


GROUPS: Mapping[str, Callable[[int, int], list[Pair]]] = {"round-robin": _round_robin, "anchor": _anchored}
"""The registry of `judge.group`: the pairs to ask about, from the number of responses and the anchor's index."""


def verdicts_asked(group: str, responses: int) -> int:
    """How many verdicts a group of so many responses costs, without retries."""
    return len(GROUPS[group](responses, 0))


class GroupRewardModel(WrappedRewardModel):
    """Asks a judge about two responses at a time, in both orders; the score is the Bradley-Terry strength.

    "round-robin" compares all pairs, N (N - 1) verdicts for N responses; "anchor" compares each response with one, the
    anchor, 2 (N - 1) verdicts. The anchor is chosen by a hash of the query's id and the response, so it depends neither
    on the presented order nor on the quality of a response.

    A tie is half a win for each. With a judge of log-odds (`tokens:MODEL`) a response's share of the win is its
    probability. Verdicts without an answer are omitted; the judgment's `detail` and `missing` count them. If the others
    do not connect all responses, strengths cannot be compared, and the outcome is that of the first missing verdict. If
    any verdict ended in an error the outcome is an error, so that all are asked again.

    Attributes:
        missing: The number of verdicts without an answer so far, by outcome.
    """

    def __init__(self, inner: RewardModel, group: str) -> None:
        if not inner.sees_order:
            raise ConfigError(
                f"judge.group = '{group}' requires a judge that compares responses in the order shown, such as a "
                f"causal language model or an endpoint, and {inner.name} does not"
            )
        super().__init__(inner)
        self.sees_order, self.by_criterion, self.scale = False, False, "verdict"
        self.missing: Counter[str] = Counter()
        self._pairs = GROUPS[group]
        four, eight = (verdicts_asked(group, count) for count in (4, 8))
        _logger.info(
            "%s: judge.group = '%s' asks for %d verdicts about 4 responses, %d about 8",
            self.name,
            group,
            four,
            eight,
        )

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Asks for the verdicts about all pairs of all queries in one call."""
        plans = [self._pairs(len(query.responses), _anchor(query)) for query in queries]
        asked = [
            replace(
                query,
                responses=tuple(query.responses[index] for index in pair),
                trial=query.trial * len(pairs) + number,  # sampled verdicts need seeds of their own
            )
            for query, pairs in zip(queries, plans, strict=True)
            for number, pair in enumerate(pairs)
        ]
        self.inner.on_progress = self.on_progress
        verdicts = iter(self.inner.judge(asked))
        return [
            self._judgment(len(query.responses), {pair: next(verdicts) for pair in pairs})
            for query, pairs in zip(queries, plans, strict=True)
        ]

    def _judgment(self, count: int, verdicts: Mapping[Pair, Judgment]) -> Judgment:
        if not verdicts:
            return Judgment(Outcome.ERROR, detail=f"judge.group needs at least 2 responses, got {count}")
        wins, lines = np.zeros((count, count)), []
        missing: list[Judgment] = []
        for (first, second), judged in verdicts.items():
            verdict = trial_of(judged, (0, 1))  # unparsed if a score is not finite
            values = to_scores(verdict)
            if values:
                lead = values[0] - values[1]
                share = float(expit(lead)) if self.inner.scale == "logit" else (1 + np.sign(lead)) / 2
                wins[first, second] += share
                wins[second, first] += 1 - share
            else:
                missing.append(verdict)
            result = ", ".join(f"{value:.4g}" for value in values) or verdict.outcome.replace("_", " ")
            heading = f"A = response {first + 1}, B = response {second + 1}: {result}"
            lines.append(f"{heading}\n{verdict.explanation}".rstrip())
        detail = self._count(missing, len(verdicts))
        judgment = merge_judgments([*verdicts.values()], "\n\n".join(lines))
        failed = next((one for one in missing if one.outcome is Outcome.ERROR), None)
        apart = _not_connected(wins)
        if failed is None and apart is not None:
            failed = missing[0]
            detail += f", so response {apart + 1} cannot be compared with response 1"
        if failed is not None:
            return replace(judgment, outcome=failed.outcome, detail=f"{failed.detail}; {detail}")
        strengths, covariance = bradley_terry(wins)
        # Rounded, so that ties do not depend on the order of summation. + 0.0 turns -0.0 into 0.0.
        scores = tuple(round(value, 9) + 0.0 for value in strengths.tolist())
        errors = tuple(round(value, 9) for value in np.sqrt(np.diag(covariance)).tolist())
        table = [
            f"Response {number}: {score:.3f} (standard error {error:.3f})"
            for number, (score, error) in enumerate(zip(scores, errors, strict=True), start=1)
        ]
        heading = f"Bradley-Terry strengths from {len(verdicts) - len(missing)} of {len(verdicts)} verdicts:"
        explanation = "\n\n".join(["\n".join([heading, *table]), *lines])
        return replace(
            judgment, scores=scores, standard_errors=errors, explanation=explanation, detail=detail
        )

    def _count(self, missing: Sequence[Judgment], asked: int) -> str:
        """Counts verdicts without an answer and logs the first of each kind; returns how many there are in words."""
        outcomes = Counter(str(verdict.outcome) for verdict in missing)
        for outcome in outcomes.keys() - self.missing.keys():
            first = next(verdict for verdict in missing if verdict.outcome == outcome)
            _logger.warning(
                "%s: no verdict (%s): %s; such verdicts are omitted, and counted in `missing`",
                self.name,
                outcome,
                first.detail,
            )
        self.missing.update(outcomes)
        kinds = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
        return f"{len(missing)} of {asked} verdicts are missing ({kinds})" if missing else ""


def _anchor(query: Query) -> int:
    keys = [key_hash(query.id, text_of(response)) for response in query.responses]
    return min(range(len(keys)), key=keys.__getitem__, default=0)


def _not_connected(wins: FloatArray) -> int | None:
    """The first response that no chain of comparisons connects with response 0; None if there is none."""
    compared = (wins + wins.T > 0) | np.eye(len(wins), dtype=bool)
    reached = compared[0]
    for _ in wins:
        reached = compared[reached].any(axis=0)
    return None if reached.all() else int(np.argmin(reached))


def bradley_terry(wins: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Strengths s with P(i beats j) = sigmoid(s_i - s_j) (Bradley and Terry 1952), and their covariance.

    Maximizes sum_ij w_ij log sigmoid(s_i - s_j), where w are the wins and a prior of N - 1 ties, one for each strength
    that is free, spread evenly over the pairs that were compared. So a response that wins every comparison has a finite
    strength. For two responses the difference is log((w_12 + 1/2) / (w_21 + 1/2)), the estimate of log-odds without
    bias to first order; for more the prior is Firth's (1993) on average over pairs.

    Args:
        wins: N x N; entry (i, j) is how often i won against j, a tie counts half to each. All responses must be
            connected by comparisons.

    Returns:
        The strengths, with mean 0, in log-odds, and the inverse Fisher information of strengths with mean 0: the
        square roots of its diagonal are their standard errors if verdicts are independent.
    """
    count = len(wins)
    compared = wins + wins.T > 0
    weighted = wins + compared * (count - 1) / compared.sum()
    games, strengths = weighted + weighted.T, np.zeros(count)
    for _ in range(1000):  # ten are usual
        share = expit(strengths[:, None] - strengths)
        gradient = (weighted - games * share).sum(axis=1)
        weights = games * share * (1 - share)
        # The information is singular: strengths are defined up to a constant. Adding 1/N and subtracting it from the
        # inverse gives the inverse among strengths with mean 0.
        covariance = np.linalg.inv(np.diag(weights.sum(axis=1)) - weights + 1 / count) - 1 / count
        if np.abs(gradient).max() < 1e-10:
            break
        step = covariance @ gradient
        # Undamped, Newton's method may diverge. This factor is safe for logistic losses (Sun and Tran-Dinh 2019,
        # theorem 2 with nu = 2) and tends to 1.
        reach = float(np.ptp(step))
        strengths = strengths + step * np.log1p(reach) / reach
    return strengths, covariance
