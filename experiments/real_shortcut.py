"""Is `latest-update` answered by a rule that reads no sentence: prefer the response whose city the context names last?

Compares the rule with every arm of `real_experiment.py` on the pairs that the arm judged.
"""

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from real_contrasts import RESAMPLES, accuracy, by, length, read_arm
from real_experiment import ARMS, probes

from longrm.benchmarks import BenchmarkSource, load
from longrm.evaluation.estimates import paired_difference
from longrm.types import Comparison, Outcome, text_of

TASK, PROBE = "latest-update", "trained"


def last_named(item: Comparison) -> tuple[float, float]:
    """Where the context last names the one word in which each response differs from the other."""
    words = [re.findall(r"\w+", text_of(response)) for response in item.responses]
    ((one, other),) = [pair for pair in zip(*words, strict=True) if pair[0] != pair[1]]
    context = text_of(item.prompt)
    return float(context.rfind(one)), float(context.rfind(other))


def results(folder: Path, model: Path, contexts: int) -> Iterator[dict[str, Any]]:
    """The accuracy of the rule by length, and that of every arm minus it."""
    found = {arm: read_arm(folder, arm, PROBE) for arm in ARMS if arm.startswith("likelihood")}
    scores = {}
    for seed in sorted({seed for records in found.values() for seed in records}):
        probe = probes(contexts, seed)[PROBE].model_copy(update={"tokenizer": str(model)})
        for item in load("probe", source=BenchmarkSource(), probe=probe).comparisons:
            if item.metadata["task"] == TASK:
                scores[f"{seed} {item.id}"] = last_named(item)
    for arm, of_seeds in found.items():
        ours = [record for side in of_seeds.values() for record in side if record.task == TASK]
        if not ours:
            continue
        rule = [replace(one, outcome=Outcome.ANSWERED, scores=scores[one.id]) for one in ours]
        ours_by, rule_by = by(length, ours), by(length, rule)
        yield {
            "arm": arm,
            "seeds": sorted(of_seeds),
            "rule": {name: asdict(accuracy(cell)) for name, cell in rule_by.items()},
            "difference": {
                name: asdict(paired_difference(ours_by[name], cell, resamples=RESAMPLES))
                for name, cell in rule_by.items()
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/smollm2"), help="folder of the arms' runs (%(default)s)"
    )
    parser.add_argument(
        "--model", type=Path, default=Path("runs/real-model"), help="whose tokenizer they used (%(default)s)"
    )
    parser.add_argument("--contexts", type=int, default=6, help="that of real_experiment.py (%(default)s)")
    parser.add_argument("--results", type=Path, help="JSONL file to write")
    options = parser.parse_args()
    lines = [json.dumps(line) for line in results(options.out, options.model, options.contexts)]
    if not lines:
        raise SystemExit(f"error: {options.out} has no judged arm: run real_experiment.py first")
    if options.results:
        options.results.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for line in map(json.loads, lines):
        print(f"{line['arm']}, seeds {line['seeds']}: the rule, and the arm minus the rule")
        for name, rule in line["rule"].items():
            ours = line["difference"][name]
            value, low, high = (100 * ours[key] for key in ("value", "low", "high"))
            print(f"  {name:>6} {100 * rule['value']:6.1f} {value:+6.1f} [{low:.1f}, {high:.1f}]")


if __name__ == "__main__":
    main()
