"""Log-probabilities by the reference model, which is the model at its start: computed once, before training."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from longrm.errors import DataError, TrainingError
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.shapes import build_trees, within_budget
from longrm.modeling.shared_prefix import pack
from longrm.runs.logs import Log
from longrm.runs.progress import Progress
from longrm.runs.records import ReferenceRecord
from longrm.training.batches import Example, MicroBatch
from longrm.training.distributed import ALONE, DistributedContext
from longrm.training.monitor import list_ids, out_of_memory_error

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

    They are written to the run folder batch by batch. Batches are cut the same way whatever is there already, and
    a half-written one is computed again whole, so that an interrupted run ends with the same numbers. Several processes
    compute batches at the same time.

    The model is as it is before training; fresh adapters change nothing. The examples have the responses that the loss
    reads. A forward pass has `budget` tokens at most; a longer example stands alone.

    Raises:
        DataError: Two examples have the same id.
        TrainingError: Memory ran out, or a log-probability is NaN or infinite.
    """
    log = Log(folder / REFERENCE, ReferenceRecord)
    found = {record.id: record.logprobs for record in log}
    needed: dict[str, Sequence[float]] = {}
    model.eval()
    with log:
        batches = iter(within_budget(examples, budget))
        while some := list(islice(batches, context.share.parts)):
            mine = [
                record
                for batch in some[context.share.index :][:1]
                if any(example.id not in found for example in batch)
                for record in _sums(model, batch)
            ]
            computed = context.gather(mine)
            log.append(*(record for record in computed if record.id not in found))
            found |= {record.id: record.logprobs for record in computed}
            for example in chain.from_iterable(some):
                if example.id in needed:
                    raise DataError(f"two rows have the id '{example.id}'; their reference would be one")
                needed[example.id] = found[example.id]
            progress("reference", len(needed), 0)
    return needed


@torch.inference_mode()
def _sums(model: Any, examples: Sequence[Example]) -> list[ReferenceRecord]:
    packed = pack(build_trees([example.tokens for example in examples]))
    try:
        sums = [one.sum().item() for one in MicroBatch(packed, examples, 1.0).response_logprobs(model)]
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory_error("in the reference model", examples) from None
    wrong = next((value for value in sums if not math.isfinite(value)), None)
    if wrong is not None:
        raise TrainingError(
            f"the model that training starts from gives a response the log-probability {wrong}, among "
            f"{list_ids(examples)}; check its weights, and the data for extreme rows"
        )
    own = iter(sums)
    return [ReferenceRecord(example.id, tuple(next(own) for _ in example.ranks)) for example in examples]
