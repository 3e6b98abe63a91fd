"""What becomes of a run's inputs, step by step: counted on the way, kept in the ledger, added up in the manifest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Steps = dict[str, dict[str, int]]
"""By step and by fate, how many units it met there: "kept", or the reason for which it was dropped."""

KEPT = "kept"


class Fates:
    """Counts what becomes of one input's units, step by step.

    Attributes:
        steps: The counts so far, steps in the order in which they were first met.
    """

    def __init__(self) -> None:
        self.steps: Steps = {}

    def keep(self, step: str, units: int = 1) -> None:
        """Counts units that go on to the next step."""
        self._count(step, KEPT, units)

    def drop(self, step: str, reason: str, units: int = 1) -> None:
        """Counts units that end here."""
        assert reason != KEPT
        self._count(step, reason, units)

    def _count(self, step: str, fate: str, units: int) -> None:
        fates = self.steps.setdefault(step, {})
        fates[fate] = fates.get(fate, 0) + units


@dataclass(frozen=True)
class Made:
    """What became of one input.

    Attributes:
        id: The input's id, unique in its run.
        rows: What is to be written, in order.
        steps: Counts of each step that the input came to, in the order of the steps.
    """

    id: str
    rows: tuple[Mapping[str, Any], ...] = ()
    steps: Steps = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the ledger.

    Attributes:
        id: The input's id.
        rows: Rows that were made of it.
        shard: The shard that holds them.
        shard_rows: Rows of that shard so far.
        end: Bytes of that shard so far, as JSONL.
        steps: As in `Made`.
    """

    id: str
    rows: int
    shard: int
    shard_rows: int
    end: int
    steps: Steps = field(default_factory=dict)


@dataclass
class Tally:
    """Counts over all inputs; `steps` keeps the order in which steps were first met."""

    inputs: int = 0
    rows: int = 0
    steps: Steps = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        """Counts one more input."""
        self.inputs += 1
        self.rows += entry.rows
        for step, fates in entry.steps.items():
            total = self.steps.setdefault(step, {})
            for fate, units in fates.items():
                total[fate] = total.get(fate, 0) + units

    def to_dict(self) -> dict[str, Any]:
        """As the manifest has it: what every step took in and kept, and why it dropped the others."""
        steps = {
            step: {
                "in": sum(fates.values()),
                "kept": fates.get(KEPT, 0),
                "dropped": {fate: fates[fate] for fate in sorted(fates) if fate != KEPT},
            }
            for step, fates in self.steps.items()
        }
        return {"inputs": self.inputs, "rows": self.rows, "steps": steps}
