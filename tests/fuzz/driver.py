"""Runs the real command line on bad input, and judges what came of it.

A kind is a module with one function, `make(rng, folder)`: it writes a bad input into the folder and returns the
arguments of `longrm`. It may name modules to import beforehand (`PRELOAD`), and inputs built by code that are tried
first (`CORPUS`, a dict of functions of the folder that return the arguments; `LARGE`, those of full runs alone). Where
`NAMES_SETTINGS` is true a refusal need not name a file; `SPACE` is more address space than others get, for libraries
that reserve what they never hold.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import benchmarks, data, model, parquet, recorded, report, resume, toml

KINDS = {
    "data": data,
    "parquet": parquet,
    "recorded": recorded,
    "benchmarks": benchmarks,
    "toml": toml,
    "resume": resume,
    "report": report,
    "model": model,
}
"""The kinds of bad input by name."""

SECONDS, WAIT = 10, 30
"""Seconds that a command may work, and that may pass until it is over, on a machine that does other things too."""

MEMORY = 2 << 30
"""Bytes that a command may hold."""

_SHARED = ("longrm.cli.audit", "longrm.cli.evaluate", "longrm.cli.score", "longrm.cli.synthesize", "longrm.auditing",
           "longrm.evaluation.evaluation_run", "longrm.scoring.scored_file", "longrm.reward_models.recorded",
           "longrm.reward_models.baselines", "longrm.synthesis.recipes.benchmark")  # fmt: skip

_BLAMES_ROW = re.compile(r", (line|row) \d+")
_WHOLE_ROW = re.compile(
    r"(line|row) \d+(?: is damaged)?(, field '|: (not valid JSON|not UTF-8|not a JSON object|nested more"
    r"|the key .* stands twice|holds half of a surrogate|longer than|the columns \(|a whole number of|holds more"
    r"|holds [\d,]+ cells))"
)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one command line."""

    status: int
    late: bool
    peak: int
    output: str
    errors: str


class Worker:
    """A process that runs command lines, each in a child of its own."""

    def __init__(self, *preload: str) -> None:
        # -P: the modules beside the script have names that other packages have, too.
        command = [sys.executable, "-P", str(Path(__file__).with_name("worker.py")), *_SHARED, *preload]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert json.loads(self._process.stdout.readline()) == {"ready": True}

    def run(
        self,
        args: list[str],
        folder: Path,
        *,
        control: str = "",
        seconds: int = SECONDS,
        wait: float = WAIT,
        space: int = 2 * MEMORY,
    ) -> Result:
        """Runs one command line in a folder."""
        with tempfile.TemporaryDirectory(prefix="longrm-fuzz-") as scratch:
            told = {
                "stdout": f"{scratch}/out",
                "stderr": f"{scratch}/err",
                "folder": str(folder),
                "args": args,
            }
            # Twice what is allowed may be asked for, so that what is too much can be told from what is not to be had.
            limits = {"bytes": space, "seconds": seconds, "wait": wait, "control": control}
            print(json.dumps(told | limits), file=self._process.stdin, flush=True)
            answer = json.loads(self._process.stdout.readline())
            read = [
                Path(told[name]).read_bytes().decode(errors="backslashreplace")
                for name in ("stdout", "stderr")
            ]
        return Result(**answer, output=read[0], errors=read[1])

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def worker_for(kind: str) -> Iterator[Worker]:
    """A worker that has imported what a kind needs."""
    worker = Worker(*getattr(KINDS[kind], "PRELOAD", ()))
    try:
        yield worker
    finally:
        worker.close()


def fault_in(result: Result, names: set[str]) -> str:
    """What is wrong with how a command ended; empty where nothing is.

    Args:
        result: How it ended.
        names: Names of files and folders, one of which a refusal must hold; any will do where there are none.
    """
    said = result.output + result.errors
    if result.late:
        return "waited without end"
    if result.status < 0:
        return f"was ended by signal {-result.status}" + (
            " (it worked too long)" if result.status == -24 else ""
        )
    if "Traceback (most recent call last)" in said or "Exception ignored" in said:
        return "a traceback"
    if result.peak > MEMORY:
        return f"held {result.peak:,} bytes"
    if result.status not in (0, 1, 2):
        return f"exit status {result.status}"
    if "held in memory" in said or "malloc of size" in said or "Unable to allocate" in said:
        return "asked for more memory than it may have"
    return _fault_in_refusal(result, names) if result.status else ""


def _fault_in_refusal(result: Result, names: set[str]) -> str:
    lines = [line for line in result.errors.splitlines() if line.startswith("longrm: ")]
    if len(lines) != 1 or not lines[0].startswith("longrm: error: "):
        return f"{len(lines)} lines of 'longrm: error: ...'"
    if not result.errors.rstrip("\n").endswith(lines[0]):
        return "something after the refusal"
    if len(lines[0]) > 2000:
        return f"a refusal of {len(lines[0])} characters"
    if names and not any(name in lines[0] for name in names):
        return "a refusal that names no file"
    if _BLAMES_ROW.search(lines[0]) and not _WHOLE_ROW.search(lines[0]):
        return "a refusal that names a row, but no field"
    return ""


def names_in(folder: Path) -> set[str]:
    """The names of a folder and of all that lies in it: of each the longest part that any message can show."""
    found = {entry for _, folders, files in os.walk(folder) for entry in (*folders, *files)}
    return {max(re.findall(r"[ -~]+", name), key=len, default=name) for name in (folder.name, *found)}


@dataclass
class Tally:
    """Counts of one kind."""

    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        """In one line."""
        counted = "".join(f"{self.counts[name]:>6} {name}" for name in ("inputs", "accepted", "refused"))
        return f"{self.kind:<12}{counted}{len(self.faults):>6} faults"


def attempt(worker: Worker, kind: str, seed: int | str, folder: Path, tally: Tally) -> None:
    """Makes one bad input, runs it and counts what came of it.

    Args:
        worker: Runs it.
        kind: A key of `KINDS`.
        seed: Of a random input, or the name of one of the kind's corpus.
        folder: An empty folder for it.
        tally: Counts it.
    """
    module = KINDS[kind]
    args = (
        corpus_of(kind)[seed](folder) if isinstance(seed, str) else module.make(random.Random(seed), folder)
    )
    names = set() if getattr(module, "NAMES_SETTINGS", False) else names_in(folder)
    result = worker.run(args, folder, space=getattr(module, "SPACE", 2 * MEMORY))
    fault = fault_in(result, names)
    tally.counts["inputs"] += 1
    if fault:
        said = result.errors[-1500:]
        tally.faults.append(f"{kind} {seed}: longrm {' '.join(map(ascii, args))}: {fault}\n{said}")
    else:
        tally.counts["refused" if result.status else "accepted"] += 1


def corpus_of(kind: str, *, large: bool = True) -> dict[str, Callable[[Path], list[str]]]:
    """The inputs of a kind that were once a fault, by name; with those that take long to make."""
    module = KINDS[kind]
    return getattr(module, "CORPUS", {}) | (getattr(module, "LARGE", {}) if large else {})


@contextmanager
def empty_folder() -> Iterator[Path]:
    """A folder that is gone afterwards, whatever has come to lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="longrm-fuzz-"))
    try:
        yield folder
    finally:
        shutil.rmtree(os.fsencode(folder), ignore_errors=True)
