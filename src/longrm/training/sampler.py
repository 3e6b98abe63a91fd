"""The order in which rows are read: a pure function of the seed and the epoch, with long rows spread evenly.

The rows of a source are sorted into *strata* by length (powers of two). In a series where stratum i holds m_i of n
rows, every beginning of t rows holds t m_i / n of its rows, give or take less than one: long rows are neither
starved nor bunched (Tijdeman 1980, "The chairman assignment problem").
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from longrm.rng import Draws
from longrm.training.data_settings import CurriculumSettings

SampledRow = TypeVar("SampledRow")
StratumKey = TypeVar("StratumKey", int, tuple[int, int])


@dataclass(frozen=True, slots=True)
class SampledSource:
    """A source as sampling sees it: the tokens of every row, and how many passes over it one epoch makes."""

    lengths: Sequence[int]
    weight: float = 1.0

    @property
    def quota(self) -> int:
        """Its rows in one epoch, the same in every epoch; at least one."""
        return max(1, round(self.weight * len(self.lengths)))


class Mixture:
    """Epochs over several sources.

    A source is an endless series of passes, each a new order of all its rows, and an epoch reads on where the last
    one ended: with weight 1 every row once, with weight 0.5 the half that the last epoch left out.
    """

    def __init__(self, stocks: Sequence[SampledSource], seed: int) -> None:
        self._stocks = stocks
        self._seed = seed
        self.rows = sum(stock.quota for stock in stocks)

    def epoch(self, number: int) -> list[tuple[int, int]]:
        """Source and row of all that an epoch, counted from 0, reads, in order."""
        strata: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for source, stock in enumerate(self._stocks):
            for row in self._drawn(source, number):
                strata.setdefault((source, stock.lengths[row].bit_length()), []).append((source, row))
        return _woven(strata, Draws("epoch", self._seed, number))

    def _drawn(self, source: int, epoch: int) -> list[int]:
        """The rows of a source that an epoch reads."""
        stock = self._stocks[source]
        size, start = len(stock.lengths), epoch * stock.quota
        passes = range(start // size, -(-(start + stock.quota) // size))
        drawn = (row for number in passes for row in self._pass(source, number))
        first = start - passes.start * size
        return list(islice(drawn, first, first + stock.quota))

    def _pass(self, source: int, number: int) -> list[int]:
        """All rows of a source in the order of one pass."""
        strata: dict[int, list[int]] = {}
        for row, length in enumerate(self._stocks[source].lengths):
            strata.setdefault(length.bit_length(), []).append(row)
        draws = Draws("pass", self._seed, source, number)
        for bucket in sorted(strata):
            draws.shuffle(strata[bucket])
        return _woven(strata, draws)


def _woven(strata: Mapping[StratumKey, Sequence[SampledRow]], draws: Draws) -> list[SampledRow]:
    """The items of all strata, spread evenly; where several are due at once, it is drawn which comes first."""
    keys = sorted(strata)
    draws.shuffle(keys)
    parts = [iter(strata[key]) for key in keys]
    return [next(parts[stratum]) for stratum in spread([len(strata[key]) for key in keys])]


def spread(sizes: Sequence[int]) -> list[int]:
    """Spreads strata evenly over a series.

    Args:
        sizes: How often each stratum stands in it; 1 at least.

    Returns:
        The strata, by index, in order. Of the first t, t * size / sum(sizes) are of a stratum, +- less than 1.
    """
    total = sum(sizes)
    slack = 1 / max(2, 2 * len(sizes) - 2)
    # A turn of a stratum has a time from which, and a time until which, it may be taken: the earliest end goes first.
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


class Curriculum:
    """Which length each step trains on; a pure function of the step."""

    def __init__(self, settings: CurriculumSettings, *, steps: int, seed: int) -> None:
        self._settings = settings
        self._ramp_steps = settings.ramp * steps
        self._seed = seed

    def length(self, step: int) -> int:
        """The context length of a step, counted from 0."""
        lengths = self._settings.lengths
        climbed = int(step / self._ramp_steps * (len(lengths) - 1))
        back = Draws("curriculum", self._seed, step).fraction() < self._settings.short_share
        return lengths[0] if back else lengths[min(climbed, len(lengths) - 1)]
