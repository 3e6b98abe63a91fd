"""Logs that several processes write at once: each into a part of its own beside the log, until they are joined."""

from pathlib import Path
from typing import TypeVar

from longrm.runs.logs import Log

PART = ".part-"
Record = TypeVar("Record")


def part_of(path: Path, rank: int) -> Path:
    """Where a process writes: the first into the log itself, the others into a part beside it."""
    return path if rank == 0 else path.with_name(f"{path.stem}{PART}{rank}{path.suffix}")


def parts_of(path: Path) -> list[Path]:
    """The parts that lie beside a log, written by processes that were killed or are still at work."""
    return sorted(path.parent.glob(f"{path.stem}{PART}*{path.suffix}"))


def join_parts(path: Path, record_type: type[Record]) -> None:
    """Appends to a log what lies in parts beside it, and removes them.

    Whoever is killed meanwhile leaves a part that is joined again: records may then stand in the log twice.

    Raises:
        RunError: A line of a part is damaged.
    """
    for part in parts_of(path):
        with Log(path, record_type) as log:
            for record in Log(part, record_type):
                log.append(record)
        part.unlink()
