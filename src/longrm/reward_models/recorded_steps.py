"""Recorded labels or scores of steps, in place of a reward model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longrm.data.fields import name_of, required
from longrm.data.files import raw_rows
from longrm.errors import DataError
from longrm.reading import FieldError, is_number, reading, short
from longrm.types import Judgment, Outcome, Scale, Trajectory


class RecordedSteps:
    """Judgments by the id of a trajectory (`record_id` or `id`), from a JSONL file or all of a folder.

    A row has `step_labels`, by the number of the message in the conversation, as AgentProcessBench's results have it,
    or `scores`, one a step, as `trajectories.jsonl` of a run has it. Of several rows with one id the one with the
    latest `updated_at` counts, else the last one. A record whose labels are all null names no wrong step, as the
    authors count it.
    """

    scale: Scale = "label"
    step_threshold: float | None = None

    def __init__(self, path: Path) -> None:
        self.name = f"recorded:{path}"
        self.provenance: Mapping[str, str] = {}
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        self._rows: dict[str, dict[str, Any]] = {}
        for raw in raw_rows(files):
            with reading(raw.place, DataError):
                row = raw.checked()
                name = name_of(row, "record_id" if row.get("record_id") is not None else "id")
                known = self._rows.get(name, {})
                if str(row.get("updated_at", "")) >= str(known.get("updated_at", "")):
                    self._rows[name] = {**row, "_place": raw.place}
        if not self._rows:
            raise DataError(f"{path}: no recorded steps in it")

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def judgment(self, trajectory: Trajectory) -> Judgment:
        """The recorded labels of a trajectory's steps, NaN where a step has none; unparsed without a record."""
        row = self._rows.get(trajectory.id)
        if row is None:
            return Judgment(Outcome.UNPARSED, detail="no record")
        with reading(row["_place"], DataError):
            if row.get("step_labels") is None:
                scores = required(row, "scores")[1]
                if len(scores) not in (0, len(trajectory.steps)):
                    raise FieldError("scores", f"must be one for each of {len(trajectory.steps)} steps")
                given = dict(enumerate(scores))
                keys: list[Any] = [*range(len(trajectory.steps))]
            else:
                given, at, keys = row["step_labels"], len(trajectory.prompt) - 1, []
                for step in trajectory.steps:
                    at += len(step)
                    keys.append(str(at))
            values = [given.get(key) for key in keys]
            wrong = next((one for one in values if one is not None and not is_number(one)), None)
            if wrong is not None:
                raise FieldError("step_labels", f"must be numbers, got {short(wrong)}")
        return Judgment(
            Outcome.ANSWERED, tuple(float("nan") if one is None else float(one) for one in values)
        )
