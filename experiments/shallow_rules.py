"""Can a rule that understands nothing answer a world? The accuracy of every rule, by length and by fifth of depth.

Prints the most accurate rule of each cell, and the least accurate one: its opposite is a rule, too. A world is balanced
if both are near 50%. Writes all cells with --results.
"""

import argparse
import json
import shlex
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from longrm.evaluation.probe import PROSE_TASKS
from longrm.evaluation.summary_schema import depth_bin
from longrm.reward_models.baselines import BASELINES
from longrm.types import query_of
from longrm.worlds import WorldPlan, generate
from longrm.worlds.words_tokenizer import load_tokenizer

RULES = [name for name in BASELINES if name != "random"]


def cells(world: str, length: int, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """For all comparisons of a length, and for each fifth of depth: their number, and the percentage of each rule."""
    credits: dict[str, list[dict[str, float]]] = defaultdict(list)
    plan = WorldPlan(world, length, per_group=options.per_group, seed=options.seed)
    for row in generate(plan, options.n, options.counts):
        query, best = query_of(row, range(2)), row.best_first()[0]
        earned = {}
        for name in RULES:
            scores = BASELINES[name].scores(query)
            earned[name] = 0.5 if scores[0] == scores[1] else float((scores[0] < scores[1]) == best)
        for part in ("all", depth_bin(row.metadata["depth"])):
            credits[part].append(earned)
    return {
        part: {
            "n": len(rows),
            "percent": {name: round(100 * statistics.fmean(row[name] for row in rows), 1) for name in RULES},
        }
        for part, rows in sorted(credits.items(), reverse=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", nargs="+", default=PROSE_TASKS, help="default: %(default)s")
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=int,
        default=[256, 512, 1024, 2048, 4096, 8192],
        help="default: %(default)s",
    )
    parser.add_argument(
        "--n", type=int, default=5120, help="comparisons of each world and length (%(default)s)"
    )
    parser.add_argument("--per-group", type=int, default=4, help="questions about one context (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", default="approximate", help="what measures lengths (%(default)s)")
    parser.add_argument("--results", type=Path, help="JSONL file to write")
    options = parser.parse_args()
    options.counts = load_tokenizer(options.tokenizer)
    command = f"python experiments/shallow_rules.py {shlex.join(sys.argv[1:])}".strip()
    lines = []
    for world in options.worlds:
        for length in options.lengths:
            found = cells(world, length, options)
            lines.append({"world": world, "length": length, "cells": found, "command": command})
            for part, cell in found.items():
                ranked = sorted(cell["percent"].items(), key=lambda item: item[1])
                (low, least), (high, most) = ranked[0], ranked[-1]
                print(
                    f"{world:14} {length:6} {part:8} n {cell['n']:5}  {high} {most:.1f}%, {low} {least:.1f}%",
                    flush=True,
                )
            if options.results:
                options.results.write_text(
                    "".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8"
                )


if __name__ == "__main__":
    main()
