"""What a metric reads from a table: values row by row, their value, and their cluster-bootstrap replicates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

BINS = 256
"""Quantile bins in which resamples rank the scores: few enough that ranking is a matrix product."""


class Bootstrap(TypedDict):
    """How intervals are drawn: the seed, and how many times the groups are resampled."""

    seed: int
    resamples: int


@dataclass(frozen=True, slots=True)
class RatioSample:
    """A ratio of two sums over rows.

    Attributes:
        total: What each row adds above.
        weight: What each row adds below: 1 in a plain mean.
    """

    total: FloatArray
    weight: FloatArray

    @property
    def used(self) -> Mask:
        """The rows that have weight."""
        return np.asarray(self.weight > 0)

    @property
    def value(self) -> float:
        """The ratio."""
        return float(self.total.sum() / self.weight.sum())

    @property
    def n(self) -> int:
        """What the value is a mean over."""
        return round(float(self.weight.sum()))

    def subset(self, kept: Mask) -> Self:
        """The sample of the kept rows alone."""
        return replace(self, total=self.total[kept], weight=self.weight[kept])

    def replicates(self, group: IntArray, **drawn: Unpack[Bootstrap]) -> FloatArray:
        """The ratio on every cluster-bootstrap resample of the groups, [resamples]."""
        return ratio_replicates(self.total, self.weight, group, **drawn)

    def is_independent(self, groups: int) -> bool:
        """Whether every group is a single outcome of 0 or 1, so that Wilson's interval applies."""
        return groups == self.total.size and bool(
            (self.weight == 1).all() and np.isin(self.total, (0.0, 1.0)).all()
        )


@dataclass(frozen=True, slots=True)
class RankedSample:
    """Two sets of values whose separation an area under the ROC curve measures.

    Attributes:
        positive: The values that should be the larger ones.
        positive_row: The row that each comes from.
        negative: The values that should be the smaller ones.
        negative_row: The row that each comes from.
        rows: Number of rows, those without values included.
        mirrored: Whether each negative is a positive with its sign turned, so that the positives alone are counted.
    """

    positive: FloatArray
    positive_row: IntArray
    negative: FloatArray
    negative_row: IntArray
    rows: int
    mirrored: bool = False

    @classmethod
    def of(
        cls,
        positive: Sequence[tuple[int, float]],
        negative: Sequence[tuple[int, float]],
        *,
        rows: int,
        mirrored: bool = False,
    ) -> Self:
        """Builds a sample from pairs of row and value on both sides."""
        numbers = [np.array([row for row, _ in side], np.int64) for side in (positive, negative)]
        values = [np.array([value for _, value in side], np.float64) for side in (positive, negative)]
        return cls(values[0], numbers[0], values[1], numbers[1], rows, mirrored)

    @property
    def used(self) -> Mask:
        """The rows that have values."""
        used = np.zeros(self.rows, np.bool_)
        used[self.positive_row] = True
        return used

    @property
    def value(self) -> float:
        """Area under the ROC curve: the probability that a positive exceeds a negative, ties counting half."""
        negatives = np.sort(self.negative)
        below = np.searchsorted(negatives, self.positive, "left").sum(dtype=np.int64)
        upto = np.searchsorted(negatives, self.positive, "right").sum(dtype=np.int64)
        return float(below + upto) / (2 * self.positive.size * negatives.size)

    @property
    def n(self) -> int:
        """The values that are ranked; where negatives mirror the positives, the positives alone."""
        return self.positive.size + (0 if self.mirrored else self.negative.size)

    def subset(self, kept: Mask) -> Self:
        """The sample of the kept rows alone, which are numbered anew."""
        row = np.cumsum(kept) - 1
        positive, negative = kept[self.positive_row], kept[self.negative_row]
        return replace(
            self,
            positive=self.positive[positive],
            positive_row=row[self.positive_row[positive]],
            negative=self.negative[negative],
            negative_row=row[self.negative_row[negative]],
            rows=int(kept.sum()),
        )

    def replicates(self, group: IntArray, **drawn: Unpack[Bootstrap]) -> FloatArray:
        """The area on every resample, by rank sums weighted with how often each group was drawn, [resamples].

        Where there are more than `BINS` distinct values, those of one quantile bin count as ties; the replicates
        are then moved by what that costs on the data itself.
        """
        value = self.value
        if value in (0.0, 1.0):  # separated on the whole, hence on every resample
            return np.full(drawn["resamples"], value)
        weights = cluster_weights(int(group.max()) + 1, drawn["resamples"], drawn["seed"])
        everything = np.concatenate([self.positive, self.negative])
        cuts = np.unique(everything)
        if cuts.size > BINS:
            cuts = np.unique(np.quantile(everything, np.arange(1, BINS) / BINS, method="inverted_cdf"))
        shape = weights.shape[1], cuts.size + 1
        sides = []  # how many values of each group lie in each bin, [groups, bins]
        for values, row in ((self.positive, self.positive_row), (self.negative, self.negative_row)):
            cells = np.searchsorted(cuts, values, "right") + group[row] * shape[1]
            counts = np.bincount(cells, minlength=math.prod(shape))
            sides.append(counts.reshape(shape).astype(np.float32))
        shift = value - _binned_area(sides, np.ones_like(weights[:1]))[0]
        areas: FloatArray = np.clip(_binned_area(sides, weights) + shift, 0.0, 1.0)
        return areas

    def is_independent(self, groups: int) -> bool:
        """An area is no share of independent outcomes."""
        return False


Sample = RatioSample | RankedSample
"""What a metric makes of a table."""


@lru_cache(maxsize=2)
def cluster_weights(groups: int, resamples: int, seed: int) -> npt.NDArray[np.float32]:
    """How often each group is drawn in each resample: multinomial counts, read-only, [resamples, groups]."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, groups, size=(resamples, groups), dtype=np.int32)
    weights = np.empty((resamples, groups), np.float32)
    for row, draws in zip(weights, drawn, strict=True):
        row[:] = np.bincount(draws, minlength=groups)
    weights.setflags(write=False)
    return weights


def ratio_replicates(
    total: FloatArray, weight: FloatArray, group: IntArray, **drawn: Unpack[Bootstrap]
) -> FloatArray:
    """A ratio on every cluster-bootstrap resample of the groups 0 .. max, [resamples].

    Totals and weights may have further axes behind that of the rows: ratios on the same resamples, then
    [resamples, ...]. Where a resample drew no weight, the ratio is NaN.
    """
    groups = int(group.max()) + 1
    columns = np.stack([total, weight], axis=-1).reshape(group.size, -1)
    sums = np.stack([np.bincount(group, column, groups) for column in columns.T], axis=1)
    weights = cluster_weights(groups, drawn["resamples"], drawn["seed"])
    resampled = np.empty((weights.shape[0], sums.shape[1]))
    for start in range(0, weights.shape[0], 256):
        # In float64, counts and halves add up exactly, so that unanimity shows as such.
        resampled[start : start + 256] = weights[start : start + 256].astype(np.float64) @ sums
    above_below = resampled.reshape(weights.shape[0], *total.shape[1:], 2)
    with np.errstate(invalid="ignore"):
        ratios: FloatArray = above_below[..., 0] / above_below[..., 1]
    return ratios


def _binned_area(sides: Sequence[npt.NDArray[np.float32]], weights: npt.NDArray[np.float32]) -> FloatArray:
    """The area of binned values for each row of group weights; counts stay exact in float32."""
    positive, negative = ((weights @ side).astype(np.float64) for side in sides)
    below = np.cumsum(negative, axis=1) - negative / 2
    wins: FloatArray = (positive * below).sum(axis=1)
    total: FloatArray = positive.sum(axis=1) * negative.sum(axis=1)
    return wins / total
