"""Short-to-long synthesis as a user runs it: rows and tokens per second, peak memory at two sizes, and kills.

Documents are generated (1,024 tokens each), rows are padded to 4,096 tokens, the judge is simulated; every run is the
command `longrm synthesize short-to-long` in a new process. With `--kills` one run is killed this many times at random
points, and must give the same bytes as an uninterrupted run; otherwise the script fails.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import longrm
from longrm.types import message_text
from longrm.worlds import WorldPlan, generate, words_tokenizer

LENGTH = 4096
RECIPE = """
lengths = [{length}]
chunk_size = 64
max_chunks = 3
documents = {{path = "{folder}/documents.jsonl", license = "Apache-2.0"}}
candidates = {{path = "{folder}/candidates.jsonl"}}
judge = {{model = "simulated:0.1"}}
"""


def make_inputs(folder: Path, rows: int) -> Path:
    """Writes documents, one candidate each, and the recipe; returns the recipe."""
    with (
        (folder / "documents.jsonl").open("w") as documents,
        (folder / "candidates.jsonl").open("w") as answers,
    ):
        for comparison in generate(WorldPlan("records", 1024, seed=5), rows, words_tokenizer()):
            text, span, question = (
                message_text(comparison.prompt[0]),
                comparison.context[0],
                comparison.question,
            )
            assert question is not None
            document = {
                "id": comparison.id,
                "context": text[span.start : span.end],
                "question": text[question.start : question.end],
                "answer": message_text(comparison.responses[comparison.best_first()[0]][0]),
            }
            answer = message_text(comparison.responses[0][0])
            documents.write(json.dumps(document) + "\n")
            answers.write(json.dumps({"document": comparison.id, "model": "m", "text": answer}) + "\n")
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(length=LENGTH, folder=folder))
    return recipe


def start(recipe: Path, out: Path) -> subprocess.Popen[bytes]:
    words = ["-m", "longrm", "synthesize", "short-to-long", "--config"]
    command = [sys.executable, *words, str(recipe), "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def finish(process: subprocess.Popen[bytes]) -> int:
    """Waits, and returns the peak of the resident set in bytes."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"the run ended with {process.returncode}"
    return usage.ru_maxrss * 1024


def digest(out: Path) -> str:
    """SHA-256 of all rows and of the ledger."""
    found = hashlib.sha256()
    for file in (*sorted((out / "rows").iterdir()), out / "ledger.jsonl"):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()


def measure(rows: int) -> dict[str, Any]:
    """One run over this many documents."""
    with tempfile.TemporaryDirectory() as name:
        recipe, out = make_inputs(Path(name), rows), Path(name) / "out"
        began = time.perf_counter()
        peak = finish(start(recipe, out))
        seconds = time.perf_counter() - began
        counts = json.loads((out / "manifest.json").read_text())["counts"]
        tokens = sum(json.loads(line)["tokens"] for file in (out / "rows").iterdir() for line in file.open())
    return {
        "inputs": rows,
        "rows": counts["rows"],
        "seconds": round(seconds, 1),
        "rows_per_second": round(counts["rows"] / seconds, 2),
        "tokens_per_second": round(tokens / seconds),
        "peak_mib": round(peak / 2**20, 1),
    }


def endure(rows: int, kills: int) -> dict[str, Any]:
    """Compares a run that is killed this many times with an uninterrupted one."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        recipe, whole, killed = make_inputs(Path(name), rows), Path(name) / "whole", Path(name) / "killed"
        finish(start(recipe, whole))
        places = []
        for number in range(kills):
            process, aim = start(recipe, killed), rows * (number + 1) // (kills + 1)
            while process.poll() is None and done(killed) < aim:
                time.sleep(0.05)
            time.sleep(draw.random())
            assert process.poll() is None, "the run ended before it could be killed"
            process.send_signal(signal.SIGKILL)
            process.wait()
            places.append(done(killed))
        finish(start(recipe, killed))
        assert digest(whole) == digest(killed), "a killed run came to other bytes"
        return {"inputs": rows, "kills": kills, "inputs_done_at_kills": places, "sha256": digest(killed)}


def done(out: Path) -> int:
    """Number of inputs in the ledger."""
    ledger = out / "ledger.jsonl"
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[2000, 20_000], help="number of documents of each run"
    )
    parser.add_argument(
        "--kills", type=int, default=0, help="number of kills of a run over the first number of documents"
    )
    options = parser.parse_args()
    result: dict[str, Any] = {
        "command": "python " + shlex.join(sys.argv),
        "machine": f"{os.cpu_count()}-core {platform.machine()} CPU, {len(os.sched_getaffinity(0))} used",
        "versions": {"python": platform.python_version(), "longrm": longrm.__version__},
    }
    if options.kills:
        result["endured"] = endure(options.rows[0], options.kills)
    else:
        result["runs"] = [measure(rows) for rows in options.rows]
        first, *_, last = result["runs"]
        result["memory_ratio"] = round(last["peak_mib"] / first["peak_mib"], 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
