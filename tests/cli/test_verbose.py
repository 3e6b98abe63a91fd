"""What `longrm --verbose` says beyond the rest, and that it and `--quiet` exclude each other."""

import subprocess
import sys


def longrm(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "longrm", *map(str, arguments)], capture_output=True, text=True
    )


def test_an_error_of_a_user_has_its_traceback_if_asked_for(tmp_path):
    command = ["score", "--model", "baseline:longest", "--data", tmp_path / "none.jsonl", "--out", "o.jsonl"]
    plain, loud = longrm(*command), longrm("--verbose", *command)
    assert plain.returncode == loud.returncode == 1
    assert "Traceback" not in plain.stderr  # negative control
    assert len(plain.stderr.splitlines()) == 1
    assert "Traceback" in loud.stderr
    assert loud.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]


def test_quiet_and_verbose_are_refused_together():
    done = longrm("--quiet", "--verbose", "recipes")
    assert done.returncode == 2
    assert "--quiet and --verbose contradict each other" in done.stderr
    assert "Traceback" not in done.stderr
