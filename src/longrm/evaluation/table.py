"""Judgments with gold as columns, and samples: what metrics compute from them for a value and its bootstrap."""

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, groupby
from typing import Self, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from longrm.reward_models.trials import to_scores
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Resamples rank scores in quantile bins: few enough that ranking all resamples is one matrix product.
BINS = 256


class Bootstrap(TypedDict):
    """Seed and number of resamples of the cluster bootstrap."""

    seed: int
    resamples: int


@dataclass(frozen=True, slots=True)
class RatioSample:
    """A ratio of two sums over rows, such as a mean of credits."""

    total: FloatArray  # numerator of each row
    weight: FloatArray  # denominator of each row: 1 in a plain mean

    @property
    def used(self) -> Mask:
        """The rows with weight."""
        return np.asarray(self.weight > 0)

    @property
    def value(self) -> float:
        """The ratio."""
        return float(self.total.sum() / self.weight.sum())

    @property
    def n(self) -> int:
        """Number of observations: the total weight."""
        return round(float(self.weight.sum()))

    def subset(self, kept: Mask) -> Self:
        """The sample of some rows."""
        return replace(self, total=self.total[kept], weight=self.weight[kept])

    def replicates(self, group: IntArray, **drawn: Unpack[Bootstrap]) -> FloatArray:
        """The ratio on every cluster-bootstrap resample of the groups, [resamples]."""
        return ratio_replicates(self.total, self.weight, group, **drawn)


@dataclass(frozen=True, slots=True)
class RankedSample:
    """Two sets of scores, whose separation is measured by the area under the ROC curve."""

    scores: FloatArray
    row: IntArray  # the row of the table that each score is from
    positive: Mask  # whether each score should be larger than the others
    rows: int  # all rows, with and without scores
    mirrored: bool = False  # the others are the negated positives; then only positives count for n

    @property
    def used(self) -> Mask:
        """The rows with scores."""
        return np.isin(np.arange(self.rows), self.row)

    @property
    def value(self) -> float:
        """Area under the ROC curve: the probability that a positive exceeds a negative, ties counting half."""
        positives, negatives = self.scores[self.positive], np.sort(self.scores[~self.positive])
        below = np.searchsorted(negatives, positives, "left").sum(dtype=np.int64)
        upto = np.searchsorted(negatives, positives, "right").sum(dtype=np.int64)
        return float(below + upto) / (2 * positives.size * negatives.size)

    @property
    def n(self) -> int:
        """Number of ranked scores."""
        return int(self.positive.sum()) if self.mirrored else self.scores.size

    def subset(self, kept: Mask) -> Self:
        """The sample of some rows, which are renumbered."""
        number, used = np.cumsum(kept) - 1, kept[self.row]
        return replace(
            self,
            scores=self.scores[used],
            row=number[self.row[used]],
            positive=self.positive[used],
            rows=int(kept.sum()),
        )

    def replicates(self, group: IntArray, **drawn: Unpack[Bootstrap]) -> FloatArray:
        """The area on every resample, by rank sums weighted with how often each group was drawn, [resamples]."""
        value = self.value
        if value in (0.0, 1.0):  # perfectly separated, hence on every resample too
            return np.full(drawn["resamples"], value)
        weights = cluster_weights(int(group.max()) + 1, drawn["resamples"], drawn["seed"])
        cuts = np.unique(self.scores)
        if cuts.size > BINS:  # scores in one quantile bin then count as ties
            cuts = np.unique(np.quantile(self.scores, np.arange(1, BINS) / BINS, method="inverted_cdf"))
        shape = weights.shape[1], cuts.size + 1
        cells = np.searchsorted(cuts, self.scores, "right") + group[self.row] * shape[1]
        # Number of positives and of negatives by group and bin, each [groups, bins]
        sides = [
            np.bincount(cells[side], minlength=math.prod(shape)).reshape(shape).astype(np.float32)
            for side in (self.positive, ~self.positive)
        ]

        def areas(weights: npt.NDArray[np.float32]) -> FloatArray:
            # Counts stay exact in float32.
            positive, negative = ((weights @ side).astype(np.float64) for side in sides)
            below = np.cumsum(negative, axis=1) - negative / 2
            wins, total = (positive * below).sum(axis=1), positive.sum(axis=1) * negative.sum(axis=1)
            return np.asarray(wins / total)

        # Binning changes the area a little; all replicates are shifted by its effect on the data itself.
        shift = value - areas(np.ones_like(weights[:1]))[0]
        return np.asarray(np.clip(areas(weights) + shift, 0.0, 1.0))


Sample = RatioSample | RankedSample
"""What a metric computes from a table: enough for its value and its bootstrap."""


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
    """A ratio on every cluster-bootstrap resample of the groups 0 .. max, [resamples]; NaN without any weight.

    `total` and `weight` [rows, ...] may have further axes: the ratios are then [resamples, ...], on the same resamples.
    """
    groups = int(group.max()) + 1
    columns = np.stack([total, weight], axis=-1).reshape(group.size, -1)
    sums = np.stack([np.bincount(group, column, groups) for column in columns.T], axis=1)
    weights = cluster_weights(groups, drawn["resamples"], drawn["seed"])
    resampled = np.empty((weights.shape[0], sums.shape[1]))
    for start in range(0, weights.shape[0], 256):
        # Not float32: in float64 counts and halves add up exactly, so that unanimous resamples are exactly equal.
        resampled[start : start + 256] = weights[start : start + 256].astype(np.float64) @ sums
    above_below = resampled.reshape(weights.shape[0], *total.shape[1:], 2)
    with np.errstate(invalid="ignore"):
        ratios: FloatArray = above_below[..., 0] / above_below[..., 1]
    return ratios


BEST_OF = ("2", "3", "4")
"""The subtypes of rankings in Long-RewardBench; all others are pairs."""

Measure = Callable[["ScoreTable"], Sample]
"""The function of a metric."""

Credit = Callable[[Sequence[float], Sequence[int]], float]
"""The credit of one comparison: judged values (higher is better) against gold ranks (1 = best), ties by chance."""


class ScoreTable:
    """The scored records as columns, one row per comparison. Parts of a table are masks of its rows.

    Attributes:
        records: The records that are scored: with a gold order, and not an error.
        ranks: Gold ranks, not all equal.
        values: One number per response, higher is better, from scores or ranking; () if unanswered.
        scores: The scores of each response; () if unanswered, or answered with a ranking.
        size: Number of responses, [rows].
        answered: Whether there is an answer, [rows].
        has_scores: Whether there are scores, [rows].
        group: Code of the group, from 0 in order of occurrence, [rows].
        length: Length bucket in tokens, -1 if unknown, [rows].
    """

    def __init__(self, records: Iterable[JudgmentRecord]) -> None:
        self.records = [record for record in records if is_scored(record)]
        self.ranks = [record.ranks or () for record in self.records]
        self.values = [to_scores(record) for record in self.records]
        self.scores = [
            r.scores if values else () for r, values in zip(self.records, self.values, strict=True)
        ]
        self.has_scores = np.array([bool(scores) for scores in self.scores], np.bool_)
        self.size = np.array([len(gold) for gold in self.ranks], np.int64)
        self.answered = np.array([bool(values) for values in self.values], np.bool_)
        self.group = codes_of(record.group for record in self.records)
        self.length = np.array([-1 if r.length is None else r.length for r in self.records], np.int64)
        # Samples measured so far. Parts take their rows of them, which is much faster than measuring every part anew.
        self._samples: dict[tuple[Measure, bool], Sample] = {}

    @property
    def groups(self) -> int:
        """Number of groups in the table."""
        return int(self.group.max()) + 1 if self.group.size else 0

    def sample(self, measure: Measure, *, by_chance: bool = False) -> Sample:
        """A metric's sample of this table; `by_chance`: with all responses tied, which earns the chance level."""
        key = measure, by_chance
        if key not in self._samples:
            table = self
            if by_chance:
                table = copy(self)
                table.values = table.scores = [(0.0,) * len(gold) for gold in self.ranks]
            self._samples[key] = measure(table)
        return self._samples[key]

    def per_comparison(self, credit: Credit) -> RatioSample:
        """The mean of a credit over comparisons; unanswered ones earn 0."""
        earned = [credit(*row) if row[0] else 0.0 for row in zip(self.values, self.ranks, strict=True)]
        return RatioSample(np.array(earned, np.float64), np.ones(len(earned)))


class GoldPairs:
    """All pairs of a better and a worse response, by gold, as columns.

    Attributes:
        group: Code of the group, [pairs].
        margin: Judged value of the better response minus that of the worse; NaN if unanswered, [pairs].
        longer: Characters of the better response minus those of the worse; NaN if unknown, [pairs].
        right: 1 if the better response is judged better, 0.5 if both tie, else 0, [pairs].
        answered: 1 if the pair was judged, else 0, [pairs].
    """

    def __init__(self, table: ScoreTable) -> None:
        row: list[int] = []
        margin: list[float] = []
        longer: list[float] = []
        for at, (record, values) in enumerate(zip(table.records, table.values, strict=True)):
            characters = record.characters
            for better, worse in ordered_pairs(table.ranks[at]):
                row.append(at)
                margin.append(values[better] - values[worse] if values else np.nan)
                longer.append(characters[better] - characters[worse] if characters else np.nan)
        self.group = table.group[np.array(row, np.int64)]
        self.margin = np.array(margin, np.float64)
        self.longer = np.array(longer, np.float64)
        self.right: FloatArray = (self.margin > 0) + 0.5 * (self.margin == 0)
        self.answered = np.isfinite(self.margin).astype(np.float64)


def codes_of(names: Iterable[str]) -> IntArray:
    """Numbers names from 0 in order of occurrence."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(name, len(codes)) for name in names], np.int64)


def recoded(codes: IntArray) -> IntArray:
    """The codes of some rows without gaps, from 0, as resampling needs them."""
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)


def has_gold_order(record: JudgmentRecord) -> bool:
    """Whether the gold ranks of a record are known and not all equal."""
    return record.ranks is not None and len(set(record.ranks)) > 1


def is_scored(record: JudgmentRecord) -> bool:
    """Whether the metrics count a record: not an error, and with a gold order."""
    return record.outcome is not Outcome.ERROR and has_gold_order(record)


def left_out(records: Iterable[JudgmentRecord]) -> int:
    """Number of records with a gold order that ended in an error and are therefore not scored."""
    return sum(has_gold_order(record) and record.outcome is Outcome.ERROR for record in records)


def ordered_pairs(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Index pairs (better, worse) with different gold ranks."""
    return [
        (i, j) if ranks[i] < ranks[j] else (j, i)
        for i, j in combinations(range(len(ranks)), 2)
        if ranks[i] != ranks[j]
    ]


def tie_blocks(values: Sequence[float]) -> list[list[int]]:
    """Indices by descending value, those of equal value in one list."""
    order = sorted(range(len(values)), key=lambda index: -values[index])
    return [list(block) for _, block in groupby(order, key=lambda index: values[index])]
