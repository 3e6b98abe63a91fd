"""The processes of one training, which a launcher such as `torchrun` has started.

They form a grid, data x sequence: `parallel.sequence_parallel_size` neighbors share every sequence, and each such
group is one data-parallel rank, which reads its own share of every step. The gradient of a step is the mean over all
processes; a process multiplies its loss by `dp_size`, so that this mean is the gradient of one process that reads the
whole step.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from longrm.config import Config
from longrm.errors import ConfigError
from longrm.modeling.process_group import join, set_timeouts
from longrm.runs.folder import RunFolder
from longrm.runs.workers import check_seen, world_size
from longrm.training.settings import ParallelSettings

Exchanged = TypeVar("Exchanged")


@dataclass(frozen=True, slots=True, eq=False)
class DistributedContext:
    """This process among those of a training."""

    rank: int = 0  # the main process is 0
    count: int = 1  # processes
    dp_rank: int = 0  # which share of every step this process reads
    dp_size: int = 1  # shares of a step
    sequence: dist.ProcessGroup | None = None  # the processes that share its sequences, if there are several

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes the run folder."""
        return self.rank == 0

    def wait(self) -> None:
        """Waits until all processes are here, over gloo: its time-out is hours."""
        if self.count > 1:
            dist.barrier()

    def broadcast(self, value: Exchanged) -> Exchanged:
        """The main process's value, for all: clocks and rounding may differ between processes."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def any(self, value: bool) -> bool:
        """Whether the value is true on any process."""
        if self.count == 1:
            return value
        total = torch.tensor(int(value))
        dist.all_reduce(total)
        return bool(total)

    def gather(self, values: Sequence[Exchanged]) -> list[Exchanged]:
        """The values of all data-parallel ranks, in their order, for all processes."""
        if self.count == 1:
            return list(values)
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, values)
        # Processes that share a sequence have the same values: take the first of each group.
        return [value for own in gathered[:: self.count // self.dp_size] for value in own]

    def average_gradients(self, model: torch.nn.Module) -> None:
        """Replaces every gradient by its mean over all processes."""
        if self.count == 1:
            return
        self.wait()  # before an exchange over NCCL: processes may have contexts of very different lengths
        for parameter in model.parameters():
            # All processes compute the same functions, so a gradient is missing on all of them or on none.
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.count

    def sum_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Sums metrics over all data-parallel ranks, in double precision."""
        if self.dp_size == 1:
            return dict(metrics)
        values = torch.tensor(list(metrics.values()), dtype=torch.float64)
        dist.all_reduce(values)
        values *= self.dp_size / self.count  # processes that share a sequence have the same metrics
        return dict(zip(metrics, values.tolist(), strict=True))


ALONE = DistributedContext()
"""A process that trains alone."""


@contextmanager
def join_processes(settings: ParallelSettings) -> Iterator[DistributedContext]:
    """Joins the processes that the launcher has started, laid out as the settings say; leaves them at the end."""
    count, size = world_size(), settings.sequence_parallel_size
    if count % size:
        raise ConfigError(
            f"parallel.sequence_parallel_size = {size} does not divide the number of processes, {count}: "
            f"torchrun --nproc-per-node {size * max(1, round(count / size))} -m longrm train ..."
        )
    if count == 1 and not settings.shard:
        yield ALONE
        return
    with join("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo") as joined:
        dp_rank, group = joined.rank // size, None
        if size > 1:
            # Every process has to create every group, its own or not.
            groups = [dist.new_group(list(range(first, first + size))) for first in range(0, count, size)]
            set_timeouts()
            group = groups[dp_rank]
        yield DistributedContext(joined.rank, count, dp_rank, count // size, group)


@contextmanager
def process_folder(context: DistributedContext, out: Path, settings: Config) -> Iterator[RunFolder]:
    """The folder for the records of this process: the run folder for the main process, a temporary copy for the others.

    All processes do the same work, evaluations included, and so they must start from the same records.
    """
    if context.is_main_process:
        with RunFolder(out, "training", settings) as folder:
            context.wait()  # the folder is claimed
            context.wait()  # the copies are made
            yield folder
        return
    context.wait()
    check_seen(out)
    with TemporaryDirectory(prefix="longrm-process-") as scratch:
        copy = Path(scratch) / "run"
        # Checkpoints and models are large, and are read from the run folder itself.
        shutil.copytree(out, copy, ignore=shutil.ignore_patterns("checkpoints", "best", "model", ".*"))
        context.wait()
        with RunFolder(copy, "training", settings) as folder:
            yield folder
