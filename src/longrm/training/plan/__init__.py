"""What a training will need before it starts: tokens, steps, FLOPs, memory. This file has the plain types of a plan."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

GIB = 2**30

UTILIZATION = 0.4
"""The share of a device's peaks, of operations and of memory bandwidth, that is assumed to be reached where
`utilization.toml` has none; not measured."""

Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a decoder with gated feed-forward layers, such as Llama, Mistral and Qwen.

    A recipe may state them in `[plan.model]`, for a model whose config is not on this machine.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    layers: Count
    hidden: Count
    heads: Count  # of queries
    kv_heads: Count
    head_dim: Count
    intermediate: Count  # the size of the feed-forward layer
    vocabulary: Count  # rows of the embedding
    tied: bool = False  # the output embedding of a language model is its input embedding
    qk_norm: bool = False  # queries and keys are normalized
    norms: int = 2  # of a layer, without those of queries and keys
    biases: int = 0  # parameters of a layer other than its matrices and norms
    window: int | None = None  # tokens that a query sees in layers with a window
    window_layers: int = 0
    limit: int | None = None  # the context window in tokens, if known
    kind: Literal["scorer", "language_model"] = "language_model"
    origin: str = "[plan.model], because the model is not on this machine"

    @property
    def queries(self) -> int:
        """The width of the queries of all heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """The width of the keys of all heads; also that of the values."""
        return self.kv_heads * self.head_dim

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The linear modules of a layer: the widths of input and output."""
        c, i = self.hidden, self.intermediate
        return {
            "q_proj": (c, self.queries),
            "k_proj": (c, self.keys),
            "v_proj": (c, self.keys),
            "o_proj": (self.queries, c),
            "gate_proj": (c, i),
            "up_proj": (c, i),
            "down_proj": (i, c),
        }

    @property
    def matrix_parameters(self) -> int:
        """Parameters of the linear modules of one layer."""
        return sum(width * output for width, output in self.matrices.values())

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        norms = self.norms * self.hidden + 2 * self.head_dim * self.qk_norm
        return self.matrix_parameters + norms + self.biases

    @property
    def head_parameters(self) -> int:
        """Parameters of the head that it shares with nothing else."""
        if self.kind == "scorer":
            return self.hidden
        return 0 if self.tied else self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        body = self.layers * self.layer_parameters + self.hidden
        return self.vocabulary * self.hidden + body + self.head_parameters

    def adapter_parameters(self, rank: int, target_modules: str | Sequence[str] = "all-linear") -> int:
        """Parameters of the LoRA adapters of one layer, one for every matrix."""
        return sum(
            rank * (width + output)
            for name, (width, output) in self.matrices.items()
            if target_modules == "all-linear" or name in target_modules
        )


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """Rows of one shape, in tokens, for data that is not on this machine."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    rows: Count
    prompt: Count
    response: Count | None = None  # omitted for GRPO, whose judgments are those of `rollouts`
    responses: Count = 1


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The table `[plan]` of a recipe: what a plan assumes about a model or data that is not on this machine."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: ModelSizes | None = None
    rows: tuple[PlannedRows, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """A device, as the vendor's data sheet describes it."""

    # Bytes. A data sheet's gigabytes are read as 10^9 bytes; the rest is left for the driver and for fragmentation.
    memory: int
    bfloat16: float | None  # peak dense operations per second with bf16 products and fp32 sums, if known
    float32: float | None  # the same in fp32, without tensor cores
    bandwidth: float | None = None  # bytes per second of its memory, if known
    # Bytes per second in one direction: to CPU memory (PCIe), to a device of the same machine, and of another machine
    # (at 200 Gbit/s for each device, on Hopper and later 400).
    to_host: float | None = None
    to_neighbor: float | None = None
    to_machines: float | None = None
    type: Literal["cpu", "cuda"] = "cuda"


DEVICES = {
    "cpu": Device(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), None, None, type="cpu"),
    # memory, bfloat16, float32, bandwidth, to_host, to_neighbor, to_machines
    "rtx3090": Device(24 * 10**9, 71e12, 35.6e12, 936e9, 25e9, 25e9, 25e9),
    "rtx4090": Device(24 * 10**9, 165.2e12, 82.6e12, 1008e9, 25e9, 25e9, 25e9),
    "l4": Device(24 * 10**9, 121e12, 30.3e12, 300e9, 25e9, 25e9, 25e9),
    "l40s": Device(48 * 10**9, 362e12, 91.6e12, 864e9, 25e9, 25e9, 25e9),
    "a100-40gb": Device(40 * 10**9, 312e12, 19.5e12, 1555e9, 25e9, 300e9, 25e9),
    "a100-80gb": Device(80 * 10**9, 312e12, 19.5e12, 2039e9, 25e9, 300e9, 25e9),
    "h100-80gb": Device(80 * 10**9, 989e12, 67e12, 3350e9, 50e9, 450e9, 50e9),
    "h200-141gb": Device(141 * 10**9, 989e12, 67e12, 4800e9, 50e9, 450e9, 50e9),
    "b200-180gb": Device(180 * 10**9, 2250e12, 75e12, 8000e9, 50e9, 900e9, 50e9),
}
"""Devices by name; "cpu" is this machine."""


def format_bytes(size: float) -> str:
    """Formats bytes in GiB or MiB."""
    if size < GIB:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / GIB:.1f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"
