"""The processes of one training, which a launcher such as `torchrun` has started.

They form a grid, data x sequence: neighbors share every sequence between them, and each such group reads its own
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
from longrm.modeling.process_group import extend_timeouts, join
from longrm.runs.folder import RunFolder
from longrm.runs.scratch import temporary_folder
from longrm.runs.workers import check_seen, world_size
from longrm.training.batches import WHOLE, Share
from longrm.training.training_settings import ParallelSettings

Exchanged = TypeVar("Exchanged")


@dataclass(frozen=True, slots=True, eq=False)
class DistributedContext:
    """The number of this process among those of a training, and its part of their work.

    Attributes:
        share: What it reads of every step.
        sequence: The processes that share its sequences; None where it reads them alone.
    """

    rank: int = 0
    count: int = 1
    share: Share = WHOLE
    sequence: dist.ProcessGroup | None = None

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes the run folder."""
        return self.rank == 0

    def wait(self) -> None:
        """Waits until all processes are here."""
        if self.count > 1:
            dist.barrier()

    def broadcast(self, value: Exchanged) -> Exchanged:
        """The main process's value, for all: by clocks and by rounding theirs may differ."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def gather(self, values: Sequence[Exchanged]) -> list[Exchanged]:
        """The values of all parts of a step, one part after the other, for all processes."""
        if self.count == 1:
            return list(values)
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, values)
        # Processes that share a sequence have the same values.
        return [value for own in gathered[:: self.count // self.share.parts] for value in own]

    def average_gradients(self, model: torch.nn.Module) -> None:
        """Replaces every gradient by its mean over all processes."""
        if self.count == 1:
            return
        for parameter in model.parameters():
            if parameter.grad is not None:  # or on no process: all compute the same functions
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.count

    def sum_figures(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Sums the figures of all parts of a step, in double precision."""
        if self.share.parts == 1:
            return dict(figures)
        values = torch.tensor(list(figures.values()), dtype=torch.float64)
        dist.all_reduce(values)
        values *= self.share.parts / self.count  # processes that share a sequence have the same figures
        return dict(zip(figures, values.tolist(), strict=True))


ALONE = DistributedContext()
"""A process that trains alone."""


@contextmanager
def join_processes(settings: ParallelSettings) -> Iterator[DistributedContext]:
    """Joins the processes that the launcher has started, as the settings lay them out; leaves them at the end.

    Raises:
        ConfigError: The processes cannot be laid out so, or one process cannot do what the settings need.
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
    with join("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo") as joined:
        part, group = joined.rank // size, None
        if size > 1:
            groups = [dist.new_group(list(range(first, first + size))) for first in range(0, count, size)]
            extend_timeouts()
            group = groups[part]
        yield DistributedContext(joined.rank, count, Share(part, count // size), group)


@contextmanager
def process_folder(context: DistributedContext, out: Path, settings: Config) -> Iterator[RunFolder]:
    """The folder in which a process keeps its records: the main process's is the run folder, others have a copy.

    All processes do the same, evaluations too, and so they must begin with the same records.
    """
    if context.is_main_process:
        with RunFolder(out, "training", settings) as folder:
            context.wait()  # for the folder to be claimed
            context.wait()  # for the copies
            yield folder
        return
    context.wait()
    check_seen(out)
    with temporary_folder("longrm-process-") as scratch:
        copy = scratch / "run"
        # Models are large, and read from the run folder itself.
        try:
            shutil.copytree(out, copy, ignore=shutil.ignore_patterns("checkpoints", "best", "model", ".*"))
        except OSError as error:  # shutil collects the errors of many files
            raise RunError(f"cannot copy the records of {out} to {scratch}: {first_line(error)}") from None
        context.wait()
        with RunFolder(copy, "training", settings) as folder:
            yield folder
