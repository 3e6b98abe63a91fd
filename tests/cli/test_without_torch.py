"""Help, plans and refused settings are answered before torch or transformers is imported."""

import json
import subprocess
import sys
from importlib.resources import files

import pytest

PROGRAM = """
import atexit, json, sys
sys.argv[0] = "longrm"
atexit.register(lambda: print(json.dumps(sorted({"torch", "transformers", "jaxtyping"} & {*sys.modules}))))
from longrm.cli.main import main
main()
"""
RECIPES = files("longrm") / "recipes"
WORLD = """
objective = "OBJECTIVE"
[model.new]
layers = 2
[data.world]
name = "records"
[curriculum]
lengths = [64, 128]
[optimizer]
steps = 4
"""
PLANNED = """
objective = "sft"
[model]
path = "nowhere/at-all"
[data]
path = "nowhere.jsonl"
[plan]
model = {layers = 2, hidden = 64, heads = 4, kv_heads = 2, head_dim = 16, intermediate = 128, vocabulary = 1000}
rows = [{rows = 10, prompt = 100, response = 10}]
"""


@pytest.fixture
def longrm(tmp_path):
    for name in ("sft", "preference", "bradley_terry"):
        (tmp_path / f"{name}.toml").write_text(WORLD.replace("OBJECTIVE", name))
    (tmp_path / "planned.toml").write_text(PLANNED)

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout, done.stderr

    return run


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--help"),
        ("train", "sft", "--help"),
        ("train", "bradley-terry", "--help"),
        ("plan", "--help"),
        ("plan", "planned.toml", "--device", "h100-80gb"),
        ("plan", "sft.toml"),
        ("plan", "bradley_terry.toml"),
        ("plan", str(RECIPES / "paper/llama-3.1-8b/logo.toml"), "--device", "h100-80gb"),
        ("plan", str(RECIPES / "scale/8-a100.toml"), "--device", "a100-80gb", "--devices", "8"),
    ],
)
def test_answers_need_no_torch(longrm, arguments):
    status, imported, shown, _ = longrm(*arguments)
    assert status == 0
    assert len(shown.splitlines()) > 5
    assert imported == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "sft", "--config", "sft.toml", "--set", "optimizer.stepz=1", "--out", "x"), "'steps'?"),
        (("train", "sft", "--config", "bradley_terry.toml", "--out", "x"), "longrm train bradley-terry"),
        (
            ("train", "preference", "--config", "preference.toml", "--set", "loss.kind=simp", "--out", "x"),
            "did you mean 'simpo'?",
        ),
        (("plan", "sft.toml", "--set", "model.lorra.rank=1"), "'lora'?"),
    ],
)
def test_wrong_settings_are_refused_without_torch(longrm, arguments, message):
    status, imported, _, error = longrm(*arguments)
    assert status == 1
    assert message in error
    assert imported == []


def test_a_training_imports_torch(longrm):
    _, imported, _, _ = longrm(
        "train", "sft", "--config", "sft.toml", "--set", "report_to=['none']", "--out", "x"
    )
    assert imported == ["jaxtyping", "torch", "transformers"]
