"""What to switch on so that a training fits a device: what costs least comes first."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from longrm.modeling.shared_prefix import Layout, TreeShape
from longrm.training.planning.devices import Device
from longrm.training.planning.memory import memory_of
from longrm.training.planning.rows import Reading
from longrm.training.planning.sizes import ModelSizes
from longrm.training.run import Recipe
from longrm.training.settings import Lora

_LONGEST = 2**24
_WORTH = 0.99
"""A switch is worth its price if it leaves at most this share of the memory."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A setting that saves memory.

    Attributes:
        setting: As `--set` takes it.
        price: What it costs.
        total: Bytes at the peak with this and all switches before it.
    """

    setting: str
    price: str
    total: float


@dataclass(frozen=True, slots=True)
class Advice:
    """What fits, and how.

    Attributes:
        switches: What to switch on, in order, until it fits or nothing more helps; none where it fits as it is.
        longest_prompt: Tokens of the longest prompt that fits as the recipe is, with the responses of the longest
            row; None where not even the model does.
    """

    switches: tuple[Switch, ...]
    longest_prompt: int | None


_Change = Callable[[Recipe, Reading], Recipe]


def advise(recipe: Recipe, sizes: ModelSizes, reading: Reading, device: Device, devices: int = 1) -> Advice:
    """Finds the switches, one after the other."""
    switches: list[Switch] = []
    longest = longest_prompt(recipe, sizes, reading, device, devices)
    total = memory_of(recipe, sizes, reading, device.type, devices).total
    for on_gpu_only, price, change in (*_BEFORE, *_over(devices, sizes), *_AFTER):
        if total <= device.memory:
            break
        if on_gpu_only and device.type == "cpu":
            continue
        changed = change(recipe, reading)
        if changed.parts_ways(devices):
            continue
        read = _reread(changed, reading)
        less = memory_of(changed, sizes, read, device.type, devices).total
        if less <= _WORTH * total:
            switches.append(Switch(_difference(recipe, changed), price, less))
            recipe, reading, total = changed, read, less
    return Advice(tuple(switches), longest)


def longest_prompt(
    recipe: Recipe, sizes: ModelSizes, reading: Reading, device: Device, devices: int = 1
) -> int | None:
    """By bisection: memory grows with the prompt."""
    branches = max(reading.largest.trees, key=lambda shape: shape.tokens).branches

    def fits(prompt: int) -> bool:
        alone = replace(reading, largest=Layout((TreeShape(prompt, branches),)))
        return memory_of(recipe, sizes, alone, device.type, devices).total <= device.memory

    low, high = 0, _LONGEST
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low or None


def _reread(recipe: Recipe, reading: Reading) -> Reading:
    """The largest micro-batch under a smaller budget: the longest row alone."""
    budget = recipe.memory.tokens_per_forward
    if reading.largest.tokens <= budget or len(reading.largest.trees) == 1:
        return reading
    longest = max(reading.largest.trees, key=lambda shape: shape.tokens)
    return replace(reading, largest=Layout((longest,)), several=True)


def _fewer_tokens(recipe: Recipe, reading: Reading) -> Recipe:
    longest = max(shape.tokens for shape in reading.largest.trees)
    least = min(longest, recipe.memory.tokens_per_forward)
    return _with(recipe, "memory", tokens_per_forward=least)


def _with(recipe: Recipe, group: str, **values: Any) -> Recipe:
    changed = getattr(recipe, group).model_copy(update=values)
    return recipe.model_copy(update={group: changed})


def _adapted(recipe: Recipe) -> Recipe:
    """With adapters, which change a model that is there as it is; not a new one, nor one with other positions."""
    if recipe.model.path is None or recipe.model.rope_theta is not None:
        return recipe
    return _with(recipe, "model", lora=recipe.model.lora or Lora())


def _difference(recipe: Recipe, changed: Recipe) -> str:
    if changed.model.lora != recipe.model.lora:
        return "model.lora.rank=16"
    if changed.model.precision != recipe.model.precision:
        return "model.precision=bfloat16"
    groups = ("memory", "parallel", "optimizer")
    (group,) = (name for name in groups if getattr(changed, name) != getattr(recipe, name))
    before, after = getattr(recipe, group).to_dict(), getattr(changed, group).to_dict()
    ((name, value),) = ((name, value) for name, value in after.items() if before[name] != value)
    return f"{group}.{name}={str(value).lower()}"


_Switches = tuple[tuple[bool, str, _Change], ...]


def _over(devices: int, sizes: ModelSizes) -> _Switches:
    """What several devices may share between them."""
    if devices == 1:
        return ()
    most = max(size for size in range(1, devices + 1) if devices % size == 0 and sizes.heads % size == 0)
    return (
        (
            False,
            "no more traffic",
            lambda recipe, _: _with(recipe, "parallel", zero=max(2, recipe.parallel.zero)),
        ),
        (False, "traffic in every layer", lambda recipe, _: _with(recipe, "parallel", sequence=most)),
        (False, "weights gathered layer by layer", lambda recipe, _: _with(recipe, "parallel", zero=3)),
    )


def _updated_on_cpu(recipe: Recipe) -> Recipe:
    if not recipe.parallel.zero or recipe.parallel.offload != "none":
        return recipe
    return _with(recipe, "parallel", offload="optimizer")


def _in_8_bits(recipe: Recipe) -> Recipe:
    return recipe if recipe.parallel.zero else _with(recipe, "optimizer", kind="adamw_8bit")


_BEFORE: _Switches = (
    (False, "no time to speak of", _fewer_tokens),
    (False, "a third more time", lambda recipe, _: _with(recipe, "memory", checkpointing=True)),
    (
        False,
        "feed-forward layers once more",
        lambda recipe, _: _with(recipe, "memory", tiled_mlp=True),
    ),
)
_AFTER: _Switches = (
    (True, "rounding in matrix products", lambda recipe, _: _with(recipe, "model", precision="bfloat16")),
    (True, "traffic to the CPU's memory", lambda recipe, _: _with(recipe, "memory", offload=True)),
    (True, "moments in 8 bits", lambda recipe, _: _in_8_bits(recipe)),
    (True, "the CPU takes the optimizer's step", lambda recipe, _: _updated_on_cpu(recipe)),
    (False, "only adapters are trained", lambda recipe, _: _adapted(recipe)),
)
