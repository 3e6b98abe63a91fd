"""Evaluates, reports and compares many recorded comparisons: the peak memory and the time of each command."""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longrm.jsonl import compact_line

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
TASKS = ("Cite", "Code", "Math")
JUDGES = {"first": 0.75, "second": 0.85}  # accuracy of one trial of each judge


def write_inputs(count: int, folder: Path) -> None:
    """A benchmark of pairs, 4 for each context, and the record of each judge in both orders, with an explanation."""
    with (folder / "pairs.jsonl").open("wb") as file:
        for number in range(count):
            row = {
                "id": f"pair-{number:07}",
                "group": f"context-{number // 4:06}",
                "prompt": f"In ledger {number // 4} entry {number} says amber. What does entry {number} say?",
                "chosen": f"Entry {number} says amber.",
                "rejected": f"Entry {number} says something else.",
                "length": LENGTHS[number // 4 % len(LENGTHS)],
                "depth": number % 11 / 10,
                "task": TASKS[number % len(TASKS)],
            }
            file.write(compact_line(row))
    for seed, (judge, accuracy) in enumerate(JUDGES.items()):
        right = np.random.default_rng(seed).random((count, 2)) < accuracy
        with (folder / f"{judge}.jsonl").open("wb") as file:
            for number, verdicts in enumerate(right.tolist()):
                trials = [
                    {
                        "order": order,
                        "outcome": "answered",
                        "scores": [1.0, 0.0] if verdict else [0.0, 1.0],
                        "explanation": f"Response {'AB'[order[not verdict]]} names what the entry says.",
                    }
                    for order, verdict in zip(([0, 1], [1, 0]), verdicts, strict=True)
                ]
                row = {
                    "id": f"pair-{number:07}",
                    "group": f"context-{number // 4:06}",
                    "outcome": "answered",
                    "order": [0, 1],
                    "scores": [sum(verdicts) / 2, 1 - sum(verdicts) / 2],
                    "trials": trials,
                }
                file.write(compact_line(row))


def measure(words: Sequence[str]) -> dict[str, float]:
    """Peak resident memory in GB and seconds of a command, in a process of its own.

    The peak includes that of this process before it forks, so nothing large is imported or kept here.
    """
    before = os.times()
    process = subprocess.Popen([sys.executable, "-m", "longrm", "--quiet", *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"longrm {words[0]} failed")
    return {
        "peak_gb": round(usage.ru_maxrss * 1024 / 1e9, 3),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "seconds": round(os.times().elapsed - before.elapsed, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=80_000)
    parser.add_argument("--folder", type=Path, help="keeps inputs and runs here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_inputs(options.comparisons, folder)
        runs = [str(folder / f"run-{judge}") for judge in JUDGES]
        commands = {}
        for judge, run in zip(JUDGES, runs, strict=True):
            record, bench = str(folder / f"{judge}.jsonl"), str(folder / "pairs.jsonl")
            commands[f"evaluate {judge}"] = ["evaluate", "--recorded", record, "--bench", bench, "--out", run]
            # The other rules take 1.5 ms a comparison: 25 minutes of a million.
            commands[f"evaluate {judge}"] += ["--set", 'judging.baselines=["longest", "shortest"]']
        commands["report"] = ["report", *runs, "--out", str(folder / "page.html")]
        commands["compare"] = ["compare", *runs, "--json"]
        for name, words in commands.items():
            found = {"step": name, "comparisons": options.comparisons, **measure(words)}
            machine = f"{os.cpu_count()}-core {platform.machine()} CPU, Python {platform.python_version()}"
            print(
                json.dumps(found | {"command": f"python {shlex.join(sys.argv)}", "machine": machine}),
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
