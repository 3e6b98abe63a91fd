"""`longrm plan`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longrm.cli.options import resolve, set_option
from longrm.cli.progress_bar import progress
from longrm.cli.terminal import print_facts, print_json, print_lines
from longrm.config import parse_assignments, read_toml
from longrm.errors import ConfigError
from longrm.training.planning.devices import DEVICES, GIB, UTILIZATION

if TYPE_CHECKING:
    from longrm.training.planning.plan import Plan
    from longrm.training.run import Recipe

_MUCH = 64 * GIB
"""Of the CPU's memory: what not every machine has beside a GPU."""


@click.command("plan", short_help="Tell what a training will need before it is begun.")
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
    """Tells what a training will need: steps, tokens, operations, hours, and memory by part.

    Where it does not fit the device, it tells what to switch on, what costs least first. Sizes come from the model's
    config and lengths from the data; where these are not at hand, from the recipe's [plan]. Memory is one device's,
    and so is whether it fits: what settings move to the CPU's memory is told, but not checked.

    \b
    longrm plan recipes/paper/qwen3-8b/logo-lora.toml --device h100-80gb
    longrm plan mine.toml --device l40s --set memory.checkpointing=true
    longrm plan recipes/scale/8-a100.toml --device a100-80gb --devices 8
    """
    recipe = _recipe(recipe_file, assignments)
    from longrm.training.planning.plan import plan

    with progress() as report:
        found = plan(recipe, device, devices=devices, progress=report)
    if as_json:
        print_json(found.as_dict())
    else:
        _show(found)


def _recipe(file: Path, assignments: tuple[str, ...]) -> "Recipe":
    objective = (read_toml(file) | parse_assignments(assignments)).get("objective")
    from longrm.training.run import RECIPES

    if not isinstance(objective, str) or objective not in RECIPES:
        known = " or ".join(f'objective = "{name}"' for name in RECIPES)
        raise ConfigError(f"{file} does not say its objective: begin the file with {known}")
    return resolve(RECIPES[objective], file, assignments)


def _show(plan: "Plan") -> None:
    """One screen: the verdict, what is read, what it takes, and memory by part."""
    print_lines([*_verdict(plan), ""])
    print_facts(_facts(plan))


def _verdict(plan: "Plan") -> list[str]:
    from longrm.training.planning.plan import told

    room = plan.offers.memory
    needs = f"it needs {told(plan.memory.total)}, and {_name(plan)} has {told(room)}"
    if plan.devices > 1:
        needs = f"each of {plan.devices} devices needs {told(plan.memory.total)} and has {told(room)} ({plan.device})"
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
    lines += [f"  --set {switch.setting}  {told(switch.total)} ({switch.price})" for switch in switches]
    return lines


def _on_cpu(plan: "Plan") -> list[str]:
    """A word on the CPU's memory where it may not be there."""
    from longrm.training.planning.plan import told

    needed = plan.devices * plan.memory.offloaded
    if needed < _MUCH:
        return []
    over = f" over {plan.devices} devices" if plan.devices > 1 else ""
    return [f"Beside that it takes {told(needed)} of the CPU's memory{over}, which is not checked"]


def _name(plan: "Plan") -> str:
    return "this machine" if plan.offers.type == "cpu" else plan.device


def _facts(plan: "Plan") -> list[tuple[str, str]]:
    from longrm.training.planning.plan import told

    reading, sizes, memory = plan.reading, plan.sizes, plan.memory
    read = reading.prompt_tokens + reading.response_tokens
    copies = reading.separate_tokens > read
    facts = [
        ("model", f"{_short(sizes.parameters)} parameters, from {sizes.origin}"),
        ("data", f"{reading.rows:,.0f} rows read in {reading.steps:,} steps, from {reading.origin}"),
        *_left_out(reading.counts),
        (
            "tokens",
            f"{_short(read)} read: {_short(reading.prompt_tokens)} of prompts, {_short(reading.response_tokens)} of "
            "responses"
            + f" ({_short(reading.separate_tokens)} if every response had a copy of its prompt)"
            * copies,
        ),
        (
            "operations",
            f"{_flop(plan.flops.total)}, {plan.flops.attention / plan.flops.total:.0%} of it attention"
            + f" ({plan.separate.total / plan.forward.total:.2f}x with copies)" * copies,
        ),
        ("time", _time(plan)),
        ("memory", f"{told(memory.total)} at the peak, {_when(plan)}"),
    ]
    for name in ("weights", "gradients", "optimizer", "activations", "logits", "working"):
        size = getattr(memory, name)
        if size:
            facts.append((f"  {name}", f"{told(size):>9}  {_PARTS[name]}"))
    if memory.offloaded:
        each = " for each device" if plan.devices > 1 else ""
        facts.append(("  on the CPU", f"{told(memory.offloaded):>9}  offloaded{each}"))
    if plan.traffic:
        facts.append(("traffic", "each device sends in one step"))
        facts += [("", line) for line in plan.traffic]
    facts.append(("longest", _longest(plan)))
    if plan.offers.type == "cuda":
        facts.append(("", "Counted for this device, not yet measured on one."))
    return facts


def _when(plan: "Plan") -> str:
    memory = plan.memory
    of_tokens = memory.activations or memory.working
    return memory.when + f" of {plan.reading.largest.tokens:,} tokens" * bool(of_tokens)


_PARTS = {
    "weights": "",
    "gradients": "those that exist by then",
    "optimizer": "AdamW's moments; under ZeRO a copy of the weights too",
    "activations": "kept for the way back",
    "logits": "of responses, with their gradients",
    "working": "of the layer being computed",
}


def _left_out(counts: Any) -> list[tuple[str, str]]:
    out = [f"{counts[name]:,} {name.replace('_', ' ')}" for name in ("bad", "too_long") if counts.get(name)]
    return [("", f"left out: {', '.join(out)}")] if out else []


def _time(plan: "Plan") -> str:
    if plan.seconds is None:
        return f"not known for {_name(plan)}: time a few steps"
    hours = plan.seconds / 3600
    alone = "" if plan.devices == 1 else "; traffic and waiting are not counted"
    return f"{hours:,.1f} hours, if {UTILIZATION:.0%} of the device's peak is reached{alone}"


def _longest(plan: "Plan") -> str:
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
