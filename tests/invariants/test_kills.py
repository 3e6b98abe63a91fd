"""`kill -9` at many moments: what a killed process left is continued to the bytes of an uninterrupted run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from longrm.data import write
from longrm.modeling.loading import new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.worlds import WorldPlan, generate, words_tokenizer

LINES = {"evaluation": "judgments.jsonl", "training": "steps.jsonl"}


def start(arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "longrm", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def finish(arguments):
    process = start(arguments)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()


def kill_when(arguments, log: Path, lines: int) -> int:
    """Kills the command as soon as its log holds so many lines; returns how many it then held."""
    process = start(arguments)
    try:
        while process.poll() is None and count(log) < lines:
            os.sched_yield()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    return count(log)


def count(log: Path) -> int:
    """Lines of the log; none while it is absent, as when a training without a checkpoint begins again."""
    try:
        return log.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def files(folder: Path, names) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def comparisons(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    write(path, generate(WorldPlan("records", 64, per_group=1), 2000, words_tokenizer()))
    return path


def test_an_evaluation_killed_at_ten_moments_ends_equal(tmp_path, comparisons):
    arguments = ["evaluate", "--model", "baseline:random", "--bench", f"file:{comparisons}", "--out"]
    results = ("judgments.jsonl", "examples.jsonl", "summary.json")
    finish([*arguments, tmp_path / "whole"])
    cut = tmp_path / "cut"
    held = [kill_when([*arguments, cut], cut / LINES["evaluation"], 1 + 199 * moment) for moment in range(10)]
    assert held[0] >= 1
    assert sum(1 for n in held if 0 < n < 2000) >= 3, f"the kills came too late to mean anything: {held}"
    finish([*arguments, cut])
    assert files(cut, results) == files(tmp_path / "whole", results)


START = """
[model.new]
layers = 2
hidden = 16
heads = 2
head_dim = 8
"""
ADAPTERS = """
[model]
path = "{base}"
precision = "bfloat16"
lora.rank = 2
[memory]
tokens_per_forward = 256
"""
RECIPE = """
plateau_steps = 0
{start}
[data.world]
name = "records"
tokens_per_step = 512
responses_per_step = 8
[curriculum]
lengths = [64, 128]
[optimizer]
steps = 40
learning_rate = 1e-3
[checkpoint]
every = 4
"""
RESULTS = ("steps.jsonl", "contexts.jsonl", "summary.json")


MANY = [1, *range(5, 41, 4)]


@pytest.mark.parametrize(
    ("objective", "start", "moments"),
    [
        pytest.param("bradley-terry", START, [1, 17], id="full"),
        pytest.param("preference", ADAPTERS, [9], id="adapters"),
        pytest.param("bradley-terry", START, MANY, id="full-often", marks=pytest.mark.full),
        pytest.param("preference", ADAPTERS, MANY, id="adapters-often", marks=pytest.mark.full),
    ],
)
def test_a_training_killed_at_many_moments_ends_equal(tmp_path, objective, start, moments):
    """All weights in fp32; or adapters, in bf16, with steps of several parts."""
    shape = ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8)
    save(new_language_model(shape, words_tokenizer(), seed=0), tmp_path / "base")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(start=start.format(base=tmp_path / "base")))
    arguments = ["train", objective, "--config", recipe, "--out"]
    finish([*arguments, tmp_path / "whole"])
    cut = tmp_path / "cut"
    held = [kill_when([*arguments, cut], cut / LINES["training"], moment) for moment in moments]
    assert 1 <= held[0] < 40, f"the kills came too late to mean anything: {held}"
    finish([*arguments, cut])
    assert files(cut, RESULTS) == files(tmp_path / "whole", RESULTS)
    (weights,) = (path.name for path in (cut / "model").glob("*.safetensors"))
    assert files(cut / "model", [weights]) == files(tmp_path / "whole" / "model", [weights])
