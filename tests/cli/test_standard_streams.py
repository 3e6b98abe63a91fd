"""`-` in place of files: the same rows as with files, and nothing else on standard output."""

import json
import subprocess
import sys

import pytest

from longrm.data import write
from longrm.worlds import WorldPlan, generate, words_tokenizer

MODEL = ["--model", "baseline:overlap"]


def run(*arguments, rows=None):
    command = [sys.executable, "-m", "longrm", *map(str, arguments)]
    return subprocess.run(command, input=rows, capture_output=True)


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    write(path, generate(WorldPlan("records", 64), 5, words_tokenizer()))
    return path


@pytest.mark.parametrize(
    "command", [["score"], ["rank", "--best", "1"], ["filter", "--max-margin", "1000"]], ids=lambda c: c[0]
)
def test_streams_hold_what_files_hold(pairs, tmp_path, command):
    out = tmp_path / "out.jsonl"
    assert run(*command, *MODEL, "--data", pairs, "--out", out).returncode == 0
    piped = run(*command, *MODEL, "--data", "-", "--out", "-", rows=pairs.read_bytes())
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == out.read_bytes()
    assert len(piped.stdout.splitlines()) > 0
    assert b"Wrote" in piped.stderr
    assert b"to standard output" in piped.stderr


def test_commands_follow_each_other(pairs):
    scored = run("score", *MODEL, "--data", pairs, "--out", "-").stdout
    best = run("rank", "--best", "1", "--data", "-", "--out", "-", rows=scored)
    assert all("completion" in json.loads(line) for line in best.stdout.splitlines())


def test_no_row_is_an_error_that_prints_none(pairs):
    done = run("score", *MODEL, "--data", "-", "--out", "-", rows=b"")
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.count(b"\n") <= 2


def test_quiet_says_nothing_of_what_goes_well(pairs, tmp_path):
    loud = run("score", *MODEL, "--data", pairs, "--out", "-")
    quiet = run("--quiet", "score", *MODEL, "--data", pairs, "--out", "-")
    assert quiet.stdout == loud.stdout
    assert b"scoring" in loud.stderr
    assert b"scoring" not in quiet.stderr
    assert b"reading" not in quiet.stderr
    assert run("--quiet", "score", *MODEL, "--data", "nowhere", "--out", "-").stderr.count(b"\n") == 1
