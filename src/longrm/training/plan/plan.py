"""A plan of a training: what it reads, computes and holds, and which settings make it fit a device."""

import logging
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from longrm.errors import LongRMError, TrainingError
from longrm.modeling.shapes import PackedLayout
from longrm.runs.progress import Progress, no_progress
from longrm.training.batches import ExampleSource
from longrm.training.objectives import OBJECTIVES
from longrm.training.plan import DEVICES, GIB, Device, ModelSizes, format_bytes
from longrm.training.plan.available import available_memory
from longrm.training.plan.memory import PER_MACHINE, PeakMemory, peak_memory
from longrm.training.plan.operations import (
    Flops,
    RolloutCost,
    forward_flops,
    rate_of,
    rollout_cost,
    training_flops,
    utilization_of,
)
from longrm.training.plan.traffic import busy_share, traffic_seconds
from longrm.training.plan.workload import Workload, sizes_of, trained_part, workload_of
from longrm.training.settings import LoraSettings, TrainingSettings

_logger = logging.getLogger(__name__)
_LONGEST_PROMPT = 2**24  # tokens, where the context window is unknown
_CPU_PROCESS = GIB / 2  # with torch and transformers imported: 0.46 and 0.56 GiB on two machines
_CUDA_PROCESS = 4 * GIB  # CPU memory of a process with CUDA and its libraries; assumed, not measured
_WORTHWHILE = 0.99  # a setting is suggested if it leaves at most this share of the memory
_COMFORTABLE = 0.9  # of the memory; small tensors take up to a third more than is counted (docs/training.md)
_CLEAR = 1.1  # times the memory that is available; no count was more than 1.2% above the measured peak


@dataclass(frozen=True, slots=True)
class Switch:
    """A setting that changes memory."""

    setting: str  # in the form that `--set` takes
    price: str  # what it costs or saves, in words
    total: float  # bytes at the peak with this and all settings before it


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What a training will need."""

    device: str
    devices: int
    offers: Device
    sizes: ModelSizes
    workload: Workload
    flops: Flops  # with those of the rollouts
    # Seconds by attention kernel, with those of the rollouts, of waiting and of traffic; empty if the device's peak is
    # unknown.
    seconds_with: Mapping[str, float]
    utilization: Mapping[str, float]  # the share of the peak that is assumed, by attention kernel
    busy: float  # the share of the time in which groups of devices do not wait for each other
    traffic: float  # seconds that moving data adds, with the first kernel
    rollouts: RolloutCost | None  # None without GRPO
    memory: PeakMemory  # the peak on one device
    switches: tuple[Switch, ...]  # settings to change, in order, until it fits or nothing more helps
    faster: Switch | None  # a setting that takes more memory and less time, if it fits
    # Tokens that fit, with the responses of the longest row; None if no prompt fits.
    longest_prompt: int | None
    host_memory: float | None  # bytes of CPU memory of every machine, if known
    checkpointing_by_default: bool  # the recipe leaves it open, and the training does not fit without it

    @property
    def seconds(self) -> float | None:
        """Seconds with the kernel of every installation; None if the device's peak is unknown."""
        return next(iter(self.seconds_with.values()), None)

    @property
    def on_machine(self) -> int:
        """Devices of every machine."""
        return min(self.devices, PER_MACHINE)

    @property
    def host(self) -> float:
        """Bytes of CPU memory that a machine with GPUs needs: for its processes, offloaded data and a checkpoint."""
        if self.offers.type == "cpu":
            return 0.0
        return self.on_machine * (_CUDA_PROCESS + self.memory.offloaded) + self.memory.checkpoint

    def as_dict(self) -> dict[str, Any]:
        """For `--json`; bytes, operations and seconds are plain numbers.

        `fits` concerns the device's memory; `host_fits` is None if the size of CPU memory is unknown.
        """
        workload, sizes = self.workload, self.sizes
        return {
            "device": self.device,
            "devices": self.devices,
            "device_bytes": self.offers.memory,
            "fits": self.memory.total <= self.offers.memory,
            "host_bytes": self.host,
            "host_fits": None if self.host_memory is None else self.host <= self.host_memory,
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
                "largest_micro_batch": workload.largest.tokens,
            },
            "flops": asdict(self.flops) | {"total": self.flops.total},
            "seconds": self.seconds,
            "seconds_with": dict(self.seconds_with),
            "traffic_seconds": self.traffic,
            "busy_share": self.busy,
            "rollouts": asdict(self.rollouts) if self.rollouts else None,
            "utilization_assumed": dict(self.utilization),
            "memory_bytes": asdict(self.memory) | {"total": self.memory.total},
            "longest_prompt_that_fits": self.longest_prompt,
            "model_reads": sizes.limit,
            "checkpointing_by_default": self.checkpointing_by_default,
            "switches": [asdict(switch) for switch in self.switches],
            "faster": None if self.faster is None else asdict(self.faster),
        }


def plan_training(
    settings: TrainingSettings,
    device: str,
    *,
    devices: int = 1,
    host_memory: float | None = None,
    progress: Progress = no_progress,
) -> TrainingPlan:
    """Plans a training on devices of one kind in `DEVICES`, with the layout in `[parallel]`.

    The memory of "cpu" is what is available on this machine. `host_memory` is the CPU memory of every machine in bytes,
    if it is known.
    """
    offers = DEVICES[device]
    if offers.type == "cpu":
        offers = replace(offers, memory=available_memory())
    sizes = sizes_of(settings, OBJECTIVES[settings.objective].trains)
    trained = trained_part(settings.model, sizes)
    workload = workload_of(settings, sizes.limit, progress)
    is_open = settings.memory.gradient_checkpointing is None
    process = _CPU_PROCESS if offers.type == "cpu" else 0.0
    setup = decide_checkpointing(Setup(settings, sizes, workload, offers, devices, process))
    settings = setup.settings
    by_default = is_open and settings.memory.gradient_checkpointing is True
    count = partial(
        training_flops,
        forward_flops(sizes, workload),
        trained,
        workload,
        checkpointing=bool(settings.memory.gradient_checkpointing),
        reference=settings.loss.loss.needs_reference,
        tiled=settings.memory.tiled_mlp,
    )
    of_updates = count(keep_attention=settings.memory.keep_attention)
    saved = 1 - count(keep_attention=True).total / of_updates.total
    memory = setup.peak()
    busy = busy_share(settings, trained, workload, devices // settings.parallel.sequence_parallel_size)
    added, during = traffic_seconds(settings, trained, workload, offers, devices)
    utilization = utilization_of(settings, device)
    costs = {}  # of rollouts, by attention kernel
    if settings.rollouts is not None:
        costs = {
            kernel: rollout_cost(settings, sizes, workload, offers, devices, share)
            for kernel, share in utilization.items()
        }
    rollouts = next(iter(costs.values()), None)
    traffic = 0.0
    seconds_with: dict[str, float] = {}
    for kernel, share in utilization.items():
        rate, sampling = rate_of(settings, offers, share), costs[kernel].seconds if costs else 0.0
        if rate is None or sampling is None:
            continue
        computing = of_updates.total / rate / devices / busy
        moving = added + max(0.0, during - computing)
        if not seconds_with:
            traffic = moving
        seconds_with[kernel] = computing + moving + sampling
    return TrainingPlan(
        device=device,
        devices=devices,
        offers=offers,
        sizes=sizes,
        workload=workload,
        flops=of_updates + rollouts.flops if rollouts else of_updates,
        seconds_with=seconds_with,
        utilization=utilization,
        busy=busy,
        traffic=traffic,
        rollouts=rollouts,
        memory=memory,
        switches=tuple(suggest(setup)),
        faster=_smaller_batches(setup) if by_default else _faster(setup, saved),
        longest_prompt=longest_prompt(setup),
        host_memory=host_memory,
        checkpointing_by_default=by_default,
    )


# --- What makes it fit -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """A training on devices of one kind: all that its memory depends on."""

    settings: TrainingSettings
    sizes: ModelSizes
    workload: Workload
    device: Device
    devices: int = 1
    process: float = 0.0  # bytes that the process will take on the device; 0 for one that runs and has them

    def peak(self) -> PeakMemory:
        """The peak on one device."""
        peak = peak_memory(self.settings, self.sizes, self.workload, self.device.type, self.devices)
        return replace(peak, process=self.process)

    def changed(self, group: str, **update: Any) -> "Setup":
        """The same with other settings of a group."""
        changed = getattr(self.settings, group).model_copy(update=update)
        return replace(self, settings=self.settings.model_copy(update={group: changed}))


def decide_checkpointing(setup: Setup) -> Setup:
    """Decides on gradient checkpointing where the settings do not: it is on if the training does not fit without it."""
    if setup.settings.memory.gradient_checkpointing is not None:
        return setup
    needed = setup.peak().total > _COMFORTABLE * setup.device.memory
    return setup.changed("memory", gradient_checkpointing=needed)


def fit_memory(
    settings: TrainingSettings, source: ExampleSource, device: Device, devices: int
) -> TrainingSettings:
    """The settings of a training that starts now on such devices, with gradient checkpointing decided.

    `device.memory` is what is available. A model that cannot be planned is not checked. A GPU reports itself that its
    memory runs out; on a CPU the kernel kills the process without a message.

    Raises:
        TrainingError: A step clearly needs more CPU memory, and `memory.check` is true.
    """
    checks = device.type == "cpu" and settings.memory.check
    if not checks and settings.memory.gradient_checkpointing is not None:
        return settings
    try:
        sizes = sizes_of(settings, OBJECTIVES[settings.objective].trains)
        workload = workload_of(settings, sizes.limit, no_progress, source)
        setup = Setup(settings, sizes, workload, device, devices)
        fitted = decide_checkpointing(setup)
        before, needed = setup.peak().total, fitted.peak().total
    except LongRMError as error:
        _logger.info("memory is not checked before the first step: %s", error)
        return settings
    fitted = replace(fitted, device=replace(device, memory=int(_COMFORTABLE * device.memory)))
    available = f"and {format_bytes(device.memory)} are available"
    if needed < before:
        reason = f"a step needs {format_bytes(before)} without it, {available}"
        _logger.info("gradient checkpointing is on: %s", reason)
        if (faster := _smaller_batches(fitted)) is not None:
            _logger.info("  faster: --set %s (%s)", faster.setting, format_bytes(faster.total))
    if checks and needed > fitted.device.memory:
        switches = suggest(fitted)
        sets = " ".join(f"--set {switch.setting}" for switch in switches)
        advice = (
            f"{sets} reduces it to {format_bytes(switches[-1].total)}" if sets else "shorter rows reduce it"
        )
        needs = f"a step needs about {format_bytes(needed)} of memory, {available}"
        if needed > _CLEAR * device.memory:
            raise TrainingError(f"{needs}: {advice}; --set memory.check=false trains anyway")
        _logger.warning("%s: if the process is killed, %s", needs, advice)
    return fitted.settings


def longest_prompt(setup: Setup) -> int | None:
    """The longest prompt that fits, by bisection up to the context window: memory grows with the prompt."""
    row, limit = setup.workload.longest_row, setup.sizes.limit
    longest = _LONGEST_PROMPT if limit is None else max(0, limit - (row.longest - row.prefix))

    def exceeds(prompt: int) -> bool:
        alone = replace(setup.workload, largest=PackedLayout((replace(row, prefix=prompt),)))
        return replace(setup, workload=alone).peak().total > setup.device.memory

    return bisect_left(range(1, longest + 1), True, key=exceeds) or None


def suggest(setup: Setup) -> list[Switch]:
    """Settings that save memory, the cheapest first, until the training fits."""
    switches: list[Switch] = []
    total = setup.peak().total
    for group, name, value, price in _savings(setup):
        if total <= setup.device.memory:
            break
        if name == "offload" and not setup.settings.parallel.shard:
            continue  # only shards can be offloaded
        changed, read = setup.changed(group, **{name: value}), setup.workload
        if len(read.largest.trees) > 1 and read.largest.tokens > (
            changed.settings.memory.max_tokens_per_microbatch
        ):
            # Under a smaller budget the largest micro-batch is the longest row alone.
            alone = replace(read, largest=PackedLayout((read.longest_row,)), several=True)
            changed = replace(changed, workload=alone)
        less = changed.peak().total
        if less <= _WORTHWHILE * total:  # so a value that is in use, or a better one, is not replaced
            key = "lora.r" if name == "lora" else name
            shown = value.r if name == "lora" else str(value).lower()
            switches.append(Switch(f"{group}.{key}={shown}", price, less))
            setup, total = changed, less
    return switches


def _faster(setup: Setup, saved: float) -> Switch | None:
    """Keeping the outputs of attention instead of recomputing them, if they fit; `saved` is the share of operations."""
    if saved < 1 - _WORTHWHILE or not setup.settings.memory.gradient_checkpointing:
        return None
    total = setup.changed("memory", keep_attention=True).peak().total
    if total > setup.device.memory:
        return None
    return Switch("memory.keep_attention=true", f"{saved:.0%} fewer operations", total)


def _smaller_batches(setup: Setup) -> Switch | None:
    """Smaller micro-batches, if they make gradient checkpointing unnecessary."""
    switches = suggest(setup.changed("memory", gradient_checkpointing=False))
    if len(switches) != 1 or not switches[0].setting.startswith("memory.max_tokens_per_microbatch"):
        return None
    if switches[0].total > setup.device.memory:
        return None
    return replace(switches[0], price="no gradient checkpointing")


def _savings(setup: Setup) -> list[tuple[str, str, Any, str]]:
    """Ways to save memory that are possible here, the cheapest first: group, setting, value and price."""
    settings, devices = setup.settings, setup.devices
    budget = min(setup.workload.longest_row.tokens, settings.memory.max_tokens_per_microbatch)
    savings: list[tuple[str, str, Any, str]] = [
        ("memory", "max_tokens_per_microbatch", budget, "hardly any time"),
        ("memory", "gradient_checkpointing", True, "a third more time"),
        ("memory", "tiled_mlp", True, "feed-forward layers are computed once more"),
    ]
    if devices > 1 and settings.rollouts is None:  # sampling needs the whole model on every device
        heads = setup.sizes.heads
        most = max(size for size in range(1, devices + 1) if devices % size == 0 and heads % size == 0)
        savings += [
            ("parallel", "shard", True, "weights gathered layer by layer"),
            ("parallel", "reshard_after_forward", True, "weights gathered twice"),
            ("parallel", "sequence_parallel_size", most, "traffic in every layer"),
        ]
    if setup.device.type != "cpu":
        savings += [
            ("model", "bf16", True, "rounding in matrix products"),
            ("memory", "activation_offloading", True, "traffic to CPU memory"),
            ("parallel", "offload", True, "traffic to CPU memory, where weights are updated"),
        ]
    # Adapters change a pretrained model; not a new one, nor one with rescaled positions.
    if settings.model.path is not None and settings.model.rope_theta is None and settings.model.lora is None:
        savings.append(("model", "lora", LoraSettings(), "only adapters are trained"))
    return savings
