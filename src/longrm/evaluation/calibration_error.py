"""Calibration of margins: reliability curve and expected calibration error."""

from typing import assert_never

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit

from longrm.evaluation.summaries import CalibratedError, Calibration, CalibrationError, ConfidenceBin, Link
from longrm.evaluation.table import FloatArray, GoldPairs, IntArray, ScoreTable, ordered_pairs
from longrm.reward_models.trials import by_order, points
from longrm.types import Scale

EDGES = np.linspace(0.5, 1.0, 11).round(2)
"""Bins of confidence; an edge belongs to the bin below it."""

_SIMULATIONS = 400


def calibration(table: ScoreTable, pairs: GoldPairs, scale: Scale, *, seed: int) -> Calibration | None:
    """The calibration of the verdicts on gold pairs; None if margins have no meaning, or no pair was judged.

    The confidence in a verdict is the probability, 0.5 to 1, that its margin expresses. For logits that is
    sigmoid(|margin|), reported also with a fitted temperature; for points of a rubric it is the same with the
    maximum-likelihood temperature on these pairs; for verdicts it is the share of votes (means over orders of means
    over votes) for the winning side. A tie has confidence 0.5 and is half right.

    The expected calibration error is the mean of |accuracy - confidence| over bins of equal width, weighted by their
    pairs. It is biased upwards for few pairs, so that a bootstrap around it misses the truth. Instead the summary
    reports the error that a perfectly calibrated judge has by chance, simulated with the same confidences: an error
    above its `high` is more than chance. Simulated pairs are independent; those of one group are not, which can raise
    the error further.
    """
    margin = _vote_shares(table) if scale == "verdict" else pairs.margin
    judged = np.isfinite(margin)
    if scale == "none" or not judged.any():
        return None
    margin = margin[judged]
    link: Link
    right = (margin > 0) + 0.5 * (margin == 0)
    match scale:
        case "verdict":
            link, temperature, confidence = "vote share", 1.0, 0.5 + np.abs(margin) / 2
        case "logit":
            link, temperature, confidence = "logistic", 1.0, expit(np.abs(margin))
        case "points":
            link, temperature = "logistic, temperature fitted", fitted_temperature(margin)
            confidence = expit(np.abs(margin) / temperature)
        case unknown:
            assert_never(unknown)
    fitted, place = fitted_temperature(margin) if scale == "logit" else None, _bins(confidence)
    return Calibration(
        link=link,
        temperature=temperature,
        ece=_error(confidence, right, seed),
        temperature_fitted=fitted,
        ece_fitted=None if fitted is None else _error(expit(np.abs(margin) / fitted), right, seed),
        bins=tuple(
            ConfidenceBin(
                low=float(EDGES[index]),
                high=float(EDGES[index + 1]),
                n=int((place == index).sum()),
                confidence=float(confidence[place == index].mean()),
                accuracy=float(right[place == index].mean()),
            )
            for index in np.unique(place).tolist()
        ),
    )


def fitted_temperature(margin: FloatArray) -> float:
    """The maximum-likelihood temperature: logistic regression of the gold order on the margins, without intercept.

    It is searched between 1/100 and 100 times the mean margin, where confidence is almost 1 or almost 1/2.
    """
    size = float(np.abs(margin).mean()) or 1.0

    def loss(log_temperature: float) -> float:
        return float(np.logaddexp(0.0, -margin / (size * np.exp(log_temperature))).sum())

    reach = np.log(100.0)
    return size * float(np.exp(minimize_scalar(loss, bounds=(-reach, reach), method="bounded").x))


def _vote_shares(table: ScoreTable) -> FloatArray:
    """For each gold pair, the share of votes for the better response less that for the worse."""
    shares = []
    for record in table.records:
        orders = [[found for trial in votes if (found := points(trial))] for votes in by_order(record.trials)]
        for better, worse in ordered_pairs(record.ranks or ()):
            signs = [[(p[better] > p[worse]) - (p[better] < p[worse]) for p in v] for v in orders]
            shares.append(sum(sum(s) / len(s) for s in signs) / len(signs) if all(signs) else np.nan)
    return np.array(shares, np.float64)


def _bins(confidence: FloatArray) -> IntArray:
    # Rounded, so that a share of votes on an edge of a bin stays there.
    return np.searchsorted(EDGES[1:-1], confidence.round(12), "left")


def _error(confidence: FloatArray, right: FloatArray, seed: int) -> CalibrationError:
    """The error, and what it would be if the confidences were right: its mean and its 95th percentile."""
    place = _bins(confidence)

    def of(outcome: FloatArray) -> float:
        return float(np.abs(np.bincount(place, outcome - confidence)).sum() / outcome.size)

    rng, tied = np.random.default_rng(seed), right == 0.5
    fair = [of(np.where(tied, 0.5, rng.random(right.size) < confidence)) for _ in range(_SIMULATIONS)]
    calibrated = CalibratedError(mean=float(np.mean(fair)), high=float(np.quantile(fair, 0.95)))
    return CalibrationError(value=of(right), n=right.size, if_calibrated=calibrated)
