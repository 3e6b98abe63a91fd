"""How busy groups of devices are that share a step of training: the sharing-out of this package, simulated.

Rows of recipes/scale/2x8.toml (six lengths) and of lengths spread evenly on a logarithmic scale, 32 a step, 131,072
tokens a forward pass, Llama-3.1-8B. "before" is what this package did until 2026-11-26: rows shared out by tokens, in
the order of an epoch. Counted in operations; nothing is computed.

    python perf/dealing.py
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence

from longrm.modeling.shapes import TreeShape
from longrm.training.batches import deal, duration, operations
from longrm.training.sampling import Mixture

PAIR_COST = 2 * 4096 / (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)  # Llama-3.1-8B
BUDGET, PER_STEP, STEPS = 131_072, 32, 100
SIX = (4_096, 8_192, 16_384, 32_768, 65_536, 129_000)


def rows(kind: str) -> list[TreeShape]:
    """The rows of an epoch."""
    draw = random.Random(0)
    spread = [
        round(4_096 * math.exp(draw.random() * math.log(129_000 / 4_096))) for _ in range(PER_STEP * STEPS)
    ]
    prompts = spread if kind == "spread" else [SIX[at % 6] for at in range(PER_STEP * STEPS)]
    return [TreeShape(prompt, (500,) * 3) for prompt in prompts]


def by_tokens(shapes: Sequence[TreeShape], groups: int) -> list[list[list[int]]]:
    """What was done before: every tree to the group with the fewest tokens, packed in this order."""
    dealt: list[list[list[int]]] = [[] for _ in range(groups)]
    for index, shape in enumerate(shapes):
        least = min(dealt, key=lambda own: sum(shapes[at].tokens for held in own for at in held))
        fits = (h for h in least if sum(shapes[at].tokens for at in h) + shape.tokens <= BUDGET)
        held = next(fits, None)
        if held is None:
            least.append([index])
        else:
            held.append(index)
    return dealt


def efficiency(kind: str, groups: int, *, aligned: bool, alike: int = 1, before: bool = False) -> float:
    """The share of the time in which a group computes."""
    shapes = rows(kind)
    epoch = Mixture([[shape.prefix + 500 for shape in shapes]], [1.0], 0, alike).epoch(0)
    busy = taken = 0.0
    for begin in range(0, len(epoch), PER_STEP):
        step = sorted(
            (shapes[row] for _, row in epoch[begin : begin + PER_STEP]), key=lambda shape: -shape.tokens
        )
        costs = [operations(shape, PAIR_COST) for shape in step]
        now = deal(step, groups, BUDGET, PAIR_COST, aligned=aligned)
        dealt = by_tokens(step, groups) if before else now
        busy += sum(costs) / groups
        taken += duration(dealt, costs, aligned=aligned)
    return busy / taken


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of a table")
    options = parser.parse_args(arguments)
    found = [
        {
            "rows": kind,
            "groups": groups,
            "aligned": aligned,
            "before": round(efficiency(kind, groups, aligned=aligned, before=True), 3),
            "dealt": round(efficiency(kind, groups, aligned=aligned), 3),
            "alike": round(efficiency(kind, groups, aligned=aligned, alike=groups), 3),
        }
        for kind in ("six", "spread")
        for groups in (2, 8)
        for aligned in (False, True)
    ]
    if options.json:
        print(json.dumps(found))
        return 0
    print("| rows | groups | wait in every round | before | by operations | with data.group_by_length |")
    print("|---|---|---|---|---|---|")
    for one in found:
        shares = " | ".join(f"{one[name]:.0%}" for name in ("before", "dealt", "alike"))
        print(f"| {one['rows']} | {one['groups']} | {'yes' if one['aligned'] else 'no'} | {shares} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
