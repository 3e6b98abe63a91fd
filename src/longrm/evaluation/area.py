"""Areas under the ROC curve of the scores, with their resamples.

`auc_margin` ranks the margins d of gold-ordered pairs (labelled 1) among their negatives -d (labelled 0);
`auc_pooled` ranks the scores of the best responses among those of all others, over all prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from longrm.evaluation.intervals import FloatArray, IntArray
from longrm.evaluation.scoring import ordered_pairs

BINS = 256
"""Quantile bins in which resamples rank the scores: few enough that ranking is a matrix product."""


@dataclass(frozen=True, slots=True)
class RankedSample:
    """Two sets of values whose separation an AUC measures, each value with the row it came from."""

    positive: FloatArray
    positive_row: IntArray
    negative: FloatArray
    negative_row: IntArray

    def subset(self, kept: npt.NDArray[np.bool_]) -> Self:
        """Keeps the values of the kept rows and renumbers the rows."""
        row = np.cumsum(kept) - 1
        positive, negative = kept[self.positive_row], kept[self.negative_row]
        return replace(
            self,
            positive=self.positive[positive],
            positive_row=row[self.positive_row[positive]],
            negative=self.negative[negative],
            negative_row=row[self.negative_row[negative]],
        )


def ranked_sample(
    positive: Sequence[tuple[int, float]], negative: Sequence[tuple[int, float]]
) -> RankedSample:
    """Builds a sample from (row, value) on both sides."""
    rows = [np.array([row for row, _ in side], np.int64) for side in (positive, negative)]
    values = [np.array([value for _, value in side], np.float64) for side in (positive, negative)]
    return RankedSample(values[0], rows[0], values[1], rows[1])


def margins(scores: Sequence[Sequence[float]], ranks: Sequence[Sequence[int]]) -> RankedSample:
    """The margin of every gold-ordered pair against its negative; rows without scores have none."""
    found = [
        (row, values[i] - values[j])
        for row, (values, gold) in enumerate(zip(scores, ranks, strict=True))
        if values
        for i, j in ordered_pairs(gold)
    ]
    return ranked_sample(found, [(row, -margin) for row, margin in found])


def pooled(scores: Sequence[Sequence[float]], ranks: Sequence[Sequence[int]]) -> RankedSample:
    """Scores of the responses that gold ranks best against all others; rows without scores have none."""
    best: list[tuple[int, float]] = []
    others: list[tuple[int, float]] = []
    for row, (values, gold) in enumerate(zip(scores, ranks, strict=True)):
        top = min(gold)
        for value, rank in zip(values, gold, strict=False):
            (best if rank == top else others).append((row, value))
    return ranked_sample(best, others)


def area_of(sample: RankedSample) -> float:
    """Area under the ROC curve: the probability that a positive value exceeds a negative one, ties 0.5."""
    negatives = np.sort(sample.negative)
    below = np.searchsorted(negatives, sample.positive, "left").sum(dtype=np.int64)
    upto = np.searchsorted(negatives, sample.positive, "right").sum(dtype=np.int64)
    return float(below + upto) / (2 * sample.positive.size * negatives.size)


def area_replicates(sample: RankedSample, group: IntArray, weights: npt.NDArray[np.float32]) -> FloatArray:
    """The area on every resample, by rank sums weighted with how often each group was drawn.

    Where there are more than `BINS` distinct values, those of one quantile bin count as ties; the replicates
    are then moved by what that costs on the data itself.
    """
    value = area_of(sample)
    if value in (0.0, 1.0):  # separated on the whole, hence on every resample
        return np.full(weights.shape[0], value)
    everything = np.concatenate([sample.positive, sample.negative])
    cuts = np.unique(everything)
    if cuts.size > BINS:
        cuts = np.unique(np.quantile(everything, np.arange(1, BINS) / BINS, method="inverted_cdf"))

    sides = [
        _bin_counts(values, group[rows], cuts, weights.shape[1])
        for values, rows in (
            (sample.positive, sample.positive_row),
            (sample.negative, sample.negative_row),
        )
    ]
    shift = value - _binned_area(sides, np.ones_like(weights[:1]))[0]
    drawn: FloatArray = np.clip(_binned_area(sides, weights) + shift, 0.0, 1.0)
    return drawn


def _bin_counts(
    values: FloatArray, group: IntArray, cuts: FloatArray, groups: int
) -> npt.NDArray[np.float32]:
    """How many values of each group lie in each bin, [groups, bins]."""
    cells = np.searchsorted(cuts, values, "right") + group * (cuts.size + 1)
    counts = np.bincount(cells, minlength=groups * (cuts.size + 1))
    return counts.reshape(groups, -1).astype(np.float32)


def _binned_area(sides: Sequence[npt.NDArray[np.float32]], weights: npt.NDArray[np.float32]) -> FloatArray:
    """The area of binned values for each row of group weights; counts stay exact in float32."""
    positive, negative = ((weights @ side).astype(np.float64) for side in sides)
    below = np.cumsum(negative, axis=1) - negative / 2
    wins: FloatArray = (positive * below).sum(axis=1)
    total: FloatArray = positive.sum(axis=1) * negative.sum(axis=1)
    return wins / total
