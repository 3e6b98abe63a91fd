"""The pairs of responses that gold tells apart, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from longrm.evaluation.intervals import FloatArray, IntArray
from longrm.evaluation.scoring import judged_values, ordered_pairs
from longrm.evaluation.table import ScoreTable
from longrm.runs.records import JudgmentRecord


@dataclass(frozen=True, slots=True)
class GoldPairs:
    """One row a pair of a better and a worse response.

    Attributes:
        row: The row of its comparison among the scored ones.
        group: Code of its comparison's group.
        margin: Judged value of the better response minus that of the worse; NaN where not answered.
        longer: Characters of the better response minus those of the worse; NaN where not known.
    """

    row: IntArray
    group: IntArray
    margin: FloatArray
    longer: FloatArray

    @classmethod
    def of(cls, scored: Sequence[JudgmentRecord], table: ScoreTable) -> Self:
        """The pairs of scored records, the rows of the table."""
        row: list[int] = []
        margin: list[float] = []
        longer: list[float] = []
        for at, record in enumerate(scored):
            values, characters = judged_values(record), record.characters
            for better, worse in ordered_pairs(record.ranks or ()):
                row.append(at)
                margin.append(values[better] - values[worse] if values else np.nan)
                longer.append(characters[better] - characters[worse] if characters else np.nan)
        rows = np.array(row, np.int64)
        return cls(rows, table.group[rows], np.array(margin, np.float64), np.array(longer, np.float64))

    @property
    def right(self) -> FloatArray:
        """1 where the better response was judged better, 0.5 where both tie, else 0."""
        right: FloatArray = (self.margin > 0) + 0.5 * (self.margin == 0)
        return right

    @property
    def answered(self) -> FloatArray:
        """1 where the pair was judged, else 0."""
        return np.isfinite(self.margin).astype(np.float64)
