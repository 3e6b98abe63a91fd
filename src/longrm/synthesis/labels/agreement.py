"""How much several judges agree who score the same items alone: the paper's section 4, measured.

Items stream by; what is kept is a few numbers for each group, each judge and each pair of judges.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from longrm.runs.records import Estimate

_FloatArray = npt.NDArray[np.float64]
_Measure = Callable[[_FloatArray], float | None]  # sums over groups in, a value out

_LIMITS = (0.025, 0.975)
_ROUNDING = 1e-9  # scores this far beyond the tolerance still agree: 0.1 + 0.2 is not 0.3


@dataclass(frozen=True, slots=True)
class ScorePairs:
    """How many pairs of scores there are for one item, how many agree, and the sum of their differences in points."""

    n: int = 0
    agreeing: int = 0
    distance: float = 0.0

    @property
    def agreement(self) -> float | None:
        """Share of pairs that agree, from 0 to 1; None where both never scored the same item."""
        return self.agreeing / self.n if self.n else None

    @property
    def mean_distance(self) -> float | None:
        """Mean difference in points; None likewise."""
        return self.distance / self.n if self.n else None

    def plus(self, other: "ScorePairs") -> "ScorePairs":
        """Both counted as one."""
        return ScorePairs(self.n + other.n, self.agreeing + other.agreeing, self.distance + other.distance)


@dataclass(frozen=True, slots=True)
class JudgeAgreement:
    """One judge: items that it was asked about, scores that could not be read, and its scores beside all others'."""

    asked: int
    unparsed: int
    others: ScorePairs


class Agreement:
    """Collects scores, item by item; those that differ by no more points than the tolerance agree."""

    def __init__(self, tolerance: float = 0.0) -> None:
        self._tolerance = tolerance
        self._origin: float | None = None
        # By group: scores, their sum, the sum of their squares, the within-item spread, pairs, agreeing pairs.
        self._groups: dict[str, list[float]] = {}
        self._asked: dict[str, list[int]] = {}
        self._pairs: dict[tuple[str, str], ScorePairs] = {}

    def see(self, scores: Mapping[str, float | None], group: str) -> None:
        """Takes in one item: a score a judge, in points, None where none could be read."""
        for judge, score in scores.items():
            counts = self._asked.setdefault(judge, [0, 0])
            counts[0] += 1
            counts[1] += score is None
        read = {judge: score for judge, score in sorted(scores.items()) if score is not None}
        if len(read) < 2:  # a score without a second one says nothing about agreement
            return
        agreeing = 0
        for one, other in combinations(read, 2):
            distance = abs(read[one] - read[other])
            agree = distance <= self._tolerance + _ROUNDING
            agreeing += agree
            together = self._pairs.get((one, other), ScorePairs())
            self._pairs[one, other] = together.plus(ScorePairs(1, int(agree), distance))
        if self._origin is None:
            self._origin = next(iter(read.values()))
        values = np.array([*read.values()]) - self._origin  # near 0, so that squares lose no digits
        size = len(values)
        spread = float(((values - values.mean()) ** 2).sum()) * size / (size - 1)
        found = (size, values.sum(), (values**2).sum(), spread, size * (size - 1) / 2, agreeing)
        before = self._groups.get(group, [0.0] * 6)
        self._groups[group] = [old + float(new) for old, new in zip(before, found, strict=True)]

    def alpha(self, *, resamples: int = 1000, seed: int = 0) -> Estimate:
        """Krippendorff's alpha for interval data, with missing values (Krippendorff 2011, section D).

        1 is perfect agreement and 0 what chance would give; undefined where all scores are equal, for then chance
        would agree as well. `n` counts the scores of items that two judges or more have scored.
        """
        return self._measure(_alpha, 0, resamples, seed)

    def pairwise(self, *, resamples: int = 1000, seed: int = 0) -> Estimate:
        """Share of all pairs of scores for one item that agree within the tolerance, from 0 to 1."""
        return self._measure(_share, 4, resamples, seed)

    def pairs(self) -> dict[tuple[str, str], ScorePairs]:
        """Every two judges that scored the same item, in alphabetical order."""
        return dict(sorted(self._pairs.items()))

    def judges(self) -> dict[str, JudgeAgreement]:
        """Every judge, in alphabetical order."""
        found = {}
        for judge, (asked, unparsed) in sorted(self._asked.items()):
            others = ScorePairs()
            for names, together in self._pairs.items():
                if judge in names:
                    others = others.plus(together)
            found[judge] = JudgeAgreement(asked, unparsed, others)
        return found

    def weights(self) -> dict[str, float]:
        """A weight for every judge's vote: its agreement with the others, scaled to a mean of 1.

        A judge that never scored an item together with another one weighs nothing, for nothing is known of it.
        Where no two judges ever agree all weigh the same.
        """
        shares = {judge: known.others.agreement or 0.0 for judge, known in self.judges().items()}
        total = sum(shares.values())
        if not total:
            return dict.fromkeys(shares, 1.0)
        return {judge: share * len(shares) / total for judge, share in shares.items()}

    def _measure(self, measure: _Measure, counted: int, resamples: int, seed: int) -> Estimate:
        table = np.array([sums for sums in self._groups.values() if sums[0]]).reshape(-1, 6)
        groups = len(table)
        totals = table.sum(axis=0)
        value, n = measure(totals), round(float(totals[counted]))
        if value is None or groups < 2:
            return Estimate(value, None, None, n, groups)
        draws = np.random.default_rng(seed)
        found = []
        for _ in range(resamples):  # one at a time: a table of all draws would grow with the groups
            weights = np.bincount(draws.integers(0, groups, groups), minlength=groups)
            found.append(measure(weights @ table))
        defined = [replicate for replicate in found if replicate is not None]
        if not defined:
            return Estimate(value, None, None, n, groups)
        low, high = np.quantile(defined, _LIMITS)
        return Estimate(value, float(low), float(high), n, groups)


def _alpha(sums: _FloatArray) -> float | None:
    n, total, squares, within = (float(number) for number in sums[:4])
    if n < 2:
        return None
    spread = squares - total**2 / n
    if spread <= 1e-12 * max(1.0, squares):
        return None
    return 1.0 - (within / n) / (spread / (n - 1))


def _share(sums: _FloatArray) -> float | None:
    pairs, agreeing = float(sums[4]), float(sums[5])
    return agreeing / pairs if pairs else None
