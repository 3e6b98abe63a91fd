"""Log-probabilities by the reference model, which is the model at its start: computed once, before training."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from longrm.data.training_rows import Example
from longrm.errors import TrainingError
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.shapes import build_trees, within_budget
from longrm.modeling.sharding import compute, is_sharded
from longrm.modeling.shared_prefix import pack
from longrm.runs.progress import Progress
from longrm.runs.records import ReferenceRecord
from longrm.runs.resumable import ResumableRun, Written, unique
from longrm.training.batches import MicroBatch, list_ids, out_of_memory
from longrm.training.distributed import ALONE, DistributedContext

REFERENCE = "reference.jsonl"


def reference_logprobs(
    model: Any,
    examples: Iterable[Example],
    folder: Path,
    *,
    budget: int,
    progress: Progress,
    context: DistributedContext = ALONE,
) -> Mapping[str, Sequence[float]]:
    """The summed fp32 log-probability of every response, by example id.

    They are logged in the run folder; a batch has `budget` tokens, or one longer example. Several processes compute a
    batch each at the same time, exchange the results, and log them all.
    """
    run = ResumableRun(folder, {REFERENCE: ReferenceRecord})
    found: dict[str, Sequence[float]] = {record.id: record.logprobs for record in run.read(REFERENCE)}
    before = frozenset(found)
    model.eval()

    def rounds() -> Iterator[list[Example]]:  # one batch per process
        batches = within_budget(unique(examples), budget)
        while some := list(islice(batches, context.dp_size)):
            yield [example for batch in some for example in batch]

    def work(examples: Sequence[Example]) -> Written:
        batches = list(within_budget(examples, budget))  # the same as in `rounds`
        own = batches[context.dp_rank : context.dp_rank + 1]
        records: list[ReferenceRecord] = []
        # Every process takes part in a forward pass of a sharded model; one without a batch drops the first one's.
        if own or is_sharded(model):
            with torch.no_grad():
                records = compute(model, _compute, model, (own or batches)[0])
        records = context.gather(records if own else [])
        found.update((record.id, record.logprobs) for record in records if record.id not in before)
        return {REFERENCE: records}

    run.run(
        rounds(),
        work,
        {REFERENCE: before},
        progress=lambda done: progress("reference", len(before) + done, 0),
    )
    return found


@torch.inference_mode()
def _compute(model: Any, examples: Sequence[Example]) -> list[ReferenceRecord]:
    packed = pack(build_trees([example.tokens for example in examples]))
    try:
        sums = [own.sum().item() for own in MicroBatch(packed, examples, 1.0).response_logprobs(model)]
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory("in the reference model", examples) from None
    if wrong := [value for value in sums if not math.isfinite(value)]:
        raise TrainingError(
            f"the initial model gives a response the log-probability {wrong[0]}, among {list_ids(examples)}; check its "
            "weights, and the data for extreme rows"
        )
    remaining = iter(sums)
    return [
        ReferenceRecord(example.id, tuple(next(remaining) for _ in example.ranks)) for example in examples
    ]
