"""The scripts of perf/: what they print is what they measured, whatever libraries say meanwhile."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PERF = Path(__file__).parents[1] / "perf"
TINY = "--prompt 64 --response 8 --layers 1 --hidden 32 --heads 2 --kv-heads 2 --intermediate 48 --vocabulary 128"


@pytest.fixture(scope="module")
def measuring():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PERF)
        yield importlib.import_module("measuring")
    del sys.modules["measuring"]


def test_a_figure_is_handed_over_past_what_a_library_prints(measuring, tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(
        "from measuring import hand_over\nprint('12 a library speaks')\nhand_over(7)\nprint('13')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PERF), *sys.path]))
    assert measuring.figure_of([str(script)]) == 7
    script.write_text("raise SystemExit(3)")
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        measuring.figure_of([str(script)])


def test_a_script_that_is_run_by_hand_prints_its_figure(measuring, monkeypatch, capsys):
    monkeypatch.delenv("LONGRM_PERF_PIPE", raising=False)
    measuring.hand_over(7)
    assert capsys.readouterr().out == "7\n"


@pytest.mark.full
@pytest.mark.parametrize("against", ["separate", "trl"])
def test_a_training_step_is_measured_and_only_json_is_printed(against):
    arguments = [*TINY.split(), "--repeats", "1", "--against", against, "--json"]
    done = subprocess.run(
        [sys.executable, str(PERF / "train_step.py"), *arguments], capture_output=True, text=True, timeout=300
    )
    (line,) = done.stdout.splitlines() or [done.stderr]
    found = json.loads(line)
    assert found["memory_bytes"].keys() >= {"shared", found["baseline"]}
    assert found["seconds"]["shared"] > 0


@pytest.mark.full
def test_the_memory_of_attention_scores_is_measured_length_by_length():
    arguments = [*TINY.split(), "--longest", "1024", "--json"]
    done = subprocess.run(
        [sys.executable, str(PERF / "attention_scores.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["memory_bytes"]
    assert 0 < found["rows"]["1024"] < found["full"]["1024"]
    assert found["embeddings"].keys() == {"1024"}
