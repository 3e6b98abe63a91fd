"""The tutorials' commands and the notebook, run as they are printed."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from longrm.data import write
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.worlds import WorldPlan, generate, words_tokenizer

pytestmark = pytest.mark.full
TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"


def commands(page):
    text = (TUTORIALS / page).read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.S)
    found = [
        shlex.split(line) for block in blocks for line in block.splitlines() if line.startswith("longrm ")
    ]
    assert len(found) >= 4, page
    return [words[1:] for words in found]


def run(*arguments):
    done = subprocess.run([sys.executable, "-m", "longrm", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


@pytest.fixture
def desk(tmp_path, monkeypatch):
    for seed, name in enumerate(("MODEL", "OTHER")):
        shape = ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8)
        save(new_scorer(shape, words_tokenizer(), seed=seed), tmp_path / name)
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64), 12, words_tokenizer()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_that_measure_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in commands("measure.md"):
        if words[0] == "train":
            words += ["--set", "optimizer.steps=2"]
        run(*(("8" if words[at - 1] == "--n" else word) for at, word in enumerate(words)))
    assert "<svg" in (tmp_path / "probe.html").read_text()
    (python,) = re.findall(r"```python\n(.*?)```", (TUTORIALS / "measure.md").read_text(), flags=re.S)
    exec(compile(python, "measure.md", "exec"), {})


def test_the_commands_that_train_work(desk):
    trained = 0
    for words in commands("train.md"):
        if "mine.toml" in words:
            continue  # its model comes from the Hub
        if words[0] == "train":
            trained += 1
            words += ["--set", "optimizer.steps=2"]
        run(*(("8" if words[at - 1] == "--n" else word) for at, word in enumerate(words)))
    assert trained == 3
    assert (desk / "trained.html").exists()


def test_the_notebook_runs(desk):
    notebook = json.loads((TUTORIALS / "measure.ipynb").read_text())
    names = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "measure.ipynb", "exec"), names)
    assert names["items"].shape[0] == 384
    assert set(names["items"]["length"]) == {256, 512, 1024}
    assert 0 < names["items"]["correct"].mean() < 1
