"""A plan of a training: what it reads, computes and holds, and which settings make it fit a device.

A multiplication and an addition count as two floating-point operations.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from longrm.modeling.shapes import LOGITS_AT_ONCE, PackedLayout, TreeShape
from longrm.runs.progress import Progress, no_progress
from longrm.training.objectives import OBJECTIVES
from longrm.training.plan import DEVICES, UTILIZATION, Device, ModelSizes
from longrm.training.plan.memory import PeakMemory, peak_memory
from longrm.training.plan.workload import Workload, sizes_of, workload_of
from longrm.training.settings import LoraSettings, TrainingSettings

_FP32 = 4
_LONGEST_PROMPT = 2**24  # tokens, where the context window is unknown
_WORTHWHILE = 0.99  # a setting is suggested if it leaves at most this share of the memory
_HEAP_BYTES = 4 * 2**20  # `return_freed_memory` sets it; importing that module would import torch


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations by kind.

    Attributes:
        linear: Products with the matrices of the layers.
        attention: Scores and weighted values, of the pairs of tokens that see each other.
        head: Products with the head.
    """

    linear: float
    attention: float
    head: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.linear + self.attention + self.head


@dataclass(frozen=True, slots=True)
class Switch:
    """A setting that saves memory.

    Attributes:
        setting: In the form that `--set` takes.
        price: What it costs.
        total: Bytes at the peak with this and all settings before it.
    """

    setting: str
    price: str
    total: float


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What a training will need.

    Attributes:
        offers: The device.
        forward: Operations of one forward pass over the data.
        separate: The same if every response had a copy of its prompt.
        flops: Operations of the training.
        seconds: How long they take; None if the device's peak is unknown.
        memory: The peak on one device.
        switches: Settings to change, in order, until it fits or nothing more helps; none if it fits as it is.
        longest_prompt: Tokens of the longest prompt that fits with these settings and the context window, with the
            responses of the longest row; None if no prompt fits.
    """

    device: str
    devices: int
    offers: Device
    sizes: ModelSizes
    workload: Workload
    forward: Flops
    separate: Flops
    flops: Flops
    seconds: float | None
    memory: PeakMemory
    switches: tuple[Switch, ...]
    longest_prompt: int | None

    @property
    def small_tensors(self) -> bool:
        """Whether the widest tensors of a layer, in fp32, stay in the C library's heap when they are freed on a CPU."""
        widest = _FP32 * self.workload.largest.tokens * self.sizes.intermediate
        return self.offers.type == "cpu" and widest < _HEAP_BYTES

    def as_dict(self) -> dict[str, Any]:
        """For `--json`; bytes, operations and seconds are plain numbers.

        `fits` concerns the device's memory only: what is offloaded (`memory_bytes.offloaded`, for each device) has to
        fit into CPU memory, whose size is unknown here.
        """
        workload, sizes = self.workload, self.sizes
        return {
            "device": self.device,
            "devices": self.devices,
            "device_bytes": self.offers.memory,
            "fits": self.memory.total <= self.offers.memory,
            "parameters": sizes.parameters,
            "model_from": sizes.origin,
            "rows": workload.rows,
            "rows_from": workload.origin,
            "counts": dict(workload.counts),
            "steps": workload.steps,
            "tokens": {
                "prompt": workload.prompt_tokens,
                "response": workload.response_tokens,
                "read": workload.tokens,
                "read_if_separate": workload.separate_tokens,
                "largest_micro_batch": workload.largest.tokens,
            },
            "flops": asdict(self.flops) | {"total": self.flops.total},
            "forward_flops": {"shared": self.forward.total, "separate": self.separate.total},
            "seconds": self.seconds,
            "utilization_assumed": UTILIZATION,
            "memory_bytes": asdict(self.memory) | {"total": self.memory.total},
            "longest_prompt_that_fits": self.longest_prompt,
            "model_reads": self.sizes.limit,
            "switches": [asdict(switch) for switch in self.switches],
        }


def plan_training(
    settings: TrainingSettings, device: str, *, devices: int = 1, progress: Progress = no_progress
) -> TrainingPlan:
    """Plans a training on so many devices of a kind that `DEVICES` names, laid out as `[parallel]` says.

    Raises:
        ConfigError: Model or data are not on this machine, and the recipe's `[plan]` does not state them; or the
            devices cannot be laid out so.
        ModelError: The architecture is not supported.
        DataError: The data cannot be read.
    """
    settings.check_devices(devices)
    offers = DEVICES[device]
    sizes = sizes_of(settings, OBJECTIVES[settings.objective].trains)
    workload = workload_of(settings, sizes.limit, progress)
    forward = forward_flops(sizes, workload)
    lora = settings.model.lora
    flops = training_flops(
        forward,
        sizes,
        workload,
        adapters=sizes.adapter_parameters(lora.rank) if lora else 0,
        checkpointing=settings.memory.gradient_checkpointing,
        reference=settings.loss.loss.needs_reference,
        tiled=settings.memory.tiled_mlp,
    )
    seconds = offers.seconds(flops.total, settings.model.precision)
    return TrainingPlan(
        device=device,
        devices=devices,
        offers=offers,
        sizes=sizes,
        workload=workload,
        forward=forward,
        separate=forward_flops(sizes, workload, separate=True),
        flops=flops,
        seconds=None if seconds is None else seconds / devices,
        memory=peak_memory(settings, sizes, workload, offers.type, devices),
        switches=tuple(suggest(settings, sizes, workload, offers, devices)),
        longest_prompt=longest_prompt(settings, sizes, workload, offers, devices),
    )


# --- Operations ------------------------------------------------------------------------------------------------------


def attended_pairs(shape: TreeShape) -> int:
    """Pairs of a token and one that it sees, itself included, in one tree."""
    branches = sum(shape.prefix * length + length * (length + 1) // 2 for length in shape.branches)
    return shape.prefix * (shape.prefix + 1) // 2 + branches


def separate_attended_pairs(shape: TreeShape) -> int:
    """The same if every branch had a copy of the prefix."""
    return sum((shape.prefix + length) * (shape.prefix + length + 1) // 2 for length in shape.branches)


def forward_flops(sizes: ModelSizes, workload: Workload, *, separate: bool = False) -> Flops:
    """Operations of one forward pass over everything that a training reads."""
    tokens = workload.separate_tokens if separate else workload.tokens
    count_pairs = separate_attended_pairs if separate else attended_pairs
    pairs = sum(count * count_pairs(shape) for shape, count in workload.trees.items())
    matrices = sum(width * output for width, output in sizes.matrices.values())
    if sizes.kind == "scorer":
        head = (
            2.0 * sizes.hidden * sum(count * len(shape.branches) for shape, count in workload.trees.items())
        )
    else:
        head = 2.0 * sizes.hidden * sizes.vocabulary * workload.response_tokens
    return Flops(
        linear=2.0 * sizes.layers * matrices * tokens,
        attention=4.0
        * sizes.layers
        * sizes.queries
        * pairs,  # two products per pair: scores, and weighted values
        head=head,
    )


def training_flops(
    forward: Flops,
    sizes: ModelSizes,
    workload: Workload,
    *,
    adapters: int,
    checkpointing: bool,
    reference: bool,
    tiled: bool = False,
) -> Flops:
    """Operations of a training: forward, backward, what is recomputed, and a reference model's forward pass.

    A backward pass takes as much as a forward pass for the gradients of inputs, and as much again for those of weights;
    frozen weights have none. A checkpointed layer is recomputed up to its last product, of which nothing is kept except
    by adapters.

    Args:
        forward: Of one forward pass over everything that is read.
        sizes: The model's.
        workload: What is read.
        adapters: Parameters of the adapters of one layer; 0 trains all weights.
        checkpointing: Every layer is recomputed in the backward pass.
        reference: A reference model reads one epoch.
        tiled: Feed-forward layers are computed once more, tile by tile.
    """
    again, reference_epochs = int(checkpointing), int(reference) / workload.epochs
    targets = workload.targets if sizes.kind == "language_model" else 0
    chunked = int(targets * sizes.vocabulary > LOGITS_AT_ONCE)  # chunks of logits are recomputed
    weights = int(adapters == 0)
    per_token = 2.0 * sizes.layers * workload.tokens
    width, output = sizes.matrices["down_proj"]
    not_recomputed = per_token * width * output * weights * (again or tiled)
    return Flops(
        linear=forward.linear * (2 + weights + again + reference_epochs)
        + per_token * 3 * width * output * tiled
        - not_recomputed
        + per_token * adapters * (3 + again),
        attention=forward.attention * (3 + again + reference_epochs),
        head=forward.head * (2 + weights + chunked + reference_epochs),
    )


# --- What makes it fit -----------------------------------------------------------------------------------------------


def longest_prompt(
    settings: TrainingSettings, sizes: ModelSizes, workload: Workload, device: Device, devices: int = 1
) -> int | None:
    """The longest prompt that fits, by bisection up to the context window: memory grows with the prompt."""
    branches = workload.longest_row.branches
    high = _LONGEST_PROMPT if sizes.limit is None else max(0, sizes.limit - max(branches))
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        alone = replace(workload, largest=PackedLayout((TreeShape(middle, branches),)))
        fits = peak_memory(settings, sizes, alone, device.type, devices).total <= device.memory
        low, high = (middle, high) if fits else (low, middle - 1)
    return low or None


def suggest(
    settings: TrainingSettings, sizes: ModelSizes, workload: Workload, device: Device, devices: int = 1
) -> list[Switch]:
    """Settings that save memory, the cheapest first, until the training fits."""
    switches: list[Switch] = []
    total = peak_memory(settings, sizes, workload, device.type, devices).total
    for option in _options(devices, sizes):
        if total <= device.memory:
            break
        if option.gpu_only and device.type == "cpu":
            continue
        values = option.values(settings, workload)
        changed = _with(settings, option.group, values)
        if changed.deadlocks(devices):
            continue
        read = workload
        if len(workload.largest.trees) > 1 and workload.largest.tokens > changed.memory.tokens_per_forward:
            # Under a smaller budget the largest micro-batch is the longest row alone.
            read = replace(workload, largest=PackedLayout((workload.longest_row,)), several=True)
        less = peak_memory(changed, sizes, read, device.type, devices).total
        if less <= _WORTHWHILE * total:
            ((name, value),) = values.items()
            setting = (
                "model.lora.rank=16" if name == "lora" else f"{option.group}.{name}={str(value).lower()}"
            )
            switches.append(Switch(setting, option.price, less))
            settings, workload, total = changed, read, less
    return switches


@dataclass(frozen=True, slots=True)
class _Option:
    """A way to save memory: the new value of one setting of a group, none if it is not possible."""

    group: str
    values: Callable[[TrainingSettings, Workload], dict[str, Any]]
    price: str
    gpu_only: bool = False


def _with(settings: TrainingSettings, group: str, values: dict[str, Any]) -> TrainingSettings:
    changed = getattr(settings, group).model_copy(update=values)
    return settings.model_copy(update={group: changed})


def _options(devices: int, sizes: ModelSizes) -> list[_Option]:
    several: list[_Option] = []
    if devices > 1:
        most = max(size for size in range(1, devices + 1) if devices % size == 0 and sizes.heads % size == 0)
        several = [
            _Option("parallel", lambda own, _: {"zero": max(2, own.parallel.zero)}, "no more traffic"),
            _Option("parallel", lambda own, _: {"sequence": most}, "traffic in every layer"),
            _Option("parallel", lambda own, _: {"zero": 3}, "weights gathered layer by layer"),
        ]

    def fewer_tokens(own: TrainingSettings, workload: Workload) -> dict[str, Any]:
        return {"tokens_per_forward": min(workload.longest_row.tokens, own.memory.tokens_per_forward)}

    def optimizer_on_cpu(own: TrainingSettings, _: Workload) -> dict[str, Any]:
        possible = own.parallel.zero and own.parallel.offload == "none"
        return {"offload": "optimizer" if possible else own.parallel.offload}

    def adapters(own: TrainingSettings, _: Workload) -> dict[str, Any]:
        # Adapters change a pretrained model; not a new one, nor one with rescaled positions.
        possible = own.model.path is not None and own.model.rope_theta is None
        return {"lora": own.model.lora or (LoraSettings() if possible else None)}

    return [
        _Option("memory", fewer_tokens, "hardly any time"),
        _Option("memory", lambda *_: {"gradient_checkpointing": True}, "a third more time"),
        _Option("memory", lambda *_: {"tiled_mlp": True}, "feed-forward layers are computed once more"),
        *several,
        _Option("model", lambda *_: {"precision": "bfloat16"}, "rounding in matrix products", gpu_only=True),
        _Option("memory", lambda *_: {"activation_offloading": True}, "traffic to CPU memory", gpu_only=True),
        _Option("parallel", optimizer_on_cpu, "the CPU updates the weights", gpu_only=True),
        _Option("model", adapters, "only adapters are trained"),
    ]
