"""The logs of a training run: one record a step in each."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from longrm.errors import RunError
from longrm.reading import open_file
from longrm.runs.logs import Log
from longrm.runs.records import ContextRecord, StepRecord, TimingRecord

LOGS = STEPS, TIMING, CONTEXTS = "steps.jsonl", "timing.jsonl", "contexts.jsonl"


class TrainingLogs:
    """The logs of a training run, open together; each holds one record a step.

    They continue from the copies in a checkpoint, whatever became of the logs since.

    Args:
        folder: The run folder.
        checkpoint: The checkpoint that training continues from; None begins anew.
    """

    def __init__(self, folder: Path, checkpoint: Path | None) -> None:
        for name in LOGS:
            if checkpoint:
                shutil.copyfile(checkpoint / name, folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        self.steps = Log(folder / STEPS, StepRecord)
        self.timing = Log(folder / TIMING, TimingRecord)
        self.contexts = Log(folder / CONTEXTS, ContextRecord)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        for log in (self.steps, self.timing, self.contexts):
            self._open.enter_context(log)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.__exit__(*exception)


def logged_steps(folder: Path) -> int:
    """Steps that all logs of a run folder hold in full."""
    return min(_lines(folder / name) for name in LOGS)


def _lines(path: Path) -> int:
    if not os.path.lexists(path):
        return 0
    with open_file(path, RunError) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
