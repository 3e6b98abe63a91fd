"""`perf/attribution.py` measures every arm, with its controls."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reward_models.tiny_models import make_scorer

SCRIPT = Path(__file__).parents[1] / "perf" / "attribution.py"


@pytest.mark.full
def test_every_arm_is_measured(tmp_path):
    make_scorer(tmp_path / "tiny")
    given = [
        str(tmp_path / "tiny"),
        "--lengths",
        "64",
        "--items",
        "2",
        "--controls",
        "--without-cache",
        "--json",
    ]
    done = subprocess.run([sys.executable, str(SCRIPT), *given], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["arm"].rpartition("/")[2] for line in found] == ["tiny", "untrained", "random head", "tiny"]
    assert [line["prefix_cache"] for line in found] == [True, True, True, False]
    with_cache, *_, without = found
    assert with_cache["shown"] == without["shown"]
    assert with_cache["tokens_computed"] < without["tokens_computed"]
    assert without["times_fewer_than_full_passes"] < with_cache["times_fewer_than_full_passes"]
