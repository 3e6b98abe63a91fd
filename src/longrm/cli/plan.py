"""`longrm plan`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from longrm.cli.help import Command
from longrm.cli.options import JSON, SET, recipe_name, recipe_option, resolve
from longrm.cli.terminal import echo, print_facts, print_json, print_lines, print_next, progress
from longrm.training.plan import DEVICES, GIB, format_bytes

if TYPE_CHECKING:
    from longrm.training.plan.plan import TrainingPlan

_DEVICE_HELP = f"{', '.join(DEVICES)}; cpu is this machine."
_DEVICES_HELP = "Number of devices; [parallel] in the recipe sets their use."
_HOST_HELP = "CPU memory of each machine, to check whether offloaded data fits."


@click.command("plan", cls=Command)
@click.argument("recipe", metavar="RECIPE", type=recipe_option)
@click.option(
    "--device",
    metavar="NAME",
    type=click.Choice(list(DEVICES)),
    default="cpu",
    show_default=True,
    help=_DEVICE_HELP,
)
@click.option(
    "--devices", metavar="N", type=click.IntRange(1), default=1, show_default=True, help=_DEVICES_HELP
)
@click.option("--host-memory", metavar="GIB", type=click.FloatRange(0, min_open=True), help=_HOST_HELP)
@SET
@JSON
def command(
    recipe: Path,
    device: str,
    devices: int,
    host_memory: float | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compute the time and memory that a training needs.

    \b
    longrm plan paper/qwen3-8b/logo-lora --device h100-80gb
    longrm plan mine.toml --device l40s --set memory.gradient_checkpointing=true
    longrm plan scale/8-a100 --device a100-80gb --devices 8 --host-memory 900

    If the training does not fit on the device, the command lists the settings that make it fit, the cheapest first.
    Sizes are read from the model's config and lengths from the data, or else from [plan] in the recipe. Memory is per
    device.
    """
    from longrm.training.settings import TrainingSettings

    settings = resolve(TrainingSettings, recipe, assignments)  # a typo is reported before slower imports
    from longrm.training.plan.plan import plan_training

    with progress() as report:
        plan = plan_training(
            settings,
            device,
            devices=devices,
            host_memory=None if host_memory is None else host_memory * GIB,
            progress=report,
        )
    if as_json:
        print_json(plan.as_dict())
    else:
        print_lines(*_verdict(plan))
        echo()
        print_facts(_facts(plan))
    fits = plan.memory.total <= plan.offers.memory
    helps = [switch.setting for switch in plan.switches if plan.switches[-1].total <= plan.offers.memory]
    sets = [word for setting in (*assignments, *helps) for word in ("--set", setting)]
    if fits and devices == 1:  # the launch on several devices depends on the machines (docs/scale.md)
        objective = settings.objective.replace("_", "-")
        print_next("train", objective, "--config", recipe_name(recipe), *sets, "--out", "RUN", err=as_json)
    elif not fits and helps:
        there = ("--device", device, "--devices", devices)
        print_next("plan", recipe_name(recipe), *there, *sets, err=as_json)


def _verdict(plan: "TrainingPlan") -> list[str]:
    """Whether it fits, and which settings help if it does not."""
    needed, room = format_bytes(plan.memory.total), format_bytes(plan.offers.memory)
    needs = f"it needs {needed}, and {plan.device} has {room}"
    if plan.offers.type == "cpu":
        total = format_bytes(DEVICES[plan.device].memory)
        needs = f"it needs {needed}, and of this machine's {total} {room} are available"
    if plan.devices > 1:
        needs = f"each of {plan.devices} devices needs {needed} and has {room} ({plan.device})"
    default = "Gradient checkpointing is on, because it does not fit without it."
    why = [default] if plan.checkpointing_by_default else []
    if plan.memory.total <= plan.offers.memory:
        lines = [f"Fits: {needs}", *why]
        if plan.faster is not None:
            needs = format_bytes(plan.faster.total)
            lines.append(f"Faster, and fits too: --set {plan.faster.setting}  {needs} ({plan.faster.price})")
        return [*lines, *_host_verdict(plan)]
    lines = [f"Does not fit: {needs}", *why]
    switches = plan.switches
    if switches and switches[-1].total <= plan.offers.memory:
        lines.append("It fits with these settings, each added to those before it:")
    elif switches:
        lines.append("No setting suffices; these need the least, each added to those before it:")
    else:
        lines.append("No setting reduces it; shorter rows or a larger device would.")
    lines += [
        f"  --set {switch.setting}  {format_bytes(switch.total)} ({switch.price})" for switch in switches
    ]
    return [*lines, *_host_verdict(plan)]


def _host_verdict(plan: "TrainingPlan") -> list[str]:
    """Whether the CPU memory of a machine suffices, if it has GPUs."""
    if not plan.host:
        return []
    devices = "1 device" if plan.on_machine == 1 else f"{plan.on_machine} devices"
    needs = f"a machine with {devices} needs {format_bytes(plan.host)}"
    if plan.host_memory is None:
        return [f"CPU memory: {needs}; --host-memory GIB checks it"]
    fits = "fits" if plan.host <= plan.host_memory else "does not fit"
    return [f"CPU memory {fits}: {needs} and has {format_bytes(plan.host_memory)}"]


_PARTS = {
    "weights": "",
    "gradients": "those that exist at the peak",
    "optimizer": "AdamW's moments",
    "activations": "kept for the backward pass",
    "logits": "of responses, with their gradients",
    "working": "of the current layer",
    "keys": "keys and values of a prompt and its judgments",
    "process": "Python and its libraries",
    "offloaded": "on the CPU, per device",
    "checkpoint": "on the CPU of a machine, while one is written",
}
"""The parts of memory."""


def _facts(plan: "TrainingPlan") -> list[tuple[str, str]]:
    """Data, cost, and memory by part."""
    workload, sizes, memory, flops = plan.workload, plan.sizes, plan.memory, plan.flops
    prompts, responses = workload.prompt_tokens, workload.response_tokens
    tokens = f"{workload.tokens:,.0f} read: {prompts:,.0f} of prompts, {responses:,.0f} of responses"
    operations = f"{flops.total:.3g}, {flops.attention / flops.total:.0%} of them attention"
    rollouts = plan.rollouts
    time = ["unknown for this device"]
    if plan.seconds is not None:
        kernels = (
            f"{plan.seconds_with[kernel] / 3600:,.1f} hours with {kernel}, at {share:.0%} of the device's peak"
            for kernel, share in plan.utilization.items()
        )
        time = ["; ".join(kernels)]
        if rollouts and rollouts.seconds is not None:
            time.append(f"{rollouts.seconds / 3600:,.1f} hours of them for rollouts")
        if plan.traffic:
            time.append(f"{plan.traffic / 3600:,.1f} hours of them for traffic not hidden by computation")
        if plan.busy < 1:
            time.append(
                f"groups of devices compute {plan.busy:.0%} of the time, and wait for each other otherwise"
            )
    sampling = []
    if rollouts:
        each, share = rollouts.tokens / rollouts.judgments, rollouts.flops.total / flops.total
        reads = "weights and keys are read for every token of a group"
        sampling = [
            (
                "rollouts",
                f"{rollouts.judgments:,.0f} judgments, all assumed to have the most tokens, {each:,.0f}",
            ),
            ("", f"{share:.0%} of the operations; {reads}"),
        ]
    at_peak = f"{format_bytes(memory.total)} at the peak, {memory.when}"
    if memory.activations or (memory.working and not memory.keys):
        at_peak += f" of {workload.largest.tokens:,} tokens"
    longest = plan.longest_prompt
    fits = "no prompt fits" if longest is None else f"prompts of {longest:,} tokens would fit"
    window = "" if sizes.limit is None else f"; the model's window, with the response, is {sizes.limit:,}"

    dropped = {name: workload.counts.get(name) for name in ("bad", "too_long", "labeled_bad", "unlabeled")}
    left_out = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in dropped.items() if count)
    facts = [
        ("model", f"{sizes.parameters:,} parameters, from {sizes.origin}"),
        ("data", f"{workload.rows:,.0f} rows read in {workload.steps:,} steps, from {workload.origin}"),
        *([("", f"left out: {left_out}")] if left_out else []),
        ("tokens", tokens),
        *sampling,
        ("operations", operations),
        ("time", time[0]),
        *[("", line) for line in time[1:]],
        ("memory", at_peak),
    ]
    for name, meaning in _PARTS.items():
        if size := getattr(memory, name):
            facts.append((f"  {name}", f"{format_bytes(size):>9}  {meaning}"))
    facts.append(("longest", f"{fits} with these settings{window}"))
    if plan.offers.type == "cuda":
        facts.append(("", "Computed for this device, not yet measured on one."))
    return facts
