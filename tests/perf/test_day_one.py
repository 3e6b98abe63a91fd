"""perf/gpu/day_one.sh on a CPU, so that the first attempt on a GPU works."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


def test_a_dry_run_measures_every_part(tmp_path):
    done = subprocess.run(
        ["bash", ROOT / "perf/gpu/day_one.sh", "--dry", "--out", tmp_path],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "day_one.jsonl").read_text().splitlines()]
    assert [line["part"] for line in lines if "failed" in line] == []
    parts = {line["part"] for line in lines}
    assert parts == {
        "circumstances",
        "kernel",
        "scores",
        "ratio",
        "whole",
        "lengths",
        "serving",
        "generation",
        "profile",
        "exchange",
        "sharded",
        "killed process",
        "checkpoint",
    }
    for line in lines:
        if line["part"] == "kernel":
            assert max(line[name] for name in ("output", "query", "key", "value")) < 2e-2
        if line["part"] == "sharded":
            assert max(line["loss_off_all"], line["loss_off_killed"]) < 1e-4
        if line["part"] == "scores":
            assert line["largest_difference_over_deviation"] < 0.1
    page = (tmp_path / "docs/scale.md").read_text()
    assert "Not yet measured." not in page.partition("<!-- day one -->")[2].partition("<!-- end")[0]
    # A CPU is no device that the planner knows.
    name = "src/longrm/training/plan/utilization.toml"
    assert (tmp_path / name).read_text() == (ROOT / name).read_text()


def test_what_is_measured_replaces_what_was_assumed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "perf/gpu")
    day_one = importlib.import_module("day_one")
    for name in (day_one.PAGE, day_one.UTILIZATION):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    around = {"part": "circumstances", "device": "NVIDIA H100 80GB HBM3", "date": "2030-01-02"}
    lines = [
        around | {"versions": {"torch": "2.13"}},
        {"part": "whole", "kernel": "FA3", "share_of_peak": 0.42},
    ]
    day_one.rewrite(lines, tmp_path)
    day_one.rewrite(lines, tmp_path)  # a second day
    page = (tmp_path / day_one.PAGE).read_text()
    assert page.count("NVIDIA H100") == 1
    assert page.count("| whole | kernel FA3, share_of_peak 0.42 |") == 1
    assert page.partition(day_one.BEGIN)[0] == (ROOT / day_one.PAGE).read_text().partition(day_one.BEGIN)[0]
    found = tomllib.loads((tmp_path / day_one.UTILIZATION).read_text())
    assert found["h100-80gb"] == {"FA2": 0.31, "FA3": 0.42}
    assert found["a100-80gb"] == {"FA2": 0.5}
    for name in ("day_one", "step", "arms", "models"):
        sys.modules.pop(name, None)
