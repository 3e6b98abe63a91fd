"""How far scores of a server agree with ours: figures, and relations that tell what is wrong."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_Scores = NDArray[np.float64]
"""One number a text; NaN where there is none."""

_NEAR_SIGMOID = 0.02
_MUCH_NEARER = 0.1
_SATURATED = 1e-3
_UNRELATED = 0.5
_FEWEST = 3


@dataclass(frozen=True, slots=True)
class ScoreAgreement:
    """Figures of the texts that have both scores.

    Attributes:
        texts: How many they are.
        max_difference: The largest difference to ours, in units of the logit; None where there is no text.
        mean_difference: The mean of its absolute values; likewise.
        max_change: The largest difference to what the same server answered in the first pass; likewise.
        spearman: The rank correlation (Spearman's rho, ties at their mean rank); None where a side is constant.
        pairs: Pairs of responses to one prompt that our scores order.
        flipped: How many of them the server orders the other way round.
        tied: How many of them it gives equal scores.
    """

    texts: int
    max_difference: float | None
    mean_difference: float | None
    max_change: float | None
    spearman: float | None
    pairs: int
    flipped: int
    tied: int


def agreement(ours: _Scores, theirs: _Scores, first: _Scores, rows: NDArray[np.int64]) -> ScoreAgreement:
    """Computes the figures.

    Args:
        ours: Our scores.
        theirs: The server's, of one pass.
        first: The server's, of the first pass.
        rows: The row of each text: responses of one row answer the same prompt.
    """
    both = np.isfinite(ours) & np.isfinite(theirs)
    left, right = ours[both], theirs[both]
    differences = np.abs(left - right)
    changes = np.abs(theirs - first)[np.isfinite(theirs) & np.isfinite(first)]
    pairs, flipped, tied = _pairs(left, right, rows[both])
    return ScoreAgreement(
        texts=int(both.sum()),
        max_difference=float(differences.max()) if both.any() else None,
        mean_difference=float(differences.mean()) if both.any() else None,
        max_change=float(changes.max()) if len(changes) else None,
        spearman=_spearman(left, right),
        pairs=pairs,
        flipped=flipped,
        tied=tied,
    )


def fault_of(ours: _Scores, theirs: _Scores) -> str | None:
    """What is wrong with a server that answers such scores, in one line; None where nothing is known to be.

    A relation is named where the scores follow it and are not ours: the sigmoid of ours, the softmax of one label,
    which is 1 whatever is read, or none at all.
    """
    both = np.isfinite(ours) & np.isfinite(theirs)
    left, right = ours[both], theirs[both]
    if len(left) < _FEWEST:
        return None
    off = np.abs(left - right).max()
    sigmoid = np.abs(1 / (1 + np.exp(-left)) - right).max()
    if bool((right == 1.0).all()) and min(off, sigmoid) > _SATURATED:
        return (
            "the server answers 1.0 whatever it reads, the softmax of a single label, as SGLang's /v1/classify does; "
            "ask its /classify (a URL without /v1)"
        )
    if sigmoid < _NEAR_SIGMOID and sigmoid < _MUCH_NEARER * off:
        return (
            "the server answers the sigmoid of the score, and not the score; serve the model with problem_type = "
            '"regression" in its config.json, or start vLLM with --pooler-config \'{"use_activation": false}\''
        )
    rho = _spearman(left, right)
    if (rho is None or rho < _UNRELATED) and np.sqrt(np.mean((left - right) ** 2)) > left.std():
        how = "constant" if rho is None else f"Spearman {rho:.2f}"
        return (
            f"the server's scores do not go with ours ({how}): it serves another model, or reads other tokens"
        )
    return None


def _spearman(left: _Scores, right: _Scores) -> float | None:
    from scipy.stats import spearmanr  # it takes a while to import

    if len(left) < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return None
    with warnings.catch_warnings(action="ignore"):  # of ranks that nearly coincide
        rho = float(spearmanr(left, right).statistic)
    return rho if math.isfinite(rho) else None


def _pairs(left: _Scores, right: _Scores, rows: NDArray[np.int64]) -> tuple[int, int, int]:
    pairs = flipped = tied = 0
    for row in np.unique(rows):
        own = rows == row
        above = np.triu_indices(int(own.sum()), 1)
        ahead = np.sign(np.subtract.outer(left[own], left[own])[above])
        theirs = np.sign(np.subtract.outer(right[own], right[own])[above])
        ordered = ahead != 0
        pairs += int(ordered.sum())
        flipped += int((ordered & (theirs == -ahead)).sum())
        tied += int((ordered & (theirs == 0)).sum())
    return pairs, flipped, tied
