"""How much several judges agree who score the same items independently (paper, section 4).

Items stream by; only a few sums are kept for each group, each judge and each pair of judges.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from longrm.runs.records import Estimate

_FloatArray = npt.NDArray[np.float64]
_ROUNDING = 1e-9  # as in `consensus`


class ScorePairs(NamedTuple):
    """Pairs of scores for the same item: their number, how many agree, and the sum of their differences in points."""

    n: int = 0
    agreeing: int = 0
    distance: float = 0.0

    @property
    def agreement(self) -> float | None:
        """The share of pairs that agree; None without pairs."""
        return self.agreeing / self.n if self.n else None


class Agreement:
    """Collects scores item by item; two scores agree if they differ by at most `tolerance` points."""

    def __init__(self, tolerance: float = 0.0) -> None:
        self._tolerance = tolerance
        self._origin: float | None = None
        # By group: scores, their sum, the sum of their squares, the within-item spread, pairs, agreeing pairs.
        self._groups: dict[str, list[float]] = {}
        self._asked: dict[str, list[int]] = {}  # by judge: items, and those without a score
        self._pairs: dict[tuple[str, str], ScorePairs] = {}

    def see(self, scores: Mapping[str, float | None], group: str) -> None:
        """Adds one item: the score of each judge in points, None if it has none."""
        for judge, score in scores.items():
            counts = self._asked.setdefault(judge, [0, 0])
            counts[0] += 1
            counts[1] += score is None
        read = {judge: score for judge, score in sorted(scores.items()) if score is not None}
        if len(read) < 2:  # a single score contains no information about agreement
            return
        agreeing = 0
        for one, other in combinations(read, 2):
            distance = abs(read[one] - read[other])
            agree = int(distance <= self._tolerance + _ROUNDING)
            agreeing += agree
            n, agreed, distances = self._pairs.get((one, other), ScorePairs())
            self._pairs[one, other] = ScorePairs(n + 1, agreed + agree, distances + distance)
        if self._origin is None:
            self._origin = next(iter(read.values()))
        values = np.array([*read.values()]) - self._origin  # near 0, so that squares lose no digits
        size = len(values)
        # Krippendorff weighs the within-item spread of n_i scores by n_i / (n_i - 1).
        spread = float(((values - values.mean()) ** 2).sum()) * size / (size - 1)
        found = (size, values.sum(), (values**2).sum(), spread, size * (size - 1) / 2, agreeing)
        sums = self._groups.get(group, [0.0] * 6)
        self._groups[group] = [old + float(new) for old, new in zip(sums, found, strict=True)]

    def alpha(self, *, resamples: int = 1000, seed: int = 0) -> Estimate:
        """Krippendorff's alpha for interval data with missing values (Krippendorff 2011, section D).

        1 is perfect agreement and 0 chance; undefined if all scores are equal, since chance would agree as well. `n`
        counts the scores of items with two scores or more.
        """
        return self._estimate(_alpha, 0, resamples, seed)

    def pairwise(self, *, resamples: int = 1000, seed: int = 0) -> Estimate:
        """The share of all pairs of scores for the same item that agree within the tolerance."""
        return self._estimate(_share, 4, resamples, seed)

    def pairs(self) -> dict[tuple[str, str], ScorePairs]:
        """Every two judges that scored the same item, in alphabetical order."""
        return dict(sorted(self._pairs.items()))

    def judges(self) -> dict[str, tuple[int, int, ScorePairs]]:
        """By judge in alphabetical order: items, items without a score, and its pairs with all other judges."""
        found = {}
        for judge, (asked, unparsed) in sorted(self._asked.items()):
            others = [pairs for names, pairs in self._pairs.items() if judge in names]
            found[judge] = asked, unparsed, ScorePairs(*map(sum, zip(*others, strict=True)))
        return found

    def weights(self) -> dict[str, float]:
        """A weight for every judge's vote: its agreement with the others, scaled to a mean of 1.

        A judge without a common item weighs 0, since nothing is known about it. If no judges ever agree, all weigh 1.
        """
        shares = {judge: others.agreement or 0.0 for judge, (_, _, others) in self.judges().items()}
        total = sum(shares.values())
        if not total:
            return dict.fromkeys(shares, 1.0)
        return {judge: share * len(shares) / total for judge, share in shares.items()}

    def to_dict(self) -> dict[str, Any]:
        """For the manifest; intervals are a bootstrap over groups."""
        return {
            "krippendorff_alpha": asdict(self.alpha()),
            "pairwise": asdict(self.pairwise()),
            "pairs": [
                {
                    "judges": list(names),
                    "n": pairs.n,
                    "agreement": pairs.agreement,
                    "mean_distance": pairs.distance / pairs.n if pairs.n else None,
                }
                for names, pairs in self.pairs().items()
            ],
            "judges": {
                judge: {"asked": asked, "unparsed": unparsed, "agreement_with_others": others.agreement}
                for judge, (asked, unparsed, others) in self.judges().items()
            },
        }

    def _estimate(
        self, measure: Callable[[_FloatArray], float | None], counted: int, resamples: int, seed: int
    ) -> Estimate:
        """A measure of the sums over groups, with a percentile bootstrap; column `counted` is its n."""
        table = np.array([sums for sums in self._groups.values() if sums[0]]).reshape(-1, 6)
        groups = len(table)
        totals = table.sum(axis=0)
        value, n = measure(totals), round(float(totals[counted]))
        if value is None or groups < 2:
            return Estimate(value, None, None, n, groups)
        rng = np.random.default_rng(seed)
        replicates = []
        for _ in range(resamples):  # one at a time: a table of all draws would grow with the groups
            weights = np.bincount(rng.integers(0, groups, groups), minlength=groups)
            replicates.append(measure(weights @ table))
        defined = [replicate for replicate in replicates if replicate is not None]
        if not defined:
            return Estimate(value, None, None, n, groups)
        low, high = np.quantile(defined, (0.025, 0.975))
        return Estimate(value, float(low), float(high), n, groups)


def _alpha(sums: _FloatArray) -> float | None:
    n, total, squares, within = (float(number) for number in sums[:4])
    if n < 2:
        return None
    spread = squares - total**2 / n
    if spread <= 1e-12 * max(1.0, squares):  # all scores are equal
        return None
    return 1.0 - (within / n) / (spread / (n - 1))  # 1 - observed / expected disagreement


def _share(sums: _FloatArray) -> float | None:
    pairs, agreeing = float(sums[4]), float(sums[5])
    return agreeing / pairs if pairs else None
