"""A plan of a training, put together: what it reads, computes and holds on a device, and what to switch on."""

from dataclasses import asdict, dataclass
from typing import Any

from longrm.runs.progress import Progress, silent
from longrm.training.planning.advice import Advice, advise
from longrm.training.planning.devices import DEVICES, GIB, UTILIZATION, Device
from longrm.training.planning.flops import Flops, forward_flops, training_flops
from longrm.training.planning.memory import Memory, memory_of
from longrm.training.planning.rows import Reading, reading_of
from longrm.training.planning.sizes import ModelSizes, sizes_of, targets_of
from longrm.training.preference import PreferenceTraining
from longrm.training.run import Recipe
from longrm.training.sft import SFTTraining
from longrm.training.start import Kind


@dataclass(frozen=True, slots=True)
class Plan:
    """What a training will need.

    Attributes:
        device: The name of the device.
        offers: What it offers.
        sizes: The model's.
        reading: What is read.
        forward: Operations of one forward over it.
        separate: The same if every response had a copy of its prompt.
        flops: Operations of the training.
        seconds: How long they take; None where the device's peak is not known.
        memory: At the peak.
        advice: What fits, and how.
    """

    device: str
    offers: Device
    sizes: ModelSizes
    reading: Reading
    forward: Flops
    separate: Flops
    flops: Flops
    seconds: float | None
    memory: Memory
    advice: Advice

    def as_dict(self) -> dict[str, Any]:
        """For `--json`; bytes, operations and seconds are plain numbers."""
        reading, sizes = self.reading, self.sizes
        read = reading.prompt_tokens + reading.response_tokens
        return {
            "device": self.device,
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
            "switches": [asdict(switch) for switch in self.advice.switches],
        }


def plan(recipe: Recipe, device: str, *, progress: Progress = silent) -> Plan:
    """Plans a training on one device.

    Args:
        recipe: What to train, on what.
        device: A name of `DEVICES`.
        progress: Called while rows are tokenized.

    Raises:
        ConfigError: Model or data are not at hand, and the recipe's `[plan]` does not state them.
        ModelError: The architecture is not supported.
        DataError: The data cannot be read.
    """
    offers = DEVICES[device]
    kind: Kind = "language_model" if isinstance(recipe, SFTTraining | PreferenceTraining) else "scorer"
    sizes = sizes_of(recipe, kind)
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
    )
    return Plan(
        device=device,
        offers=offers,
        sizes=sizes,
        reading=reading,
        forward=forward,
        separate=forward_flops(sizes, reading, separate=True),
        flops=flops,
        seconds=offers.seconds(flops.total, recipe.model.precision),
        memory=memory_of(recipe, sizes, reading, offers.type),
        advice=advise(recipe, sizes, reading, offers),
    )


def told(size: float) -> str:
    """Bytes for people, in GiB or MiB."""
    if size < GIB:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / GIB:.1f} GiB" if size < 100 * GIB else f"{size / GIB:.0f} GiB"
