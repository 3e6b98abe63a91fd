"""What a metric of an evaluation is; importing it needs numpy alone."""

import math
from dataclasses import dataclass

from longrm.evaluation.samples import FloatArray, RatioSample, Sample
from longrm.evaluation.table import Measure, Needs, ScoreTable

SHARE = (0.0, 1.0)
"""The span of a share."""


@dataclass(frozen=True, slots=True)
class EvaluationMetric:
    """A named number of an evaluation, with all that summary, report, settings and docs need of it; more is better.

    Attributes:
        name: Its key in `summary.json`.
        title: What tables and axes call it.
        description: What it measures, for the docs.
        measure: Makes of a table the sample whose value it is.
        span: Smallest and largest value that it can take, which bound the interval where all groups agree.
        needs: Which rows it is of; see `Needs`.
        chance: What a random order earns; None where that depends on the gold ranks: it is then what ties earn.
        for_pairs: Whether it is reported where every comparison has two responses, and not a repetition there.
        in_results: Whether `results.csv` has a row of it beside those of the paper's tables.
    """

    name: str
    title: str
    description: str
    measure: Measure
    span: tuple[float, float] = SHARE
    needs: Needs = "ranks"
    chance: float | None = None
    for_pairs: bool = False
    in_results: bool = True

    def __post_init__(self) -> None:
        assert all(map(math.isfinite, self.span)), f"{self.name} needs a finite span"

    @property
    def is_share(self) -> bool:
        """Whether it is written in percent."""
        return self.span == SHARE

    def sample(self, table: ScoreTable) -> Sample:
        """What it reads from the table."""
        return table.sample(self.measure)

    def earned(self, table: ScoreTable, *, by_chance: bool = False) -> FloatArray:
        """What each row earns, or a random order in it; only a mean of credits knows that."""
        sample = table.sample(self.measure, by_chance=by_chance)
        assert isinstance(sample, RatioSample), "an area is no mean over rows"
        return sample.total

    def chance_on(self, table: ScoreTable) -> float:
        """Its chance level on a table, averaged as it is itself."""
        return table.sample(self.measure, by_chance=True).value if self.chance is None else self.chance
