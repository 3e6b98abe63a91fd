"""Does training on longer contexts help where no rule does? SmolLM2 on the world `exchange`, by likelihood.

README.md has the commands that train and judge the arms. `--runs` adds the judgments in RUNS/judged-ARM-SEED* to the
results; the table is computed from the results alone. Intervals are those of `longrm evaluate` and `longrm compare`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from real_contrasts import Records, accuracy, by, difference, length

from longrm.runs.judgments import Judgments
from longrm.runs.records import Estimate, JudgmentRecord
from longrm.types import Outcome

RESULTS = Path(__file__).parent / "results" / "real_exchange.jsonl"
ARMS = ("untrained", "short", "control", "long")
CONTRASTS = (("long", "control"), ("long", "short"), ("control", "short"))


def collected(runs: Path, arm: str, seed: int) -> list[dict[str, Any]]:
    """A line for each length: for every context, which of its pairs are judged right."""
    cells: dict[int, dict[str, list[int]]] = {}
    for folder in sorted(runs.glob(f"judged-{arm}-{seed}*")):
        for record in Judgments(folder):
            assert record.length
            assert record.ranks
            chosen = record.ranks.index(1)
            right = int(record.scores[chosen] > record.scores[1 - chosen])
            cells.setdefault(record.length, {}).setdefault(f"{folder} {record.group}", []).append(right)
    return [
        {"arm": arm, "seed": seed, "length": tokens, "right": list(contexts.values())}
        for tokens, contexts in cells.items()
    ]


def records(lines: list[dict[str, Any]], arm: str) -> Records:
    """The recorded judgments of an arm, by seed."""
    found: Records = {}
    for line in lines:
        for context, pairs in enumerate(line["right"] if line["arm"] == arm else ()):
            name = f"{line['seed']} {line['length']} {context}"
            found.setdefault(line["seed"], []).extend(
                JudgmentRecord(
                    id=f"{name} {at}",
                    group=name,
                    outcome=Outcome.ANSWERED,
                    ranks=(1, 2),
                    order=(0, 1),
                    scores=(float(right), float(not right)),
                    length=line["length"],
                )
                for at, right in enumerate(pairs)
            )
    return found


def show(name: str, estimates: dict[str, Estimate]) -> None:
    cells = [
        f"{100 * one.value:.1f} [{100 * (one.low or 0):.1f}, {100 * (one.high or 0):.1f}]"
        for one in estimates.values()
    ]
    print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="folder of evaluations to add to the results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="(%(default)s)")
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.results.read_text().splitlines()]
    judged = [line for line in lines if "right" in line]
    if options.runs:
        new = [line for arm in ARMS for seed in range(10) for line in collected(options.runs, arm, seed)]
        same = ("arm", "seed", "length")
        keys = {tuple(line[key] for key in same) for line in new}
        judged = [line for line in judged if tuple(line[key] for key in same) not in keys] + new
        text = "".join(
            f"{json.dumps(line)}\n" for line in [*(one for one in lines if "right" not in one), *judged]
        )
        options.results.write_text(text)
    arms = {arm: found for arm in ARMS if (found := records(judged, arm))}
    lengths = dict.fromkeys(str(line["length"]) for line in judged)
    print(f"|  | seeds | {' | '.join(lengths)} |\n|{'---|' * (2 + len(lengths))}")
    for arm, seeds in arms.items():
        pooled = [record for seed in sorted(seeds) for record in seeds[seed]]
        show(
            f"`{arm}` | {sorted(seeds)}", {name: accuracy(cell) for name, cell in by(length, pooled).items()}
        )
    for one, other in CONTRASTS:
        both = tuple(sorted(arms.get(one, {}).keys() & arms.get(other, {}).keys()))
        for seeds in dict.fromkeys((both, *((seed,) for seed in both))) if both else ():
            ours, theirs = ({seed: arms[arm][seed] for seed in seeds} for arm in (one, other))
            show(f"`{one}` - `{other}` | {[*seeds]}", difference(ours, theirs, length))


if __name__ == "__main__":
    main()
