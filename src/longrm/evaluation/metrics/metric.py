"""The class of evaluation metrics."""

import math
from dataclasses import dataclass

from longrm.evaluation.table import FloatArray, Measure, Needs, RatioSample, Sample, ScoreTable

SHARE = (0.0, 1.0)
"""The span of a metric that is a share."""


@dataclass(frozen=True, slots=True)
class EvaluationMetric:
    """A metric, with everything that summary, report, settings and docs need of it. Higher values are better."""

    name: str  # key in `summary.json`
    title: str  # in tables and on axes
    description: str  # in docs/measures.md
    measure: Measure  # computes its sample from a table
    span: tuple[float, float] = SHARE  # smallest and largest possible value
    needs: Needs = "ranks"  # the rows that it uses
    # Value of a random order; None if it depends on the gold ranks: then it is the value of a tie
    chance: float | None = None
    for_pairs: bool = False  # report it for pairs too; set it unless the metric equals another one there
    in_results: bool = True  # give it a row in `results.csv`, next to those of the paper's tables

    def __post_init__(self) -> None:
        assert all(map(math.isfinite, self.span)), f"{self.name} needs a finite span"

    @property
    def is_share(self) -> bool:
        """Whether it is shown in percent."""
        return self.span == SHARE

    def sample(self, table: ScoreTable) -> Sample:
        """Its sample of a table."""
        return table.sample(self.measure)

    def earned(self, table: ScoreTable, *, by_chance: bool = False) -> FloatArray:
        """The credit of each row, or of a random order there; only for means of credits."""
        sample = table.sample(self.measure, by_chance=by_chance)
        assert isinstance(sample, RatioSample), "an area is not a mean over rows"
        return sample.total

    def chance_on(self, table: ScoreTable) -> float:
        """Its chance level on a table."""
        return table.sample(self.measure, by_chance=True).value if self.chance is None else self.chance
