"""One of several processes: trainings one after the other, as a plan in JSON lists them.

    python trainings.py PLAN

Every entry has a `recipe`, the folder `out` of its run, and may have a `fault`, which a negative control breaks, and a
step to be `killed` after.
"""

import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from longrm.modeling import attention
from longrm.runs.progress import no_progress
from longrm.training import batches
from longrm.training.distributed import DistributedContext
from longrm.training.evaluations import evaluator_of
from longrm.training.settings import TrainingSettings
from longrm.training.train import train


def no_exchange(query: Any, key: Any, value: Any, tokens: int, group: Any) -> Any:
    """A process's own tokens, again and again, in the place of all tokens."""
    q_heads, kv_heads = query.shape[1] // group.size(), max(1, key.shape[1] // group.size())
    again = lambda states, heads: states[:, :heads].repeat(1, 1, group.size(), 1)[:, :, :tokens]  # noqa: E731
    return again(query, q_heads), again(key, kv_heads), again(value, kv_heads)


def the_first_again(rows: Any, dp_size: int, *others: Any, deal: Any = batches.deal, **named: Any) -> Any:
    """What the first process reads of a step, for every process."""
    first, *_ = deal(rows, dp_size, *others, **named)
    return [first] * dp_size


FAULTS = {
    "": [],
    "no exchange": [(attention, "over_heads", no_exchange)],
    "no reduction": [(DistributedContext, "average_gradients", lambda *_: None)],
    "the same rows": [(batches, "deal", the_first_again)],
}


@contextmanager
def broken(fault: str) -> Iterator[None]:
    with ExitStack() as stack:
        for target, name, stand_in in FAULTS[fault]:
            stack.enter_context(patch.object(target, name, stand_in))
        yield


def killed_after(step: int | None) -> Any:
    """Progress that ends this process as the kernel does, between a step and whatever follows it."""

    def progress(label: str, done: int, total: int, note: str = "") -> None:
        if label == "training" and done == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return progress


def train_entry(entry: dict[str, Any]) -> None:
    recipe = TrainingSettings.model_validate(entry["recipe"])
    evaluator = evaluator_of(recipe.evaluation, no_progress) if recipe.evaluation else None
    with broken(entry.get("fault", "")):
        train(recipe, Path(entry["out"]), progress=killed_after(entry.get("killed")), evaluator=evaluator)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")  # one group for all of them
    for entry in json.loads(Path(sys.argv[1]).read_text()):
        train_entry(entry)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
