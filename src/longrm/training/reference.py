"""Log-probabilities by the reference model, which is the model at its start: computed once, before training."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from longrm.errors import DataError, TrainingError
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.shapes import build_trees, within_budget
from longrm.modeling.sharding import compute, is_sharded
from longrm.modeling.shared_prefix import pack
from longrm.runs.logs import Log
from longrm.runs.progress import Progress
from longrm.runs.records import ReferenceRecord
from longrm.training.batches import Example, MicroBatch, list_ids, out_of_memory
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

    They are written to the run folder batch by batch; a batch has `budget` tokens, or one longer example. The cut into
    batches does not depend on what is there already, and an incomplete batch is recomputed, so an interrupted run ends
    with the same numbers. Several processes compute different batches at the same time.
    """
    log = Log(folder / REFERENCE, ReferenceRecord)
    known = {record.id: record.logprobs for record in log}
    needed: dict[str, Sequence[float]] = {}
    model.eval()
    with log:
        batches = iter(within_budget(examples, budget))
        while round_ := list(islice(batches, context.dp_size)):  # one batch per process
            own: list[ReferenceRecord] = []
            ours = round_[context.dp_rank : context.dp_rank + 1]
            # Every process takes part in a forward pass of a sharded model; one without a batch drops the first one's.
            needed_by = round_ if is_sharded(model) else ours
            if any(example.id not in known for batch in needed_by for example in batch):
                with torch.no_grad():
                    records = compute(model, _compute, model, (ours or round_)[0])
                own = records if ours else []
            computed = context.gather(own)
            log.append(*(record for record in computed if record.id not in known))
            known |= {record.id: record.logprobs for record in computed}
            for example in (example for batch in round_ for example in batch):
                if example.id in needed:
                    raise DataError(f"two rows have the id '{example.id}'; the reference needs unique ids")
                needed[example.id] = known[example.id]
            progress("reference", len(needed), 0)
    return needed


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
