"""Judgments with gold as columns: what every metric, interval and curve is computed from."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, compress, groupby
from typing import Literal, Self

import numpy as np

from longrm.evaluation.samples import FloatArray, IntArray, Mask, RatioSample, Sample
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome

BEST_OF = ("2", "3", "4")
"""The subtypes by which Long-RewardBench tells its rankings from its pairs."""

Needs = Literal["ranks", "scores", "pairs"]
"""Which rows a metric is of: all that gold orders; those with scores; those with two responses."""

Measure = Callable[["ScoreTable"], Sample]
"""A metric's function of a table."""

Credit = Callable[[Sequence[float], Sequence[int]], float]
"""What one comparison earns: judged values (higher is better) against gold ranks (1 = best), ties as a coin would."""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """The records that are scored, as columns: one row a comparison.

    Attributes:
        group: Code of the row's group, 0 .. groups - 1, every code in use.
        length: Length bucket in tokens, -1 where it is unknown.
        depth: Depth of the evidence, NaN where it is unknown.
        size: Number of responses.
        ranks: Gold ranks, which tell at least two responses apart.
        values: One judged value a response, higher is better, from the scores or else the ranking; empty where the
            comparison was not answered.
        scores: The scores themselves; empty where there are none.
    """

    group: IntArray
    length: IntArray
    depth: FloatArray
    size: IntArray
    ranks: tuple[tuple[int, ...], ...]
    values: tuple[tuple[float, ...], ...]
    scores: tuple[tuple[float, ...], ...]
    # What was measured already, which a subset need not measure again.
    _samples: dict[tuple[Measure, bool], Sample] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, records: Sequence[JudgmentRecord]) -> Self:
        """Makes a table of every record that can be scored.

        Raises:
            ValueError: If an answer does not fit its gold ranks.
        """
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
        """What a metric's function makes of this table; computed once for a table and its subsets.

        By chance every response is judged alike: ties earn what a random order does on average.
        """
        key = measure, by_chance
        if key not in self._samples:
            tied = tuple((0.0,) * len(gold) for gold in self.ranks)
            table = replace(self, values=tied, scores=tied, _samples={}) if by_chance else self
            self._samples[key] = measure(table)
        return self._samples[key]

    def rows_for(self, needs: Needs) -> Mask:
        """The rows that a metric with these needs is of."""
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
        """The mean of a credit over comparisons; what was not answered earns 0."""
        earned = [credit(*row) if row[0] else 0.0 for row in zip(self.values, self.ranks, strict=True)]
        return RatioSample(np.array(earned, np.float64), np.ones(len(earned)))

    def subset(self, kept: Mask) -> Self:
        """The table of the kept rows alone."""
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
    """The pairs of a better and a worse response as columns.

    Attributes:
        group: Code of its comparison's group.
        margin: Judged value of the better response minus that of the worse; NaN where it was not answered.
        longer: Characters of the better response minus those of the worse; NaN where they are not known.
    """

    group: IntArray
    margin: FloatArray
    longer: FloatArray

    @classmethod
    def of(cls, scored: Sequence[JudgmentRecord], table: ScoreTable) -> Self:
        """The pairs of scored records, which are the rows of the table."""
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
        """1 where the better response was judged better, 0.5 where both tie, else 0."""
        right: FloatArray = (self.margin > 0) + 0.5 * (self.margin == 0)
        return right

    @property
    def answered(self) -> FloatArray:
        """1 where the pair was judged, else 0."""
        return np.isfinite(self.margin).astype(np.float64)


def codes_of(groups: Iterable[str]) -> IntArray:
    """Numbers names from 0 in the order in which they occur."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(group, len(codes)) for group in groups], np.int64)


def has_gold_order(record: JudgmentRecord) -> bool:
    """Whether the gold ranks tell at least two responses apart."""
    return record.ranks is not None and len(set(record.ranks)) > 1


def is_scored(record: JudgmentRecord) -> bool:
    """Whether the metrics count this record: it is no error, and its gold tells responses apart."""
    return record.outcome is not Outcome.ERROR and has_gold_order(record)


def left_out(records: Iterable[JudgmentRecord]) -> int:
    """How many of those that gold orders ended in an error, and are not scored."""
    return sum(has_gold_order(record) and record.outcome is Outcome.ERROR for record in records)


def judged_values(record: JudgmentRecord) -> tuple[float, ...] | None:
    """One value a response, higher is better, from the scores or else the ranking; None if it is not answered.

    Raises:
        ValueError: If an answer does not fit the gold ranks, or a score is not finite.
    """
    if record.outcome is not Outcome.ANSWERED:
        return None
    assert record.ranks is not None, "only comparisons with gold are scored"
    n = len(record.ranks)
    if record.scores:
        if len(record.scores) != n:
            raise ValueError(f"record {record.id!r} has {len(record.scores)} scores for {n} gold ranks")
        if not all(map(math.isfinite, record.scores)):
            raise ValueError(f"record {record.id!r} has a score that is not finite")
        return record.scores
    if sorted(record.ranking) != list(range(n)):
        raise ValueError(f"record {record.id!r} is answered without {n} scores or an order of {n} responses")
    places = {response: place for place, response in enumerate(record.ranking)}
    return tuple(float(-places[response]) for response in range(n))


def ordered_pairs(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Index pairs (better, worse) that the gold ranks tell apart."""
    return [
        (i, j) if ranks[i] < ranks[j] else (j, i)
        for i, j in combinations(range(len(ranks)), 2)
        if ranks[i] != ranks[j]
    ]


def tie_blocks(values: Sequence[float]) -> list[list[int]]:
    """Indices by falling value, those of equal value together."""
    order = sorted(range(len(values)), key=lambda index: -values[index])
    return [list(block) for _, block in groupby(order, key=lambda index: values[index])]
