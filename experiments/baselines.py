"""Accuracy of the baselines on a benchmark by length, next to models of your choice: one Markdown table."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.reward_models import BASELINES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", required=True, help="as for `longrm evaluate`")
    parser.add_argument("--model", action="append", default=[], help="as for `longrm evaluate`; repeatable")
    parser.add_argument(
        "--max-length",
        type=int,
        help="most tokens that the models read; longer contexts are cut in the middle",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON line per model instead of the table"
    )
    options = parser.parse_args()
    model_args = {"cut": "middle", "max_length": options.max_length} if options.max_length else {}
    rows = {}
    for place, model in enumerate([*(f"baseline:{name}" for name in BASELINES), *options.model]):
        settings = Evaluation.model_validate(
            {"model": model, "bench": options.bench, "model_args": model_args}
        )
        rows[model] = run_evaluation(
            settings, options.out / str(place), progress=printed_progress(model)
        ).to_dict()
    if options.json:
        for summary in rows.values():
            print(json.dumps(summary))
    else:
        print("\n".join(table(rows)))


def printed_progress(model: str) -> Any:
    def progress(_: str, done: int, total: int) -> None:
        print(f"\r{model}: {done} of {total}", end="", file=sys.stderr)

    return progress


def table(rows: dict[str, dict[str, Any]]) -> list[str]:
    first = next(iter(rows.values()))["metrics"]
    lengths = list(first["by_length"])
    counted = [first["overall"], *first["by_length"].values()]
    lines = [
        f"| pair accuracy, % | all | {' | '.join(lengths)} |",
        f"|---|{'---|' * (1 + len(lengths))}",
        "| pairs (documents) | " + " | ".join(f"{n(part)}" for part in counted) + " |",
    ]
    for model, summary in rows.items():
        parts = [summary["metrics"]["overall"], *(summary["metrics"]["by_length"][key] for key in lengths)]
        lines.append(f"| {model} | " + " | ".join(percent(part["pair_accuracy"]) for part in parts) + " |")
    return lines


def n(part: dict[str, Any]) -> str:
    return f"{part['pair_accuracy']['n']} ({part['pair_accuracy']['groups']})"


def percent(metric: dict[str, Any]) -> str:
    return f"{100 * metric['value']:.1f} [{100 * metric['low']:.1f}, {100 * metric['high']:.1f}]"


if __name__ == "__main__":
    main()
