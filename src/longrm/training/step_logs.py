"""The logs of a training run: one record a step in each."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longrm.errors import RunError
from longrm.reading import reading
from longrm.runs.logs import Log
from longrm.runs.records import ContextRecord, StepRecord, TimingRecord

LOGS = STEPS, TIMING, CONTEXTS = "steps.jsonl", "timing.jsonl", "contexts.jsonl"


@contextmanager
def training_logs(
    folder: Path, checkpoint: Path | None
) -> Iterator[tuple[Log[StepRecord], Log[TimingRecord], Log[ContextRecord]]]:
    """Opens the logs of a run folder together, as the copies in a checkpoint have them; without one they begin anew."""
    for name in LOGS:
        if checkpoint:
            shutil.copyfile(checkpoint / name, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    with (
        Log(folder / STEPS, StepRecord) as steps,
        Log(folder / TIMING, TimingRecord) as timing,
        Log(folder / CONTEXTS, ContextRecord) as contexts,
    ):
        yield steps, timing, contexts


def progress_note(record: StepRecord, seconds: float) -> str:
    """What is told of a step beside its number: loss, accuracy, learning rate, and tokens a second."""
    accuracy = "" if record.accuracy is None else f"accuracy {record.accuracy:.2f}, "
    speed = f"{record.tokens / max(seconds, 1e-9):,.0f} tokens/s"
    return f"loss {record.loss:.3f}, {accuracy}learning rate {record.learning_rate:.1e}, {speed}"


def logged_steps(folder: Path) -> int:
    """Steps that all logs of a run folder hold in full."""
    return min(_lines(folder / name) for name in LOGS)


def _lines(path: Path) -> int:
    if not os.path.lexists(path):
        return 0
    with reading(path, RunError), path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
