"""The wheel is complete, and its base install runs in a fresh environment, as with pipx."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import longrm

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]


def run(*command, cwd):
    # The checkout must not be found instead of the installed package.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def test_the_wheel_runs_in_a_fresh_environment(tmp_path):
    quiet = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    run(sys.executable, *quiet, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"longrm-{longrm.__version__}-")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("longrm/")}
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/longrm").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert packed == source
    assert {"longrm/py.typed", "longrm/recipes/demo/short.toml", "longrm/runs/summary.schema.json"} <= packed

    venv.create(tmp_path / "venv", with_pip=True)
    bin_ = tmp_path / "venv/bin"
    run(bin_ / "python", *quiet, "install", "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    assert run(bin_ / "longrm", "--version", cwd=tmp_path) == f"longrm, version {longrm.__version__}\n"
    world = ("world", "records", "--length", 256, "--n", 20, "--out", "pairs.jsonl")
    assert "Wrote 20 comparisons" in run(bin_ / "longrm", *world, cwd=tmp_path)
    evaluate = (
        "evaluate",
        "--model",
        "baseline:overlap",
        "--bench",
        "file:pairs.jsonl",
        "--out",
        "run",
        "--json",
    )
    summary = json.loads(run(bin_ / "longrm", *evaluate, cwd=tmp_path))
    assert summary["counts"]["outcomes"]["answered"] == 20
    found = run(
        bin_ / "python", "-c", "from importlib.util import find_spec; print(find_spec('torch'))", cwd=tmp_path
    )
    assert found == "None\n"  # the base install has no torch
