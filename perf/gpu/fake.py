"""What can be known of a step without a GPU: shapes, dtypes and the peak of its tensors, on tensors without data.

Builds a model of a real shape from fake tensors (torch's FakeTensorMode), runs one step of `step.py` on it with the
attention that a GPU takes, and follows every storage from its making to its end; `longrm plan` predicts the same. One
step takes half a minute and no memory to speak of.

torch without a GPU computes no gradients of fake CUDA tensors, so fake tensors of a CPU stand for those of the GPU,
and tensors on "meta" for what is offloaded to the CPU's memory. README.md tells what this cannot show.
"""

import argparse
import json
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from arms import Work, arms_of, step
from models import RANK, SHAPES, build
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config

from longrm.modeling.attention_cuda import TorchKernel
from longrm.modeling.attention_varlen import (
    Attended,
    AttentionSpec,
    SequenceBounds,
    plan_calls,
    varlen_attention,
)
from longrm.modeling.shapes import PINNED_PIECE
from longrm.training.plan.memory import PeakMemory
from longrm.training.plan.plan import plan_training
from longrm.training.settings import TrainingSettings

DEVICE, HOST = "cpu", "meta"
"""The devices of fake tensors that stand for a GPU's memory and for the CPU's."""

SWITCHES = ({}, {"tiled": True}, {"tiled": True, "offload": True})

CELLS = (Work("lora", 130_560, 512, 4), Work("lora", 129_024, 512, 4), Work("full", 32_768, 512, 2))
"""The largest cells of `step.py`, and the adapter step of 131,072 tokens in all."""


_NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
}
"""What a recipe's [plan.model] calls the sizes of a config."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes of all tensors at once, at most.

    Attributes:
        weights: Of the model, before the step.
        device: On the GPU, the model among them.
        host: In the CPU's memory.
        calls: What the attention's kernel was given: dtypes and shapes of queries and keys, and how often.
    """

    weights: int
    device: int
    host: int
    calls: dict[str, int]


class Storages(TorchDispatchMode):
    """Follows the storage of every tensor that an operation returns, for as long as it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self._known: Any = weakref.WeakSet()

    def add(self, tensor: Tensor) -> None:
        """Counts the storage of a tensor, once."""
        storage, device = tensor.untyped_storage(), tensor.device.type
        if storage in self._known:
            return
        self._known.add(storage)
        size = -(-storage.nbytes() // 512) * 512  # as the allocator of a GPU rounds
        self._change(device, size)
        weakref.finalize(storage, self._change, device, -size)

    def _change(self, device: str, size: int) -> None:
        self.held[device] += size
        self.peak[device] = max(self.peak[device], self.held[device])

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call is torch.ops.aten._local_scalar_dense.default:
            return 0.0  # a figure of the loss, which has no value here
        found = call(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if isinstance(one, Tensor):
                self.add(one)
        return found


class Kernel(TorchKernel):
    """The flash kernel of torch without its arithmetic: checks what the real one demands, and takes its workspace."""

    def __init__(self, calls: Counter[str]) -> None:
        super().__init__()
        self._calls = calls

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bounds: SequenceBounds, spec: AttentionSpec
    ) -> tuple[Tensor, Tensor]:
        """See `VarlenKernel`."""
        _demand([query, key, value], bounds)
        shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in (("q", query), ("k", key)))
        self._calls[f"{query.dtype}, {shapes}"] += 1
        output, lse = super().forward(query, key, value, bounds, spec)
        assert (lse.shape, lse.dtype) == ((query.shape[1], query.shape[0]), torch.float32)
        return output, lse

    def backward(
        self, grad: Tensor, attended: Attended, bounds: SequenceBounds, spec: AttentionSpec
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `VarlenKernel`."""
        query, key, value, output, _ = attended
        _demand([grad, query, key, value, output], bounds)
        tokens, heads, size = query.shape
        # FlashAttention 2: the queries' gradient is summed in fp32, and keys' and values' once a query head.
        summed = query.new_empty((tokens + 128 * (len(bounds.queries) - 1), heads, size), dtype=torch.float32)
        copies = [query.new_empty((len(key), heads, size)) for _ in range(2 * (key.shape[1] != heads))]
        found = super().backward(grad, attended, bounds, spec)
        del summed, copies
        return found


def _demand(states: Sequence[Tensor], bounds: SequenceBounds) -> None:
    assert {part.dtype for part in states} <= {torch.bfloat16, torch.float16}, "half precision, all alike"
    assert len({part.dtype for part in states}) == 1
    assert all(part.stride(-1) == 1 for part in states), "the elements of a head lie side by side"
    assert states[0].shape[1] % states[1].shape[1] == 0
    assert (bounds.queries.dtype, bounds.keys.dtype) == (torch.int32, torch.int32)
    assert bounds.queries.device == states[0].device


def peak_of(model: str, work: Work, *, tiled: bool = False, offload: bool = False) -> Peak:
    """The peak of one shared step, as `step.py` runs it on a GPU."""
    calls: Counter[str] = Counter()
    scorer = build(model, work.mode, HOST, layers=None, tiled=tiled, offload=offload)
    with as_on_a_gpu(calls), FakeTensorMode(), Storages() as storages:
        _fill(scorer)
        weights = storages.held[DEVICE]
        parts = arms_of(work, scorer.config.vocab_size, DEVICE)["shared"].parts
        step(scorer, parts, work.mode)
        return Peak(weights, storages.peak[DEVICE], storages.peak[HOST], dict(calls))


@contextmanager
def as_on_a_gpu(calls: Counter[str]) -> Iterator[None]:
    """Within the block, attention takes the path of a GPU, and what is offloaded goes to the stand-in of its host."""
    attend = partial(varlen_attention, Kernel(calls))

    def piece() -> Tensor:
        return torch.empty(PINNED_PIECE, dtype=torch.uint8, device=HOST)

    with (
        patch("longrm.modeling.attention.kernel_for", lambda query, key, spec: attend),
        patch("longrm.modeling.shared_prefix._at_ends", lambda scored, packed: False),
        patch("longrm.modeling.device_memory._pinned_piece", piece),
    ):
        plan_calls.cache_clear()
        try:
            yield
        finally:
            plan_calls.cache_clear()  # it holds fake tensors


def _fill(model: nn.Module) -> None:
    """Gives a model without weights fake ones."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            fake = torch.empty(weight.shape, dtype=weight.dtype, device=DEVICE)
            setattr(module, name, nn.Parameter(fake, requires_grad=weight.requires_grad))
        for name, held in module.named_buffers(recurse=False):
            module._buffers[name] = torch.empty(held.shape, dtype=held.dtype, device=DEVICE)


def planned(model: str, work: Work, *, tiled: bool = False, offload: bool = False) -> PeakMemory:
    """What `longrm plan` predicts of a training with such steps."""
    kind, sizes = SHAPES[model]

    adapters = {"lora": {"r": RANK, "lora_alpha": 2 * RANK}} if work.mode == "lora" else {}
    recipe = {
        "model": {"path": "random", "bf16": True} | adapters,
        "data": {"path": "none", "per_step": 1},
        "optimizer": {"max_steps": 1},
        "memory": {"gradient_checkpointing": True, "tiled_mlp": tiled, "activation_offloading": offload},
        "plan": {
            "model": {ours: sizes[theirs] for ours, theirs in _NAMES.items()}
            | {"qk_norm": kind is Qwen3Config},
            "rows": [
                {"rows": 1, "prompt": work.prompt, "responses": work.responses, "response": work.response}
            ],
        },
    }
    return plan_training(
        TrainingSettings.model_validate({"objective": "bradley_terry"} | recipe), "h200-141gb"
    ).memory


def line_of(model: str, work: Work, switches: dict[str, bool]) -> dict[str, Any]:
    """A cell: what was counted, and the plan over it; AdamW's moments, which no step here has, left out."""
    found, foreseen = peak_of(model, work, **switches), planned(model, work, **switches)
    return {
        "model": model,
        **asdict(work),
        "tiled": False,
        "offload": False,
        **switches,
        "peak_bytes": found.device,
        "host_bytes": found.host,
        "weights_bytes": found.weights,
        "planned_bytes": round(foreseen.total - foreseen.optimizer),
        "planned_over_peak": round((foreseen.total - foreseen.optimizer) / found.device, 3),
        "planned_host_bytes": round(foreseen.offloaded),
        "calls": found.calls,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--longest", type=int, help="instead: one LoRA step of so many tokens in all")
    parser.add_argument("--json", type=Path, help="write every line here as it is counted")
    options = parser.parse_args(arguments)
    works = [Work("lora", options.longest - 4 * 512, 512, 4)] if options.longest else CELLS
    print(
        "| model | mode | prompt / response | responses | peak, GiB | on the CPU, GiB | plan / peak |",
        flush=True,
    )
    print("|---|---|---|---|---|---|---|")
    if options.json:
        options.json.write_text("")
    for work, switches in ((work, switches) for work in works for switches in SWITCHES):
        line = line_of(options.model, work, dict(switches))
        mode = line["mode"] + ", tiles" * line["tiled"] + ", offload" * line["offload"]
        shape = f"{options.model} | {mode} | {work.prompt:,} / {work.response} | {work.responses}"
        gib = [f"{line[name] / 2**30:.1f}" for name in ("peak_bytes", "host_bytes")]
        print(f"| {shape} | {gib[0]} | {gib[1]} | {line['planned_over_peak']:.2f} |", flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
