"""The order in which rows are read: a pure function of the seed and the epoch, with long rows spread evenly.

The rows of a source are sorted into *strata* by length (powers of two). In a series where stratum i has m_i of n rows,
every beginning of t rows has t m_i / n of its rows, give or take less than one: long rows are neither starved nor
bunched (Tijdeman 1980, "The chairman assignment problem"). If rows are grouped by length, this holds for the groups.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypeVar

from longrm.rng import Rng
from longrm.training.settings import CurriculumSettings

Row = TypeVar("Row")
Key = TypeVar("Key", int, tuple[int, int])

# Groups whose rows are sorted by length together. With more, the rows of a group differ less, and the order is less
# random.
_WINDOW = 16


class Mixture:
    """Epochs over several sources.

    A source is an endless series of passes, each a new order of all its rows, and an epoch continues where the last
    one ended: with weight 1 every row once, with weight 0.5 the half that the last epoch omitted. `lengths` are the
    tokens of every row, for each source. Rows of similar length form groups of `group_size`; rows left over are at the
    end of the epoch.
    """

    def __init__(
        self, lengths: Sequence[Sequence[int]], weights: Sequence[float], seed: int, group_size: int = 1
    ) -> None:
        self._lengths = lengths
        self._seed = seed
        self._group_size = group_size
        # rows of each source in one epoch, the same number in every epoch
        self._quotas = [
            max(1, round(weight * len(own))) for own, weight in zip(lengths, weights, strict=True)
        ]
        self.rows = sum(self._quotas)

    def epoch(self, number: int) -> list[tuple[int, int]]:
        """Source and row of everything that an epoch, counted from 0, reads, in order."""
        strata: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for source, (lengths, quota) in enumerate(zip(self._lengths, self._quotas, strict=True)):
            # The epoch reads `quota` rows of the endless series of passes, from `start` on.
            start, size = number * quota, len(lengths)
            passes = range(start // size, -(-(start + quota) // size))
            series = [row for one in passes for row in self._pass(source, one)]
            first = start - passes.start * size
            for row in series[first : first + quota]:
                strata.setdefault((source, lengths[row].bit_length()), []).append((source, row))
        rng = Rng("epoch", self._seed, number)
        size = self._group_size
        if size == 1:
            return _interleave(strata, rng)
        groups: dict[tuple[int, int], list[list[tuple[int, int]]]] = {}
        rest: list[tuple[int, int]] = []
        for stratum, rows in sorted(strata.items()):
            own = []
            for begin in range(0, len(rows), _WINDOW * size):
                window = rows[begin : begin + _WINDOW * size]
                window.sort(key=lambda row: self._lengths[row[0]][row[1]])
                full = len(window) // size * size
                own += [window[at : at + size] for at in range(0, full, size)]
                rest += window[full:]
            if own:
                rng.shuffle(own)
                groups[stratum] = own
        return [row for group in _interleave(groups, rng) for row in group] + rest

    def _pass(self, source: int, number: int) -> list[int]:
        """All rows of a source in the order of one pass."""
        strata: dict[int, list[int]] = {}
        for row, length in enumerate(self._lengths[source]):
            strata.setdefault(length.bit_length(), []).append(row)
        rng = Rng("pass", self._seed, source, number)
        for stratum in sorted(strata):
            rng.shuffle(strata[stratum])
        return _interleave(strata, rng)


def _interleave(strata: Mapping[Key, Sequence[Row]], rng: Rng) -> list[Row]:
    """The rows of all strata, spread evenly; a random order of the strata breaks ties."""
    keys = sorted(strata)
    rng.shuffle(keys)
    rows = [iter(strata[key]) for key in keys]
    return [next(rows[stratum]) for stratum in spread([len(strata[key]) for key in keys])]


def spread(sizes: Sequence[int]) -> list[int]:
    """Spreads strata, each with one row or more, evenly over a series; returns the index of the stratum of every place.

    Of the first t, t * size / sum(sizes) are of a stratum, +- less than 1.
    """
    total = sum(sizes)
    slack = 1 / max(2, 2 * len(sizes) - 2)
    # Each turn of a stratum has a release time and a deadline. Of the turns that are released, the earliest deadline
    # goes first: `due` is a heap by release time, `ready` one by deadline.
    due = [(slack * total / size, stratum) for stratum, size in enumerate(sizes)]
    heapq.heapify(due)
    ready: list[tuple[float, int]] = []
    taken = [0] * len(sizes)
    series: list[int] = []
    for time in range(1, total + 1):
        while due and (due[0][0] <= time or not ready):
            _, stratum = heapq.heappop(due)
            heapq.heappush(ready, ((taken[stratum] + 1 - slack) * total / sizes[stratum], stratum))
        _, stratum = heapq.heappop(ready)
        series.append(stratum)
        taken[stratum] += 1
        if taken[stratum] < sizes[stratum]:
            heapq.heappush(due, ((taken[stratum] + slack) * total / sizes[stratum], stratum))
    return series


@dataclass(frozen=True, slots=True)
class Curriculum:
    """The context length of each step; a pure function of the step."""

    settings: CurriculumSettings
    _: KW_ONLY
    steps: int
    seed: int

    def length(self, step: int) -> int:
        """The context length of a step, counted from 0."""
        lengths = self.settings.lengths
        reached = int(step / (self.settings.ramp * self.steps) * (len(lengths) - 1))
        back = Rng("curriculum", self.seed, step).fraction() < self.settings.short_share
        return lengths[0] if back else lengths[min(reached, len(lengths) - 1)]
