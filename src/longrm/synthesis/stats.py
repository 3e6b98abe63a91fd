"""What becomes of a run's inputs, step by step: kept, or dropped for a reason that is counted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Steps = dict[str, dict[str, int]]
"""By step, how many units it kept and how many it dropped for which reason; `KEPT` stands for the first."""

KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Stands where a row would be: the step that dropped it, and the drop reason."""

    step: str
    reason: str


class StepCounts:
    """Counts, step by step in order, the units that were kept and those that were dropped."""

    def __init__(self) -> None:
        self.steps: Steps = {}

    def keep(self, step: str, units: int = 1) -> None:
        """Counts units that go on to the next step."""
        self.add({step: {KEPT: units}})

    def drop(self, dropped: Dropped, units: int = 1) -> None:
        """Counts units that end here."""
        assert dropped.reason != KEPT
        self.add({dropped.step: {dropped.reason: units}})

    def add(self, steps: Mapping[str, Mapping[str, int]]) -> None:
        """Adds counts, such as those of another input."""
        for step, units_by_reason in steps.items():
            counts = self.steps.setdefault(step, {})
            for reason, units in units_by_reason.items():
                counts[reason] = counts.get(reason, 0) + units

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """As the manifest has them: what every step took in and kept, and why it dropped the others."""
        return {
            step: {
                "in": sum(counts.values()),
                "kept": counts.get(KEPT, 0),
                "dropped": {reason: counts[reason] for reason in sorted(counts) if reason != KEPT},
            }
            for step, counts in self.steps.items()
        }


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """What all judges of a panel scored one response (`votes.jsonl`): the agreement of a run is measured on these.

    Responses about one document or context share their `group`. Scores are by judge and in points, None where none
    could be read.
    """

    id: str
    group: str
    scores: dict[str, float | None]


@dataclass(frozen=True)
class InputOutcome:
    """What became of one input: its rows in order, the counts of each step, and the votes of a panel."""

    id: str
    rows: tuple[Mapping[str, Any], ...] = ()
    steps: Steps = field(default_factory=dict)
    votes: tuple[VoteRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """How many rows an input became and in which shard, and the rows and JSONL bytes of that shard so far."""

    id: str
    rows: int
    shard: int
    shard_rows: int
    end: int
    steps: Steps = field(default_factory=dict)


class RunCounts:
    """Counts over all inputs of a run."""

    def __init__(self) -> None:
        self.inputs, self.rows, self.steps = 0, 0, StepCounts()

    def add(self, entry: LedgerEntry) -> None:
        """Counts one more input."""
        self.inputs += 1
        self.rows += entry.rows
        self.steps.add(entry.steps)

    def to_dict(self) -> dict[str, Any]:
        """As the manifest has them."""
        return {"inputs": self.inputs, "rows": self.rows, "steps": self.steps.to_dict()}
