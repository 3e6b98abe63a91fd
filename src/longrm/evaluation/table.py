"""Judgments with gold as columns, and samples: what metrics compute from them for a value and its bootstrap."""

import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import combinations, groupby
from typing import Any, Literal, Self, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from longrm.reward_models.trials import to_scores
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome, margin

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]

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
        cuts = np.unique(self.scores)
        if cuts.size > BINS:  # scores in one quantile bin then count as ties
            cuts = np.unique(np.quantile(self.scores, np.arange(1, BINS) / BINS, method="inverted_cdf"))
        groups = int(group.max()) + 1
        bins, at = np.searchsorted(cuts, self.scores, "right"), group[self.row]
        # Number of positives and of negatives by group and bin, each [groups, bins]; most are 0. Counts stay exact in
        # float32.
        sides = [
            csr_array((np.ones(side.sum(), np.float32), (at[side], bins[side])), (groups, cuts.size + 1))
            for side in (self.positive, ~self.positive)
        ]

        def areas(weights: npt.NDArray[np.float32]) -> FloatArray:
            positive, negative = ((weights @ side).astype(np.float64) for side in sides)
            below = np.cumsum(negative, axis=1) - negative / 2
            wins, total = (positive * below).sum(axis=1), positive.sum(axis=1) * negative.sum(axis=1)
            with np.errstate(invalid="ignore"):  # NaN for a resample of one class only
                return np.asarray(wins / total)

        # Binning changes the area a little; all replicates are shifted by its effect on the data itself.
        shift = value - areas(np.ones((1, groups), np.float32))[0]
        resampled = [areas(block.astype(np.float32)) for block in resample_counts(groups, **drawn)]
        return np.asarray(np.clip(np.concatenate(resampled) + shift, 0.0, 1.0))


Sample = RatioSample | RankedSample
"""What a metric computes from a table: enough for its value and its bootstrap."""


_BLOCK = 256  # resamples that are counted at once, and fewer of many groups
_BLOCK_COUNTS = 1 << 25
_CACHED_COUNTS = 1 << 29


def resample_counts(groups: int, seed: int, resamples: int) -> Iterator[npt.NDArray[np.uint8]]:
    """How often each group is drawn in each resample: multinomial counts in blocks, [resamples of the block, groups].

    The counts of a million groups would take 2 GB, so only fewer are kept for the next metric.
    """
    if resamples * groups <= _CACHED_COUNTS:
        return iter(_cached_counts(groups, seed, resamples))
    return _drawn_counts(groups, seed, resamples)


def _drawn_counts(groups: int, seed: int, resamples: int) -> Iterator[npt.NDArray[np.uint8]]:
    rng, block = np.random.default_rng(seed), max(1, min(_BLOCK, _BLOCK_COUNTS // groups))
    for start in range(0, resamples, block):
        # The generator's stream is the same whatever the blocks. No group is drawn 256 times: counts are about Poisson.
        drawn = rng.integers(0, groups, size=(min(block, resamples - start), groups), dtype=np.int32)
        yield np.stack([np.bincount(draws, minlength=groups).astype(np.uint8) for draws in drawn])


@lru_cache(maxsize=2)
def _cached_counts(groups: int, seed: int, resamples: int) -> list[npt.NDArray[np.uint8]]:
    return list(_drawn_counts(groups, seed, resamples))


def resampled_sums(group: IntArray, columns: FloatArray, **drawn: Unpack[Bootstrap]) -> FloatArray:
    """Sums of columns [rows, columns] on every cluster-bootstrap resample of the groups, [resamples, columns]."""
    groups = int(group.max()) + 1
    sums = np.stack([np.bincount(group, column, groups) for column in columns.T], axis=1)
    # Not float32: in float64 counts and halves add up exactly, so that unanimous resamples are exactly equal.
    return np.concatenate([block.astype(np.float64) @ sums for block in resample_counts(groups, **drawn)])


def ratio_replicates(
    total: FloatArray, weight: FloatArray, group: IntArray, **drawn: Unpack[Bootstrap]
) -> FloatArray:
    """A ratio on every cluster-bootstrap resample of the groups 0 .. max, [resamples]; NaN without any weight.

    `total` and `weight` [rows, ...] may have further axes: the ratios are then [resamples, ...], on the same resamples.
    """
    columns = np.stack([total, weight], axis=-1).reshape(group.size, -1)
    above_below = resampled_sums(group, columns, **drawn).reshape(-1, *total.shape[1:], 2)
    with np.errstate(invalid="ignore"):
        ratios: FloatArray = above_below[..., 0] / above_below[..., 1]
    return ratios


BEST_OF = ("2", "3", "4")
"""The subtypes of rankings in Long-RewardBench; all others are pairs."""

Measure = Callable[["JudgmentTable"], Sample]
"""The function of a metric."""

Credit = Callable[[Sequence[float], Sequence[int]], float]
"""The credit of one comparison: judged values (higher is better) against gold ranks (1 = best), ties by chance."""

OUTCOMES = tuple(Outcome)
"""Outcomes by their codes in a table."""


class Ragged(Sequence[tuple[Any, ...]]):
    """Rows of different sizes, one after the other in one array."""

    def __init__(self, flat: npt.NDArray[Any], size: IntArray) -> None:
        self.flat, self.size = flat, size
        self._start = np.cumsum(size) - size

    def __len__(self) -> int:
        return self.size.size

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for first in range(
            0, len(self), 4096
        ):  # converting rows one by one is slow, and all at once takes memory
            rows = slice(first, first + 4096)
            values, at = self.flat[self._start[first] :][: self.size[rows].sum()].tolist(), 0
            for size in self.size[rows].tolist():
                yield tuple(values[at : at + size])
                at += size

    def __getitem__(self, row: Any) -> Any:
        return tuple(self.flat[self._start[row] :][: self.size[row]].tolist())

    @property
    def row(self) -> IntArray:
        """The row of every entry of `flat`."""
        return np.repeat(np.arange(len(self)), self.size)

    def take(self, rows: IntArray) -> "Ragged":
        """Some rows, in this order."""
        size = self.size[rows]
        offset = self._start[rows] - (np.cumsum(size) - size)
        return Ragged(self.flat[np.repeat(offset, size) + np.arange(size.sum())], size)


class _Growing:
    """A `Ragged` to append rows to."""

    def __init__(self, kind: str) -> None:
        self.flat: array[Any] = array(kind)
        self.size = array("q")

    def append(self, row: Sequence[float]) -> None:
        self.flat.extend(row)
        self.size.append(len(row))

    def done(self) -> Ragged:
        return Ragged(np.array(self.flat), np.array(self.size))


@dataclass(frozen=True, slots=True)
class TrialColumns:
    """The trials of all comparisons as columns, [trials]."""

    outcome: IntArray  # code, see `OUTCOMES`
    order: IntArray  # number of the presented order in `orders`
    values: Ragged  # one number per response, higher is better; () if unanswered
    contradicted: IntArray  # 1 if the explanation argues for another verdict, 0 if not, -1 if unknown
    retried: int  # how many took more than one attempt
    explained: bool  # whether any has an explanation
    orders: tuple[tuple[int, ...], ...]  # the different presented orders


@dataclass(frozen=True)
class JudgmentTable:
    """Judgments with their gold as columns, one row per comparison. Parts of a table are masks of its rows.

    A million records as objects would take 3 GB, and about 25 with everything that was computed from them.
    """

    id: Texts
    group: IntArray  # code of the group, from 0 in order of occurrence
    length: IntArray  # length bucket in tokens, -1 if unknown
    depth: FloatArray  # from 0 to 1, NaN if unknown
    task: Texts  # empty if unknown
    subtype: Texts
    outcome: IntArray  # code, see `OUTCOMES`
    detail: Texts  # why there is no answer; empty of answers
    ranks: Ragged  # gold ranks, () if unknown
    values: Ragged  # one number per response, higher is better, from scores or ranking; () if unanswered
    has_scores: Mask  # whether the values are scores, and not from a ranking
    characters: Ragged  # characters of each response, () if unknown
    context_check: Texts
    padding_check: Texts
    writers: Texts  # who wrote each response, one line each; empty if unknown
    cut_tokens: IntArray  # tokens cut from the context, -1 if it was not cut
    committed: IntArray  # outcome of the judge's own answer, -1 without one
    solved: IntArray  # whether that answer is right: 1, 0, or -1 if unknown
    # Criteria of a rubric that prefer another response than the verdict, and all that discriminate, [rows, 2]
    criteria: IntArray
    baselines: dict[str, FloatArray]  # top-1 credit of each baseline, NaN where it did not run
    trials: Ragged  # numbers of the trials in `trial`
    trial: TrialColumns  # of all comparisons, also those that this table leaves out

    @classmethod
    def of(cls, records: Iterable[JudgmentRecord]) -> Self:
        """Reads records, which may be streamed from a log."""
        texts: dict[str, list[str]] = {
            name: []
            for name in ("id", "task", "subtype", "detail", "context_check", "padding_check", "writers")
        }
        numbers = {
            name: array("q") for name in ("group", "length", "outcome", "cut_tokens", "committed", "solved")
        }
        depth, criteria, has_scores = array("d"), array("q"), array("b")
        ranks, values, characters, trials = _Growing("q"), _Growing("d"), _Growing("q"), _Growing("q")
        trial = {name: array("b") for name in ("outcome", "contradicted")}
        trial_order, trial_values, retried, explained = array("q"), _Growing("d"), 0, False
        groups, orders, names = dict[str, int](), dict[tuple[int, ...], int](), dict[str, str]()
        code = {outcome: number for number, outcome in enumerate(OUTCOMES)}
        baselines: dict[str, array[float]] = {}
        for row, record in enumerate(records):
            judged, gold = to_scores(record), record.ranks or ()
            ordered = has_gold_order(record)
            texts["id"].append(record.id)
            for name in (
                "task",
                "subtype",
                "context_check",
                "padding_check",
            ):  # one object for all equal texts
                text = getattr(record, name)
                texts[name].append(names.setdefault(text, text))
            wrote = "\n".join(record.writers)
            texts["writers"].append(names.setdefault(wrote, wrote))
            texts["detail"].append("" if judged else record.detail)
            numbers["group"].append(groups.setdefault(record.group, len(groups)))
            numbers["length"].append(-1 if record.length is None else record.length)
            numbers["outcome"].append(code[record.outcome])
            numbers["cut_tokens"].append(-1 if record.cut is None else record.cut.tokens)
            own = record.committed
            numbers["committed"].append(-1 if own is None else code[own.outcome])
            numbers["solved"].append(-1 if own is None or own.solved is None else own.solved)
            depth.append(math.nan if record.depth is None else record.depth)
            ranks.append(gold)
            values.append(judged)
            has_scores.append(bool(judged and record.scores))
            characters.append(record.characters)
            # Criteria that discriminate between responses, and those of them that prefer others than those judged best
            differing = [line for line in record.criteria if max(line) > min(line)]
            top = top_responses(judged)
            criteria.extend(
                (sum(all(line[i] < max(line) for i in top) for line in differing), len(differing))
            )
            for name, scores in record.baselines.items():
                column = baselines.setdefault(name, array("d"))
                if scores and ordered:
                    column.extend([math.nan] * (row - len(column)))
                    column.append(top1_credit(scores, gold))
            trials.append(range(len(trial_order), len(trial_order) + len(record.trials)))
            for one in record.trials:
                trial["outcome"].append(code[one.outcome])
                trial["contradicted"].append(-1 if one.contradicted is None else one.contradicted)
                trial_order.append(orders.setdefault(one.order, len(orders)))
                trial_values.append(to_scores(one))
                retried += one.attempts > 1
                explained = explained or bool(one.explanation)
        rows = len(texts["id"])
        for column in baselines.values():
            column.extend([math.nan] * (rows - len(column)))
        columns: dict[str, Any] = {name: np.array(column, np.object_) for name, column in texts.items()}
        columns |= {name: np.array(column, np.int64) for name, column in numbers.items()}
        return cls(
            **columns,
            depth=np.array(depth),
            ranks=ranks.done(),
            values=values.done(),
            has_scores=np.array(has_scores, np.bool_),
            characters=characters.done(),
            criteria=np.array(criteria, np.int64).reshape(-1, 2),
            baselines={name: np.array(column) for name, column in baselines.items()},
            trials=trials.done(),
            trial=TrialColumns(
                **{name: np.array(column, np.int64) for name, column in trial.items()},
                order=np.array(trial_order, np.int64),
                values=trial_values.done(),
                retried=retried,
                explained=explained,
                orders=tuple(orders),
            ),
        )

    def take(self, rows: IntArray) -> Self:
        """Some rows, in this order; their groups are numbered anew."""
        found: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if isinstance(column, dict):
                found[field.name] = {name: values[rows] for name, values in column.items()}
            elif isinstance(column, Ragged):
                found[field.name] = column.take(rows)
            else:
                found[field.name] = column if isinstance(column, TrialColumns) else column[rows]
        return replace(self, **found | {"group": codes_of(self.group[rows].tolist())})

    def __len__(self) -> int:
        return self.id.size

    @cached_property
    def has_gold_order(self) -> Mask:
        """Whether the gold ranks are known and not all equal."""
        first = np.repeat([ranks[0] if ranks else 0 for ranks in self.ranks], self.ranks.size)
        return np.bincount(self.ranks.row, self.ranks.flat != first, len(self)) > 0

    @cached_property
    def is_scored(self) -> Mask:
        """Whether the metrics count a row: not an error, and with a gold order."""
        return np.asarray(self.has_gold_order & (self.outcome != OUTCOMES.index(Outcome.ERROR)))

    @cached_property
    def scored(self) -> Self:
        """The rows that the metrics count."""
        return self.take(np.flatnonzero(self.is_scored))

    @property
    def size(self) -> IntArray:
        """Number of responses with gold ranks, [rows]."""
        return self.ranks.size

    @property
    def answered(self) -> Mask:
        """Whether there is an answer, [rows]."""
        return self.values.size > 0

    @property
    def groups(self) -> int:
        """Number of groups in the table."""
        return int(self.group.max()) + 1 if self.group.size else 0

    @cached_property
    def pairs(self) -> "GoldPairs":
        """All pairs of a better and a worse response, by gold."""
        return GoldPairs(self)

    @cached_property
    def _samples(self) -> dict[tuple[Measure, bool], Sample]:
        """Samples measured so far. Parts take rows of them, which is much faster than measuring each part anew."""
        return {}

    def sample(self, measure: Measure, *, by_chance: bool = False) -> Sample:
        """A metric's sample of this table; `by_chance`: with all responses tied, which earns the chance level."""
        key = measure, by_chance
        if key not in self._samples:
            table = self
            if by_chance:
                tied = Ragged(np.zeros(self.ranks.flat.size), self.ranks.size)
                table = replace(self, values=tied, has_scores=np.ones_like(self.has_scores))
            self._samples[key] = measure(table)
        return self._samples[key]

    def per_comparison(self, credit: Credit) -> RatioSample:
        """The mean of a credit over comparisons; unanswered ones earn 0."""
        earned = [credit(*row) if row[0] else 0.0 for row in zip(self.values, self.ranks, strict=True)]
        return RatioSample(np.array(earned, np.float64), np.ones(len(earned)))


def scored_table(records: Iterable[JudgmentRecord]) -> JudgmentTable:
    """The table of those records that the metrics count."""
    return JudgmentTable.of(records).scored


class GoldPairs:
    """All pairs of a better and a worse response, by gold, as columns.

    Attributes:
        row: The row of the table, [pairs].
        group: Code of the group, [pairs].
        margin: Judged value of the better response minus that of the worse; NaN if unanswered, [pairs].
        longer: Characters of the better response minus those of the worse; NaN if unknown, [pairs].
        right: 1 if the better response is judged better, 0.5 if both tie, else 0, [pairs].
        answered: 1 if the pair was judged, else 0, [pairs].
    """

    def __init__(self, table: JudgmentTable) -> None:
        row, margin, longer = array("q"), array("d"), array("d")
        columns = zip(table.ranks, table.values, table.characters, strict=True)
        for at, (ranks, values, characters) in enumerate(columns):
            for better, worse in ordered_pairs(ranks):
                row.append(at)
                margin.append(values[better] - values[worse] if values else np.nan)
                longer.append(characters[better] - characters[worse] if characters else np.nan)
        self.row = np.array(row, np.int64)
        self.group = table.group[self.row]
        self.margin = np.array(margin, np.float64)
        self.longer = np.array(longer, np.float64)
        self.right: FloatArray = (self.margin > 0) + 0.5 * (self.margin == 0)
        self.answered = np.isfinite(self.margin).astype(np.float64)


def codes_of(names: Iterable[Hashable]) -> IntArray:
    """Numbers names from 0 in order of occurrence."""
    codes: dict[Hashable, int] = {}
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


def top_responses(values: Sequence[float]) -> frozenset[int]:
    """The responses with the highest value, several if they tie."""
    return frozenset(index for index, value in enumerate(values) if value == max(values))


def top1_credit(values: Sequence[float], ranks: Sequence[int]) -> float:
    """The probability that the response judged best, ties broken at random, is a best one."""
    best, highest = min(ranks), max(values)
    top = [rank for value, rank in zip(values, ranks, strict=True) if value == highest]
    return sum(rank == best for rank in top) / len(top)


Verdict = Literal["right", "wrong", "tied", "no answer", "no gold"]


def verdict_of(values: Sequence[float], ranks: Sequence[int] | None) -> Verdict:
    """Whether the response judged best is a best one; `tied` if a best one and another have the same score."""
    if not values:
        return "no answer"
    lead = margin(values, ranks) if ranks else None
    if lead is None:
        return "no gold"
    return "right" if lead > 0 else "tied" if lead == 0 else "wrong"


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
