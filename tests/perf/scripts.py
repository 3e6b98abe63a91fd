"""Runs the scripts of perf/ and experiments/."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_script(folder, script, *arguments):
    """The JSON lines that a script prints; anything else on stdout fails the test."""
    command = [sys.executable, str(ROOT / folder / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
