"""Measures how long a checkpoint stops a training, and its size, with shards on several processes.

"in turn" is how weights in CPU memory are written. "copied" is how those of a GPU are: they are copied to CPU memory
and written while training goes on; here the copy is one within CPU memory.

    torchrun --standalone --nproc-per-node 2 perf/checkpoints.py --json
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measuring import resident

from longrm.training import checkpoints, trainer
from longrm.training.checkpoints import CheckpointWriter
from longrm.training.settings import TrainingSettings
from longrm.training.train import train


class TimedWriter(CheckpointWriter):
    """Records the seconds that training is stopped."""

    seconds: list[float]

    def save(self, *arguments: Any) -> None:
        """As in a training."""
        began = time.perf_counter()
        super().save(*arguments)
        TimedWriter.seconds.append(time.perf_counter() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--json", action="store_true", help="print one JSON line for each way")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    settings = TrainingSettings.model_validate(
        {
            "objective": "bradley_terry",
            "model": {"new": {"layers": options.layers, "hidden": options.hidden}},
            "data": {"world": {"name": "records", "tokens_per_step": 64, "responses_per_step": 4}},
            "curriculum": {"lengths": [64]},
            "optimizer": {"max_steps": 6, "learning_rate": 1e-3},
            "checkpoint": {"save_steps": 2},
            "parallel": {"shard": True},
        }
    )
    trainer.CheckpointWriter = TimedWriter
    for way in ("in turn", "copied"):
        TimedWriter.seconds = []
        checkpoints._copies = lambda model, copied=way == "copied": copied
        folder = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder)
        train(settings, Path(folder[0]) / "run")
        written = (Path(folder[0]) / "run/checkpoints/6").iterdir()
        found = {
            "way": way,
            "processes": dist.get_world_size(),
            "stall_seconds": round(statistics.median(TimedWriter.seconds), 3),
            "bytes": sum(file.stat().st_size for file in written),
            "peak_memory_bytes": resident("VmHWM"),
        }
        if dist.get_rank() == 0:
            print(json.dumps(found) if options.json else found)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
