"""`longrm plan`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.options import resolve, set_option
from longrm.cli.progress_bar import progress
from longrm.cli.terminal import print_facts, print_json, print_lines
from longrm.config import parse_assignments, read_toml
from longrm.planning.devices import DEVICES, GIB, UTILIZATION, format_bytes
from longrm.training.objectives import objective_named_in
from longrm.training.training_settings import TrainingSettings

if TYPE_CHECKING:
    from longrm.planning.training_plan import TrainingPlan

_MUCH = 64 * GIB
"""Of the CPU's memory: what not every machine has beside a GPU."""


@click.command("plan", short_help="Compute what a training will need before it starts.")
@click.argument("recipe_file", metavar="RECIPE.toml", type=click.Path(path_type=Path))
@click.option(
    "--device",
    metavar="NAME",
    type=click.Choice(list(DEVICES)),
    default="cpu",
    show_default=True,
    help=f"What to train on: {', '.join(DEVICES)}; cpu is this machine.",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many of them, laid out as the recipe's [parallel] says.",
)
@set_option()
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    recipe_file: Path, device: str, devices: int, assignments: tuple[str, ...], as_json: bool
) -> None:
    """Computes what a training will need: steps, tokens, operations, hours, and memory by part.

    Where it does not fit the device, it lists what to switch on, the cheapest first. Sizes come from the model's
    config and lengths from the data; where these are not at hand, from the recipe's [plan]. Memory is one device's,
    and so is whether it fits: what settings move to the CPU's memory is shown, but not checked.

    \b
    longrm plan recipes/paper/qwen3-8b/logo-lora.toml --device h100-80gb
    longrm plan mine.toml --device l40s --set memory.gradient_checkpointing=true
    longrm plan recipes/scale/8-a100.toml --device a100-80gb --devices 8
    """
    settings = _settings(recipe_file, assignments)
    from longrm.planning.training_plan import plan_training

    with progress() as report:
        plan = plan_training(settings, device, devices=devices, progress=report)
    if as_json:
        print_json(plan.as_dict())
    else:
        _show(plan)


def _settings(file: Path, assignments: tuple[str, ...]) -> TrainingSettings:
    objective = objective_named_in(read_toml(file) | parse_assignments(assignments), file)
    return resolve(objective.settings, file, assignments)


def _show(plan: "TrainingPlan") -> None:
    """One screen: the verdict, what is read, what it takes, and memory by part."""
    print_lines([*_verdict(plan), ""])
    print_facts(_facts(plan))


def _verdict(plan: "TrainingPlan") -> list[str]:

    room = plan.offers.memory
    needs = f"it needs {format_bytes(plan.memory.total)}, and {_name(plan)} has {format_bytes(room)}"
    if plan.devices > 1:
        needs = (
            f"each of {plan.devices} devices needs {format_bytes(plan.memory.total)} and has {format_bytes(room)} "
            f"({plan.device})"
        )
    if plan.memory.total <= room:
        return [f"Fits: {needs}", *_on_cpu(plan)]
    lines = [f"Does not fit: {needs}"]
    switches = plan.advice.switches
    if switches and switches[-1].total <= room:
        lines.append("It fits with these, each on top of those before it:")
    elif switches:
        lines.append(
            "No setting is enough; the least it needs is with these, each on top of those before it:"
        )
    else:
        lines.append("No setting makes it smaller; shorter rows or a larger device would.")
    lines += [
        f"  --set {switch.setting}  {format_bytes(switch.total)} ({switch.price})" for switch in switches
    ]
    return lines


def _on_cpu(plan: "TrainingPlan") -> list[str]:
    """A line about the CPU's memory where there may not be as much."""
    needed = plan.devices * plan.memory.offloaded
    if needed < _MUCH:
        return []
    over = f" over {plan.devices} devices" if plan.devices > 1 else ""
    return [f"Beside that it takes {format_bytes(needed)} of the CPU's memory{over}, which is not checked"]


def _name(plan: "TrainingPlan") -> str:
    return "this machine" if plan.offers.type == "cpu" else plan.device


def _facts(plan: "TrainingPlan") -> list[tuple[str, str]]:

    workload, sizes, memory = plan.workload, plan.sizes, plan.memory
    read = workload.prompt_tokens + workload.response_tokens
    copies = workload.separate_tokens > read
    facts = [
        ("model", f"{_short(sizes.parameters)} parameters, from {sizes.origin}"),
        ("data", f"{workload.rows:,.0f} rows read in {workload.steps:,} steps, from {workload.origin}"),
        *_left_out(workload.counts),
        (
            "tokens",
            f"{_short(read)} read: {_short(workload.prompt_tokens)} of prompts, {_short(workload.response_tokens)} of "
            "responses"
            + f" ({_short(workload.separate_tokens)} if every response had a copy of its prompt)"
            * copies,
        ),
        (
            "operations",
            f"{_flop(plan.flops.total)}, {plan.flops.attention / plan.flops.total:.0%} of it attention"
            + f" ({plan.separate.total / plan.forward.total:.2f}x with copies)" * copies,
        ),
        ("time", _time(plan)),
        ("memory", f"{format_bytes(memory.total)} at the peak, {_when(plan)}"),
    ]
    for name in ("weights", "gradients", "optimizer", "activations", "logits", "working"):
        size = getattr(memory, name)
        if size:
            facts.append((f"  {name}", f"{format_bytes(size):>9}  {_PARTS[name]}"))
    if memory.offloaded:
        each = " for each device" if plan.devices > 1 else ""
        facts.append(("  on the CPU", f"{format_bytes(memory.offloaded):>9}  offloaded{each}"))
    if plan.traffic:
        facts.append(("traffic", "each device sends in one step"))
        facts += [("", line) for line in plan.traffic]
    facts.append(("longest", _longest(plan)))
    if plan.offers.type == "cuda":
        facts.append(("", "Counted for this device, not yet measured on one."))
    return facts


def _when(plan: "TrainingPlan") -> str:
    memory = plan.memory
    of_tokens = memory.activations or memory.working
    return memory.when + f" of {plan.workload.largest.tokens:,} tokens" * bool(of_tokens)


_PARTS = {
    "weights": "",
    "gradients": "those that exist by then",
    "optimizer": "AdamW's moments; under ZeRO a copy of the weights too",
    "activations": "kept for the backward pass",
    "logits": "of responses, with their gradients",
    "working": "of the layer being computed",
}


def _left_out(counts: Any) -> list[tuple[str, str]]:
    out = [f"{counts[name]:,} {name.replace('_', ' ')}" for name in ("bad", "too_long") if counts.get(name)]
    return [("", f"left out: {', '.join(out)}")] if out else []


def _time(plan: "TrainingPlan") -> str:
    if plan.seconds is None:
        return f"not known for {_name(plan)}: time a few steps"
    hours = plan.seconds / 3600
    alone = "" if plan.devices == 1 else "; traffic and waiting are not counted"
    return f"{hours:,.1f} hours, if {UTILIZATION:.0%} of the device's peak is reached{alone}"


def _longest(plan: "TrainingPlan") -> str:
    longest = plan.advice.longest_prompt
    if longest is None:
        return "no prompt fits with these settings, however short"
    return f"prompts of {longest:,} tokens would fit with these settings"


def _short(number: float) -> str:
    """A number of tokens or parameters as people say it."""
    for limit, unit in ((1e9, "billion"), (1e6, "million")):
        if number >= limit:
            return f"{number / limit:.2f} {unit}"
    return f"{number:,.0f}"


def _flop(number: float) -> str:
    for limit, unit in ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return f"{number / 1e9:.1f} GFLOP"
