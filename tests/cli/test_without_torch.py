"""Help, plans and invalid settings are answered before torch or transformers is imported."""

import json
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

import longrm
from longrm import errors
from longrm.errors import MissingPackageError
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.worlds import words_tokenizer

# Runs commands one after another in one interpreter; a torch import by any of them would show at the end.
PROGRAM = """
import json, sys
from longrm.cli import commands
for arguments, status in json.loads(sys.stdin.read()):
    sys.argv = ["longrm", *arguments]
    try:
        commands.run_command_line()
    except SystemExit as ended:
        assert ended.code == status, (arguments, ended.code)
    # A plan of generated rows renders them with transformers' chat templates, which need no torch.
    heavy = {"torch", "jaxtyping"} if arguments[0] == "plan" else {"torch", "jaxtyping", "transformers"}
    assert not heavy & {*sys.modules}, arguments
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
max_steps = 4
"""


def test_plans_and_invalid_settings_need_no_torch(tmp_path, pairs):
    for name in ("sft", "preference", "bradley_terry"):
        (tmp_path / f"{name}.toml").write_text(WORLD.replace("OBJECTIVE", name))
    typo = ["train", "sft", "--config", "sft.toml", "--set", "optimizer.stepz=1", "--out", "x"]
    evaluate = ["evaluate", "--model", "baseline:longest", "--bench", f"file:{pairs}", "--out", "run"]
    cases = [
        (typo, 1),
        (["train", "sft", "--config", "bradley_terry.toml", "--out", "x"], 1),
        (
            [
                "train",
                "preference",
                "--config",
                "preference.toml",
                "--set",
                "loss.loss_type=simp",
                "--out",
                "x",
            ],
            1,
        ),
        (["plan", "sft.toml", "--set", "model.lorra.rank=1"], 1),
        (evaluate, 0),
        (["plan", str(RECIPES / "scale/8-a100.toml"), "--device", "a100-80gb", "--devices", "8"], 0),
        (["plan", "sft.toml"], 0),
        (["plan", "bradley_terry.toml"], 0),
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(cases), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    for line, named in zip(
        errors, ("optimizer.max_steps", "longrm train bradley-terry", "'simpo'", "lora"), strict=True
    ):
        assert named in line


def test_without_torch_a_local_model_names_the_extra_and_a_baseline_loads(tmp_path, monkeypatch):
    save(new_scorer(ModelShape(layers=1), words_tokenizer(), seed=0), tmp_path / "model")
    monkeypatch.delitem(sys.modules, "longrm.reward_models.packed", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match=r"pip install '\.\[local\]'"):
        longrm.load(str(tmp_path / "model"))
    assert longrm.load("baseline:longest").score("Q", ["a", "aa"]) == [1, 2]


def test_every_extra_of_the_package_is_known():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert errors._EXTRAS.keys() | {"all"} == project["optional-dependencies"].keys()
