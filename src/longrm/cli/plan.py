"""`longrm plan`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from longrm.cli.options import JSON, recipe_file, resolve, set_option
from longrm.cli.terminal import print_facts, print_json, print_lines, progress
from longrm.config import parse_assignments
from longrm.errors import ConfigError
from longrm.reading import read_toml
from longrm.training.objectives import objective_named_in
from longrm.training.plan.devices import DEVICES, GIB, UTILIZATION, format_bytes

if TYPE_CHECKING:
    from longrm.training.plan.training_plan import TrainingPlan

_MUCH = 64 * GIB
"""Of CPU memory; not every machine with a GPU has as much."""


@click.command("plan", short_help="Compute what a training will need.")
@click.argument("recipe", metavar="RECIPE", type=recipe_file)
@click.option(
    "--device",
    metavar="NAME",
    type=click.Choice(list(DEVICES)),
    default="cpu",
    show_default=True,
    help=f"Device: {', '.join(DEVICES)}; cpu is this machine.",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of devices; the recipe's [parallel] lays them out.",
)
@set_option()
@JSON
def command(recipe: Path, device: str, devices: int, assignments: tuple[str, ...], as_json: bool) -> None:
    """Computes what a training will need: steps, tokens, operations, hours, and memory by part.

    If it does not fit on the device, the settings that make it fit are listed, the cheapest first. Sizes come from the
    model's config and lengths from the data, or else from the recipe's [plan]. Memory is that of one device; memory
    that settings move to the CPU is shown, but not checked.

    \b
    longrm plan paper/qwen3-8b/logo-lora --device h100-80gb
    longrm plan mine.toml --device l40s --set memory.gradient_checkpointing=true
    longrm plan scale/8-a100 --device a100-80gb --devices 8
    """
    objective = objective_named_in(read_toml(recipe, ConfigError) | parse_assignments(assignments), recipe)
    settings = resolve(objective.settings, recipe, assignments)
    from longrm.training.plan.training_plan import plan_training

    with progress() as report:
        plan = plan_training(settings, device, devices=devices, progress=report)
    if as_json:
        print_json(plan.as_dict())
    else:
        print_lines([*_verdict(plan), ""])
        print_facts(_facts(plan))


def _verdict(plan: "TrainingPlan") -> list[str]:
    """Whether it fits, and which settings help if it does not."""
    needed, room = format_bytes(plan.memory.total), format_bytes(plan.offers.memory)
    needs = f"it needs {needed}, and {_name(plan)} has {room}"
    if plan.devices > 1:
        needs = f"each of {plan.devices} devices needs {needed} and has {room} ({plan.device})"
    if plan.memory.total <= plan.offers.memory:
        lines = [f"Fits: {needs}"]
        on_cpu = plan.devices * plan.memory.offloaded
        if on_cpu >= _MUCH:
            over = f" over {plan.devices} devices" if plan.devices > 1 else ""
            lines.append(f"It also needs {format_bytes(on_cpu)} of CPU memory{over}, which is not checked")
        return lines
    lines = [f"Does not fit: {needs}"]
    switches = plan.advice.switches
    if switches and switches[-1].total <= plan.offers.memory:
        lines.append("It fits with these settings, each added to those before it:")
    elif switches:
        lines.append("No setting suffices; these need the least, each added to those before it:")
    else:
        lines.append("No setting reduces it; shorter rows or a larger device would.")
    return lines + [
        f"  --set {switch.setting}  {format_bytes(switch.total)} ({switch.price})" for switch in switches
    ]


def _name(plan: "TrainingPlan") -> str:
    return "this machine" if plan.offers.type == "cpu" else plan.device


_PARTS = {
    "weights": "",
    "gradients": "those that exist at the peak",
    "optimizer": "AdamW's moments; with ZeRO a copy of the weights too",
    "activations": "kept for the backward pass",
    "logits": "of responses, with their gradients",
    "working": "of the current layer",
}
"""The parts of memory."""


def _facts(plan: "TrainingPlan") -> list[tuple[str, str]]:
    """Data, cost, and memory by part."""
    workload, sizes, memory = plan.workload, plan.sizes, plan.memory
    facts = [
        ("model", f"{_short(sizes.parameters)} parameters, from {sizes.origin}"),
        ("data", f"{workload.rows:,.0f} rows read in {workload.steps:,} steps, from {workload.origin}"),
    ]
    dropped = {name: workload.counts.get(name) for name in ("bad", "too_long")}
    if any(dropped.values()):
        counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in dropped.items() if count)
        facts.append(("", f"left out: {counts}"))
    read = workload.prompt_tokens + workload.response_tokens
    prompts, responses = _short(workload.prompt_tokens), _short(workload.response_tokens)
    tokens = f"{_short(read)} read: {prompts} of prompts, {responses} of responses"
    operations = f"{_flop(plan.flops.total)}, {plan.flops.attention / plan.flops.total:.0%} of it attention"
    if workload.separate_tokens > read:
        tokens += f" ({_short(workload.separate_tokens)} if every response had a copy of its prompt)"
        operations += f" ({plan.separate.total / plan.forward.total:.2f}x with copies)"
    time = f"unknown for {_name(plan)}: time a few steps"
    if plan.seconds is not None:
        alone = "" if plan.devices == 1 else "; communication and waiting are not included"
        peak = f"if {UTILIZATION:.0%} of the device's peak is reached{alone}"
        time = f"{plan.seconds / 3600:,.1f} hours, {peak}"
    at_peak = f"{format_bytes(memory.total)} at the peak, {memory.when}"
    if memory.activations or memory.working:
        at_peak += f" of {workload.largest.tokens:,} tokens"
    facts += [("tokens", tokens), ("operations", operations), ("time", time), ("memory", at_peak)]
    if plan.small_tensors:
        facts.append(("", "up to 1.5 times as much: the C library does not return freed tensors below 4 MiB"))
    sized = [(f"  {name}", getattr(memory, name), meaning) for name, meaning in _PARTS.items()]
    each = " for each device" if plan.devices > 1 else ""
    sized.append(("  on the CPU", memory.offloaded, f"offloaded{each}"))
    facts += [(name, f"{format_bytes(size):>9}  {meaning}") for name, size, meaning in sized if size]
    if plan.traffic:
        facts.append(("traffic", "each device sends in one step"))
        facts += [("", line) for line in plan.traffic]
    longest = plan.advice.longest_prompt
    fitting = "no prompt fits with these settings"
    if longest is not None:
        fitting = f"prompts of {longest:,} tokens would fit with these settings"
    if sizes.limit is not None:
        fitting += f"; the model's window, with the response, is {sizes.limit:,}"
    facts.append(("longest", fitting))
    if plan.offers.type == "cuda":
        facts.append(("", "Computed for this device, not yet measured on one."))
    return facts


def _short(number: float) -> str:
    """A number of tokens or parameters in millions or billions."""
    for limit, unit in ((1e9, "billion"), (1e6, "million")):
        if number >= limit:
            return f"{number / limit:.2f} {unit}"
    return f"{number:,.0f}"


def _flop(number: float) -> str:
    for limit, unit in ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return f"{number / 1e9:.1f} GFLOP"
