"""The processes of one training, which a launcher such as `torchrun` has started.

They stand in a grid, data x sequence: neighbors share every sequence between them, and each such group reads its own
part of every step. A step's gradient is the mean over all processes; a process multiplies its own loss by the number
of parts, so that this is the gradient of one process that reads the whole step.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from longrm.config import Config
from longrm.errors import ConfigError, RunError, first_line
from longrm.modeling.processes import be_patient, join
from longrm.runs.folder import RunFolder
from longrm.runs.scratch import temporary_folder
from longrm.runs.workers import check_seen, world_size
from longrm.training.batches import WHOLE, Share
from longrm.training.settings import Parallel

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, eq=False)
class Processes:
    """The place of this process among those of a training.

    Attributes:
        rank: Its number, from 0.
        count: How many there are.
        share: What it reads of every step.
        sequence: The processes that share its sequences; None where it reads them alone.
    """

    rank: int = 0
    count: int = 1
    share: Share = WHOLE
    sequence: dist.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes the run folder."""
        return self.rank == 0

    def wait(self) -> None:
        """Waits until all processes are here."""
        if self.count > 1:
            dist.barrier()

    def agree(self, found: Found) -> Found:
        """What the first process has found, for all: by clocks and by rounding they may find other things."""
        if self.count == 1:
            return found
        told = [found]
        dist.broadcast_object_list(told, src=0)
        return told[0]

    def gather(self, found: Sequence[Found]) -> list[Found]:
        """What the parts of a step have found, one after the other; all processes are told."""
        if self.count == 1:
            return list(found)
        told: list[Any] = [None] * self.count
        dist.all_gather_object(told, found)
        # Processes that share a sequence say the same.
        return [one for own in told[:: self.count // self.share.parts] for one in own]

    def average_gradients(self, model: torch.nn.Module) -> None:
        """Puts the mean over all processes in the place of every gradient."""
        if self.count == 1:
            return
        for parameter in model.parameters():
            if parameter.grad is not None:  # or on no process: all compute the same of unlike rows
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.count

    def sum_figures(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Sums up what the parts of a step say of it, in double precision."""
        if self.share.parts == 1:
            return dict(figures)
        values = torch.tensor(list(figures.values()), dtype=torch.float64)
        dist.all_reduce(values)
        values *= self.share.parts / self.count  # processes that share a sequence say the same
        return dict(zip(figures, values.tolist(), strict=True))


ALONE = Processes()
"""A process that trains alone."""


@contextmanager
def processes(settings: Parallel) -> Iterator[Processes]:
    """Joins the processes that the launcher has started, as the settings lay them out; leaves them at the end.

    Raises:
        ConfigError: The processes cannot be laid out so, or one alone is asked for what takes several.
        RunError: Another process is gone.
    """
    count, size = world_size(), settings.sequence
    if count % size:
        raise ConfigError(
            f"parallel.sequence = {size} does not divide the number of processes, {count}: "
            f"torchrun --nproc-per-node {size * max(1, round(count / size))} -m longrm train ..."
        )
    if count == 1 and not settings.zero:
        yield ALONE
        return
    with join("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo") as place:
        group = _sequence_group(place.rank, count, size)
        yield Processes(place.rank, count, Share(place.rank // size, count // size), group)


@contextmanager
def own_folder(place: Processes, out: Path, settings: Config) -> Iterator[RunFolder]:
    """The folder in which a process keeps its records: the run folder itself, or a copy that is thrown away.

    All processes do the same, evaluations too, and so they must begin with the same records.
    """
    if place.leads:
        with RunFolder(out, "training", settings) as folder:
            place.wait()  # for the folder to be claimed
            place.wait()  # for the copies
            yield folder
        return
    place.wait()
    check_seen(out)
    with temporary_folder("longrm-process-") as scratch:
        copy = scratch / "run"
        # Models are large, and read from the run folder itself.
        try:
            shutil.copytree(out, copy, ignore=shutil.ignore_patterns("checkpoints", "best", "model", ".*"))
        except OSError as error:  # of many files, as shutil tells it
            raise RunError(f"cannot copy the records of {out} to {scratch}: {first_line(error)}") from None
        place.wait()
        with RunFolder(copy, "training", settings) as folder:
            yield folder


def _sequence_group(rank: int, count: int, size: int) -> Any:
    if size == 1:
        return None
    groups = [dist.new_group(list(range(first, first + size))) for first in range(0, count, size)]
    be_patient()
    return groups[rank // size]
