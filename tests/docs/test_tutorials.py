"""The tutorials' commands and the notebook, run as they are printed."""

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from longrm.cli.commands import cli
from longrm.data import read, write
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.training.settings import TrainingSettings
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_verdict_writer
from tests.serving.processes import running

pytestmark = pytest.mark.full
TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"


def run(*arguments):
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return done.stdout


def follow(page, change=lambda words: words):
    """Runs a page from top to bottom in the current folder.

    TOML blocks are saved as the file that their first line names. `change` gets the words of a command and returns
    those to run, or None. Returns the outputs that the page shows, each with the output of its commands.
    """
    printed, outputs, ran = "", [], 0
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", (TUTORIALS / page).read_text(), re.M | re.S):
        match language:
            case "sh":
                printed = ""
                for line in text.replace("\\\n", " ").splitlines():
                    if not line.startswith("longrm "):
                        subprocess.run(line, shell=True, check=True)
                        continue
                    ran += 1
                    if words := change(shlex.split(line)[1:]):
                        printed += run(*words)
            case "python":
                exec(compile(text, page, "exec"), {})
            case "toml":
                Path(text.split()[1]).write_text(text)
            case "text":
                outputs.append((text, printed))
    assert ran >= 4, page
    return outputs


@pytest.fixture
def desk(tmp_path, monkeypatch):
    for seed, name in enumerate(("MODEL", "OTHER")):
        shape = ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8)
        save(new_scorer(shape, words_tokenizer(), seed=seed), tmp_path / name)
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64), 12, words_tokenizer()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_that_measure_work(desk):
    def shorter(words):
        if words[0] == "train":
            words = [*words, "--set", "optimizer.max_steps=2"]
        return ["8" if words[at - 1] == "--n" else word for at, word in enumerate(words)]

    follow("measure.md", shorter)
    assert "<svg" in (desk / "probe.html").read_text()


def test_the_commands_that_train_work(desk):
    trained = 0

    def shorter(words):
        nonlocal trained
        if "mine.toml" in words:
            # Its model comes from the Hub.
            shutil.copytree("runs/short/model", "runs/mine/model", dirs_exist_ok=True)
            shutil.copy("pairs.jsonl", "held-out.jsonl")
            return None
        if words[0] == "train":
            trained += 1
            words = [*words, "--set", "optimizer.max_steps=2"]
        return ["8" if words[at - 1] == "--n" else word for at, word in enumerate(words)]

    follow("train.md", shorter)
    assert trained == 3
    assert (desk / "trained.html").exists()
    assert TrainingSettings.resolve(desk / "mine.toml").objective == "bradley_terry"


def test_the_commands_that_train_a_judge_work(desk):
    small = {"64": "8", "240": "8", "128,256,512,1k,2k": "64"}

    def smaller(words):
        if "runs/before" in words:  # two steps of imitation write no verdicts yet
            shutil.rmtree("runs/judge-short/model")
            make_verdict_writer(desk / "runs/judge-short/model")
        if "MODEL" in words:  # from the Hub
            return None
        if words[0] == "train":
            words = [*words, "--set", "optimizer.max_steps=2"]
        return [small.get(word, word) for word in words]

    *_, (shown, printed) = follow("judge.md", smaller)
    assert re.sub(r"\d+", "N", shown) in re.sub(r"\d+", "N", printed)
    assert (desk / "runs/grpo-own/model").is_dir()


def test_the_commands_that_make_data_print_what_the_page_shows(desk):
    outputs = follow("data.md")
    assert len(outputs) == 3
    for shown, printed in outputs:
        missing = {*shown.splitlines()} - {*printed.splitlines(), "..."}
        assert not missing
    assert read(desk / "runs/pairs/rows").format == "longrm"


def test_the_notebook_runs(desk):
    notebook = json.loads((TUTORIALS / "measure.ipynb").read_text())
    names = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "measure.ipynb", "exec"), names)
    assert names["items"].shape[0] == 384
    assert set(names["items"]["length"]) == {256, 512, 1024}
    assert 0 < names["items"]["correct"].mean() < 1


def test_the_commands_that_reward_work(desk):
    page = (TUTORIALS / "reward.md").read_text()
    commands = "".join(re.findall(r"```sh\n(.*?)```", page, flags=re.S)).splitlines()
    assert len(commands) == 4
    for line in commands:
        words = shlex.split(line.replace("2560", "320"))[1:]
        run(*words, *(["--set", "optimizer.max_steps=2"] if words[0] == "train" else []))
    grpo, both = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    shorter = grpo.replace("max_steps=40", "max_steps=5")
    assert shorter != grpo
    Path("grpo.py").write_text(shorter)  # its libraries warn, which is an error here
    done = subprocess.run([sys.executable, "grpo.py"], capture_output=True, text=True)
    assert re.search(r"^ +5 +-?\d+\.\d\d +\d+%$", done.stdout, flags=re.M), done.stderr
    server = ["-m", "longrm", "serve", "--model", "runs/rm/model", "--port", "0"]
    with running(server) as (_, address), contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(both.replace("http://127.0.0.1:8000", address), "reward.md", "exec"), {})
    here, there = map(json.loads, out.getvalue().splitlines())
    assert here == pytest.approx(there, abs=2e-3)
