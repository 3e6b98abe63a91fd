"""The README's commands and code, run as they are."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import longrm
from longrm.data import write
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.training.settings import TrainingSettings
from longrm.worlds import WorldPlan, generate, words_tokenizer

README = (Path(__file__).parents[1] / "README.md").read_text()


MODEL = "runs/demo/training/long/model"
SMALLER = {"longrm probe MODEL": f"longrm probe {MODEL} --n 8", "8k,32k,128k": "64,128"}
"""Placeholders in the README, and the arguments that replace them here."""


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def recipe(name):
    """The recipe that begins with its own name."""
    (found,) = (block for block in blocks("toml") if block.startswith(f"# {name}\n"))
    return found


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    """A folder with what the README assumes: the demo's model, preference data, and the recipes."""
    monkeypatch.chdir(tmp_path)
    save(
        new_scorer(ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8), words_tokenizer(), seed=0),
        tmp_path / "runs/demo/training/long/model",
    )
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64), 6, words_tokenizer()))
    for run in ("base", "trained"):
        longrm.evaluate("baseline:overlap", "file:pairs.jsonl", tmp_path / "runs" / run)
    (tmp_path / "stage1.toml").write_text(recipe("stage1.toml"))
    (tmp_path / "recipes").symlink_to(Path(__file__).parents[1] / "recipes")
    return tmp_path


def test_the_python_example_prints_two_scores(user_folder, capsys):
    (example,) = (block for block in blocks("python") if "model.score" in block)
    exec(compile(example, "README.md", "exec"), {})
    scores = eval(capsys.readouterr().out)
    assert len(scores) == 2
    assert all(isinstance(score, float) for score in scores)


@pytest.mark.full
def test_the_commands_work(user_folder, capsys):
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("longrm ")]
    assert {line.split()[1] for line in lines} == {
        "score", "rank", "filter", "evaluate", "report", "world", "train", "synthesize", "audit",
        "probe", "compare",
    }  # fmt: skip
    for line in lines:
        for there, here in SMALLER.items():
            line = line.replace(there, here)
        arguments = shlex.split(line)[1:]
        if arguments[0] == "train" or "FOLDER" in line:
            continue  # the model comes from the Hub, or the data from the reader
        done = subprocess.run([sys.executable, "-m", "longrm", *arguments], capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)
    for name in (
        "scored.jsonl",
        "best.jsonl",
        "best-and-worst.jsonl",
        "runs/pairs/summary.json",
        "mine.html",
        "records.jsonl",
        "audit.html",
    ):
        assert (user_folder / name).stat().st_size > 0
    (wrong,) = (block for block in blocks("python") if "read_run" in block)
    exec(compile(wrong, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert all(name in said.splitlines()[0] for name in ("id", "length", "depth", "margin", "reason"))
    assert len(said.splitlines()) > 10, "a model of random weights is wrong in many of 48"


def test_the_training_example_has_valid_settings(user_folder):
    (user_folder / "mine.toml").write_text(recipe("mine.toml"))
    settings = TrainingSettings.resolve(user_folder / "mine.toml")
    assert settings.optimizer.epochs == 1


def test_the_arms_of_the_demo_differ_in_their_lengths_alone():
    folder = Path(__file__).parents[1] / "src/longrm/recipes/demo"
    long, control = (
        TrainingSettings.resolve(folder / f"{name}.toml", {"model.path": "short"})
        for name in ("long", "control")
    )
    assert long.curriculum != control.curriculum
    assert long.model_copy(update={"curriculum": control.curriculum}) == control
