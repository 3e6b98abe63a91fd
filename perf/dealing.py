"""Simulates how long groups of devices that read different rows wait for each other in a step.

Rows of scale/2x8 (six lengths) and of lengths spread evenly on a logarithmic scale, 32 a step, 131,072
tokens a forward pass, Llama-3.1-8B. "by tokens" is the baseline: every row goes to the group with the fewest tokens.
Time is counted in operations.

    python perf/dealing.py
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from functools import partial

from longrm.modeling.shapes import TreeShape
from longrm.training.batches import deal
from longrm.training.plan.traffic import simulate
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
    """The baseline: every tree to the group with the fewest tokens, packed in this order."""
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


def efficiency(
    kind: str, groups: int, *, aligned: bool, group_size: int = 1, baseline: bool = False
) -> float:
    """The share of the time in which a group computes."""
    shapes = rows(kind)
    mixture = Mixture([[shape.longest for shape in shapes]], [1.0], 0, group_size)
    order = [shapes[row] for _, row in mixture.epoch(0)]
    dealer = partial(deal, dp_size=groups, budget=BUDGET, pair_cost=PAIR_COST, aligned=aligned)
    if baseline:
        dealer = partial(by_tokens, groups=groups)
    return simulate(order, PER_STEP, dealer, PAIR_COST, aligned=aligned)


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
            "by_tokens": round(efficiency(kind, groups, aligned=aligned, baseline=True), 3),
            "by_operations": round(efficiency(kind, groups, aligned=aligned), 3),
            "group_by_length": round(efficiency(kind, groups, aligned=aligned, group_size=groups), 3),
        }
        for kind in ("six", "spread")
        for groups in (2, 8)
        for aligned in (False, True)
    ]
    if options.json:
        print(json.dumps(found))
        return 0
    print("| rows | groups | waits in every micro-batch | by tokens | by operations | data.group_by_length |")
    print("|---|---|---|---|---|---|")
    for one in found:
        shares = " | ".join(f"{one[name]:.0%}" for name in ("by_tokens", "by_operations", "group_by_length"))
        print(f"| {one['rows']} | {one['groups']} | {'yes' if one['aligned'] else 'no'} | {shares} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
