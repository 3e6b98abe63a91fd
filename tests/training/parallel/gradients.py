"""One of several processes: the gradients of a step by every objective, laid out as its arguments say.

    python gradients.py SEQUENCE KV_HEADS FAULT OUT

A fault is what a negative control breaks; none is "".
"""

import importlib.util
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from longrm.modeling import attention
from longrm.modeling.sequence_parallel import share_sequences
from longrm.modeling.shapes import PackedLayout
from longrm.training.batches import Batches
from longrm.training.distributed import ALONE, DistributedContext, join_processes
from longrm.training.settings import ParallelSettings

_PLACE = Path(__file__).parents[2] / "invariants/test_training_invariances.py"
BUDGETS = (100_000, 250)


def step() -> Any:
    """The step of the invariances: its examples, objectives, models and measure."""
    spec = importlib.util.spec_from_file_location("invariances", _PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["invariances"] = module
    spec.loader.exec_module(module)
    return module


def cases(kv_heads: int) -> Any:
    """For every objective its name, itself, its model and its examples."""
    own = step()
    models = own.models_of(kv_heads)
    for name in own.OBJECTIVES:
        make, model, examples = own.case_of(name, models)
        yield name, make(examples), model, examples


def parts_of(
    objective: Any, examples: list[Any], budget: int, context: DistributedContext = ALONE
) -> list[Any]:
    source = sys.modules["invariances"].Fixed(examples)
    batches = Batches(
        source, objective, budget=budget, limit=4096, dp_rank=context.dp_rank, dp_size=context.dp_size
    )
    return list(batches.prepare(0).micro_batches)


def gradients(objective: Any, model: Any, parts: list[Any], context: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    figures: dict[str, float] = {}
    for micro in parts:
        loss, own = objective.loss(model, micro)
        (loss * micro.weight * context.dp_size).backward()
        for name, value in (own | {"loss": loss.item()}).items():
            figures[name] = figures.get(name, 0.0) + micro.weight * value
    context.average_gradients(model)
    found = {name: one.grad.clone() for name, one in model.named_parameters()}
    return found | {name: torch.tensor(value) for name, value in context.sum_metrics(figures).items()}


def no_exchange(query: Any, key: Any, value: Any, tokens: int, group: Any) -> Any:
    """A process's own tokens, again and again, in the place of all tokens."""
    q_heads, kv_heads = query.shape[1] // group.size(), max(1, key.shape[1] // group.size())
    again = lambda states, heads: states[:, :heads].repeat(1, 1, group.size(), 1)[:, :, :tokens]  # noqa: E731
    return again(query, q_heads), again(key, kv_heads), again(value, kv_heads)


def broken(fault: str) -> None:
    """Breaks what a negative control breaks."""
    if fault == "no exchange":
        attention.over_heads = no_exchange
    if fault == "positions":
        PackedLayout.position_ids = lambda self: list(range(self.tokens))


def own_mean(parts: list[Any], context: Any) -> list[Any]:
    """Weights as of processes that each take the mean over their micro-batches."""
    return [replace(one, weight=1 / len(parts) / context.dp_size) for one in parts]


def main() -> None:
    sequence, kv_heads, fault, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    broken(fault)
    with join_processes(ParallelSettings(sequence_parallel_size=sequence)) as context:
        results = {}
        for name, objective, model, examples in cases(kv_heads):
            if context.sequence is not None:
                share_sequences(model, context.sequence)
            for budget in BUDGETS:
                parts = parts_of(objective, examples, budget, context)
                if fault == "own mean":
                    parts = own_mean(parts, context)
                found = gradients(objective, model, parts, context)
                results |= {f"{name} {budget} {key}": value for key, value in found.items()}
        if context.is_main_process:
            save_file(results, out)


if __name__ == "__main__":
    main()
