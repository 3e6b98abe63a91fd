"""A plan of a training, put together: what it reads, computes and holds on a device, and what to switch on."""

from dataclasses import asdict, dataclass
from typing import Any

from longrm.runs.progress import Progress, no_progress
from longrm.training.planning.advice import Advice, advise
from longrm.training.planning.devices import DEVICES, GIB, UTILIZATION, Device
from longrm.training.planning.flops import Flops, forward_flops, training_flops
from longrm.training.planning.memory import Memory, memory_of
from longrm.training.planning.rows import Reading, reading_of
from longrm.training.planning.sharding import sharding_of, traffic
from longrm.training.planning.sizes import ModelSizes, sizes_of, targets_of
from longrm.training.preference import PreferenceTraining
from longrm.training.run import Recipe


@dataclass(frozen=True, slots=True)
class Plan:
    """What a training will need.

    Attributes:
        device: The name of the device.
        devices: How many there are.
        offers: What one offers.
        sizes: The model's.
        reading: What is read.
        forward: Operations of one forward over it.
        separate: The same if every response had a copy of its prompt.
        flops: Operations of the training.
        seconds: How long they take; None where the device's peak is not known.
        memory: At the peak, of one device.
        advice: What fits, and how.
        traffic: What the devices tell each other in a step, in words.
    """

    device: str
    devices: int
    offers: Device
    sizes: ModelSizes
    reading: Reading
    forward: Flops
    separate: Flops
    flops: Flops
    seconds: float | None
    memory: Memory
    advice: Advice
    traffic: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`; bytes, operations and seconds are plain numbers.

        `fits` is about the device's memory only: what is offloaded (`memory_bytes.offloaded`, for each device) has to
        fit the CPU's, of which nothing is known here.
        """
        reading, sizes = self.reading, self.sizes
        read = reading.prompt_tokens + reading.response_tokens
        return {
            "device": self.device,
            "devices": self.devices,
            "device_bytes": self.offers.memory,
            "fits": self.memory.total <= self.offers.memory,
            "parameters": sizes.parameters,
            "model_from": sizes.origin,
            "rows": reading.rows,
            "rows_from": reading.origin,
            "counts": dict(reading.counts),
            "steps": reading.steps,
            "tokens": {
                "prompt": reading.prompt_tokens,
                "response": reading.response_tokens,
                "read": read,
                "read_if_separate": reading.separate_tokens,
                "largest_micro_batch": reading.largest.tokens,
            },
            "flops": asdict(self.flops) | {"total": self.flops.total},
            "forward_flops": {"shared": self.forward.total, "separate": self.separate.total},
            "seconds": self.seconds,
            "utilization_assumed": UTILIZATION,
            "memory_bytes": asdict(self.memory) | {"total": self.memory.total},
            "longest_prompt_that_fits": self.advice.longest_prompt,
            "traffic": list(self.traffic),
            "switches": [asdict(switch) for switch in self.advice.switches],
        }


def plan(recipe: Recipe, device: str, *, devices: int = 1, progress: Progress = no_progress) -> Plan:
    """Plans a training.

    Args:
        recipe: What to train, on what.
        device: A name of `DEVICES`.
        devices: How many of them, laid out as the recipe's `parallel` says.
        progress: Called while rows are tokenized.

    Raises:
        ConfigError: Model or data are not at hand, and the recipe's `[plan]` does not state them; or the devices
            cannot be laid out so.
        ModelError: The architecture is not supported.
        DataError: The data cannot be read.
    """
    recipe.check_devices(devices)
    offers = DEVICES[device]
    sizes = sizes_of(recipe, recipe.trains)
    reading = reading_of(recipe, sizes.limit, progress)
    forward = forward_flops(sizes, reading)
    lora = recipe.model.lora
    flops = training_flops(
        forward,
        sizes,
        reading,
        adapters=sizes.adapter_parameters(lora.rank, targets_of(recipe, sizes)) if lora else 0,
        checkpointing=recipe.memory.checkpointing,
        reference=isinstance(recipe, PreferenceTraining) and recipe.loss.kind == "dpo",
        tiled=recipe.memory.tiled_mlp,
    )
    seconds = offers.seconds(flops.total, recipe.model.precision)
    return Plan(
        device=device,
        devices=devices,
        offers=offers,
        sizes=sizes,
        reading=reading,
        forward=forward,
        separate=forward_flops(sizes, reading, separate=True),
        flops=flops,
        seconds=None if seconds is None else seconds / devices,
        memory=memory_of(recipe, sizes, reading, offers.type, devices),
        advice=advise(recipe, sizes, reading, offers, devices),
        traffic=_traffic(recipe, sizes, reading, devices),
    )


def _traffic(recipe: Recipe, sizes: ModelSizes, reading: Reading, devices: int) -> tuple[str, ...]:
    grid = sharding_of(recipe.parallel, devices, sizes.heads)
    targets, lora = targets_of(recipe, sizes), recipe.model.lora
    adapters = sizes.layers * sizes.adapter_parameters(lora.rank, targets) if lora else 0
    half = 2 if recipe.model.precision == "bfloat16" else 4
    tokens = (reading.prompt_tokens + reading.response_tokens) / reading.steps
    lines = traffic(
        grid,
        sizes,
        trained=adapters or sizes.parameters,
        weights=float((half if lora else 4) * sizes.parameters),
        tokens=tokens,
        parts=max(1, round(tokens / grid.groups / recipe.memory.tokens_per_forward)),
        size=half,
        passes=2 + recipe.memory.checkpointing,
    )
    return tuple(lines)


def told(size: float) -> str:
    """Bytes for people, in GiB or MiB."""
    if size < GIB:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / GIB:.1f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"
