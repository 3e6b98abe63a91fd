"""Judgments with gold as columns, and what metrics compute from them: values with cluster-bootstrap replicates."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations, compress, groupby
from typing import Literal, Self, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

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

    def is_independent(self, groups: int) -> bool:
        """Whether every group is a single outcome of 0 or 1, so that Wilson's interval applies."""
        return groups == self.total.size and bool(
            (self.weight == 1).all() and np.isin(self.total, (0.0, 1.0)).all()
        )


@dataclass(frozen=True, slots=True)
class RankedSample:
    """Two sets of values, whose separation is measured by the area under the ROC curve."""

    positive: FloatArray  # the values that should be larger
    positive_row: IntArray  # the row that each is from
    negative: FloatArray
    negative_row: IntArray
    rows: int  # all rows, with and without values
    mirrored: bool = False  # each negative is the negated positive; then only positives count for n

    @classmethod
    def of(
        cls,
        positive: Sequence[tuple[int, float]],
        negative: Sequence[tuple[int, float]],
        *,
        rows: int,
        mirrored: bool = False,
    ) -> Self:
        """A sample of (row, value) pairs on both sides."""
        numbers = [np.array([row for row, _ in side], np.int64) for side in (positive, negative)]
        values = [np.array([value for _, value in side], np.float64) for side in (positive, negative)]
        return cls(values[0], numbers[0], values[1], numbers[1], rows, mirrored)

    @property
    def used(self) -> Mask:
        """The rows with values."""
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
        """Number of ranked values."""
        return self.positive.size + (0 if self.mirrored else self.negative.size)

    def subset(self, kept: Mask) -> Self:
        """The sample of some rows, which are renumbered."""
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
        """The area on every resample, by rank sums weighted with how often each group was drawn, [resamples]."""
        value = self.value
        if value in (0.0, 1.0):  # perfectly separated, hence on every resample too
            return np.full(drawn["resamples"], value)
        weights = cluster_weights(int(group.max()) + 1, drawn["resamples"], drawn["seed"])
        everything = np.concatenate([self.positive, self.negative])
        cuts = np.unique(everything)
        if cuts.size > BINS:  # values in one quantile bin then count as ties
            cuts = np.unique(np.quantile(everything, np.arange(1, BINS) / BINS, method="inverted_cdf"))
        shape = weights.shape[1], cuts.size + 1
        sides = []  # number of values by group and bin, [groups, bins]
        for values, row in ((self.positive, self.positive_row), (self.negative, self.negative_row)):
            cells = np.searchsorted(cuts, values, "right") + group[row] * shape[1]
            counts = np.bincount(cells, minlength=math.prod(shape))
            sides.append(counts.reshape(shape).astype(np.float32))
        # Binning changes the area a little; all replicates are shifted by its effect on the data itself.
        shift = value - _binned_area(sides, np.ones_like(weights[:1]))[0]
        areas: FloatArray = np.clip(_binned_area(sides, weights) + shift, 0.0, 1.0)
        return areas

    def is_independent(self, groups: int) -> bool:
        """An area is not a share of independent outcomes."""
        return False


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


def _binned_area(sides: Sequence[npt.NDArray[np.float32]], weights: npt.NDArray[np.float32]) -> FloatArray:
    """The area of binned values for each row of group weights; counts stay exact in float32."""
    positive, negative = ((weights @ side).astype(np.float64) for side in sides)
    below = np.cumsum(negative, axis=1) - negative / 2
    wins: FloatArray = (positive * below).sum(axis=1)
    total: FloatArray = positive.sum(axis=1) * negative.sum(axis=1)
    return wins / total


BEST_OF = ("2", "3", "4")
"""The subtypes of rankings in Long-RewardBench; all others are pairs."""

Needs = Literal["ranks", "scores", "pairs"]
"""The rows that a metric uses: all with a gold order; those with scores; those with two responses."""

Measure = Callable[["ScoreTable"], Sample]
"""The function of a metric."""

Credit = Callable[[Sequence[float], Sequence[int]], float]
"""The credit of one comparison: judged values (higher is better) against gold ranks (1 = best), ties by chance."""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """The scored records as columns, one row per comparison."""

    group: IntArray  # code of the group, 0 .. groups - 1, every code in use
    length: IntArray  # length bucket in tokens, -1 if unknown
    depth: FloatArray  # depth of the evidence, NaN if unknown
    size: IntArray  # number of responses
    ranks: tuple[tuple[int, ...], ...]  # gold ranks, not all equal
    # Per response, higher is better, from scores or ranking; () if unanswered
    values: tuple[tuple[float, ...], ...]
    scores: tuple[tuple[float, ...], ...]  # () if there are none
    # Samples measured so far. Subsets take their rows of them, which is much faster than measuring every part anew.
    _samples: dict[tuple[Measure, bool], Sample] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, records: Sequence[JudgmentRecord]) -> Self:
        """The table of all records that can be scored."""
        scored = [record for record in records if is_scored(record)]
        values = tuple(judged_values(record) or () for record in scored)
        ranks = tuple(record.ranks or () for record in scored)
        return cls(
            group=codes_of(record.group for record in scored),
            length=np.array([-1 if r.length is None else r.length for r in scored], np.int64),
            depth=np.array([np.nan if r.depth is None else r.depth for r in scored], np.float64),
            size=np.array([len(gold) for gold in ranks], np.int64),
            ranks=ranks,
            values=values,
            scores=tuple(r.scores if found else () for r, found in zip(scored, values, strict=True)),
        )

    @property
    def answered(self) -> Mask:
        """The rows that were answered."""
        return np.array([bool(values) for values in self.values], np.bool_)

    @property
    def groups(self) -> int:
        """Number of groups in the table."""
        return int(self.group.max()) + 1 if self.group.size else 0

    def sample(self, measure: Measure, *, by_chance: bool = False) -> Sample:
        """A metric's sample of this table; `by_chance`: with all responses tied, which earns the chance level."""
        key = measure, by_chance
        if key not in self._samples:
            tied = tuple((0.0,) * len(gold) for gold in self.ranks)
            table = replace(self, values=tied, scores=tied, _samples={}) if by_chance else self
            self._samples[key] = measure(table)
        return self._samples[key]

    def rows_for(self, needs: Needs) -> Mask:
        """The rows that a metric with these needs uses."""
        match needs:
            case "ranks":
                return np.ones(self.size.shape, np.bool_)
            case "scores":
                return np.array([bool(scores) for scores in self.scores], np.bool_)
            case "pairs":
                return np.asarray(self.size == 2)
            case unknown:
                raise AssertionError(f"no metric needs {unknown!r}")

    def per_comparison(self, credit: Credit) -> RatioSample:
        """The mean of a credit over comparisons; unanswered ones earn 0."""
        earned = [credit(*row) if row[0] else 0.0 for row in zip(self.values, self.ranks, strict=True)]
        return RatioSample(np.array(earned, np.float64), np.ones(len(earned)))

    def subset(self, kept: Mask) -> Self:
        """The table of some rows."""
        return replace(
            self,
            group=np.unique(self.group[kept], return_inverse=True)[1].astype(np.int64),
            length=self.length[kept],
            depth=self.depth[kept],
            size=self.size[kept],
            ranks=tuple(compress(self.ranks, kept)),
            values=tuple(compress(self.values, kept)),
            scores=tuple(compress(self.scores, kept)),
            _samples={key: sample.subset(kept) for key, sample in self._samples.items()},
        )


@dataclass(frozen=True, slots=True)
class GoldPairs:
    """All pairs of a better and a worse response, by gold, as columns."""

    group: IntArray
    margin: FloatArray  # judged value of the better response minus that of the worse; NaN if unanswered
    longer: FloatArray  # characters of the better response minus those of the worse; NaN if unknown

    @classmethod
    def of(cls, scored: Sequence[JudgmentRecord], table: ScoreTable) -> Self:
        """The pairs of the records that the table is made of."""
        row: list[int] = []
        margin: list[float] = []
        longer: list[float] = []
        for at, (record, values) in enumerate(zip(scored, table.values, strict=True)):
            characters = record.characters
            for better, worse in ordered_pairs(table.ranks[at]):
                row.append(at)
                margin.append(values[better] - values[worse] if values else np.nan)
                longer.append(characters[better] - characters[worse] if characters else np.nan)
        group = table.group[np.array(row, np.int64)]
        return cls(group, np.array(margin, np.float64), np.array(longer, np.float64))

    @property
    def right(self) -> FloatArray:
        """1 if the better response is judged better, 0.5 if both tie, else 0."""
        right: FloatArray = (self.margin > 0) + 0.5 * (self.margin == 0)
        return right

    @property
    def answered(self) -> FloatArray:
        """1 if the pair was judged, else 0."""
        return np.isfinite(self.margin).astype(np.float64)


def codes_of(groups: Iterable[str]) -> IntArray:
    """Numbers names from 0 in order of occurrence."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(group, len(codes)) for group in groups], np.int64)


def has_gold_order(record: JudgmentRecord) -> bool:
    """Whether the gold ranks of a record are known and not all equal."""
    return record.ranks is not None and len(set(record.ranks)) > 1


def is_scored(record: JudgmentRecord) -> bool:
    """Whether the metrics count a record: not an error, and with a gold order."""
    return record.outcome is not Outcome.ERROR and has_gold_order(record)


def left_out(records: Iterable[JudgmentRecord]) -> int:
    """Number of records with a gold order that ended in an error and are therefore not scored."""
    return sum(has_gold_order(record) and record.outcome is Outcome.ERROR for record in records)


def judged_values(record: JudgmentRecord) -> tuple[float, ...] | None:
    """One value per response, higher is better, from the scores or else the ranking; None if unanswered."""
    if record.outcome is not Outcome.ANSWERED:
        return None
    assert record.ranks is not None, "only comparisons with gold are scored"
    n = len(record.ranks)
    if record.scores:
        if not all(map(math.isfinite, record.scores)):
            raise ValueError(f"record {record.id!r} has a score that is not finite")
        return record.scores
    if sorted(record.ranking) != list(range(n)):
        raise ValueError(f"record {record.id!r} is answered without {n} scores or an order of {n} responses")
    places = {response: place for place, response in enumerate(record.ranking)}
    return tuple(float(-places[response]) for response in range(n))


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
