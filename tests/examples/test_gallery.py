"""The stories of examples/: in a small form, and as they are under the `full` mark."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import longrm
from longrm.cli.commands import cli

pytestmark = pytest.mark.full

FOLDER = Path(__file__).parents[2] / "examples"
STORIES = sorted(file.stem for file in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_short(name):
    lines = (FOLDER / f"{name}.py").read_text().splitlines()
    assert len(lines) <= 60
    assert f"python examples/{name}.py" in lines


def test_the_readme_shows_every_story():
    page = (FOLDER / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+)\.py\)", page)) == set(STORIES)
    assert len(page.split()) <= 250


@pytest.fixture
def story(tmp_path, monkeypatch, capfd):
    """Runs a story in this process, with other constants and two steps of each training; returns what it printed."""

    def command(words, check):
        arguments = words[words.index("longrm") + 1 :]
        if arguments[0] == "train":
            arguments += ["--set", "optimizer.max_steps=2"]
        cli.main(arguments, standalone_mode=False)

    def run(name, **constants):
        source = (FOLDER / f"{name}.py").read_text()
        for constant, value in constants.items():
            source, found = re.subn(
                rf"^{constant} = .*", f"{constant} = {value!r}", source, flags=re.MULTILINE
            )
            assert found == 1, f"{name} has no constant {constant}"
        exec(compile(source, name, "exec"), {"__file__": str(FOLDER / f"{name}.py")})
        return capfd.readouterr().out

    def train(*words, **settings):
        return train_fully(*words, **settings | {"max_steps": 2})

    train_fully = longrm.train
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", command)
    monkeypatch.setattr(longrm, "train", train, raising=False)
    return run


def numbers(line):
    return [float(number) for number in re.findall(r"[-+]?\d+\.?\d*", line)]


def table(out, head):
    """The numbers of each line of the table below a heading."""
    lines = out[out.index(head) :].splitlines()[1:]
    return [numbers(line) for line in lines[: lines.index("")]]


def test_judge_my_rm(story):
    out = story("judge_my_rm", LENGTHS=[64, 128], N=8)
    rows = table(out, "tokens  accuracy")
    assert [row[0] for row in rows] == [64, 128]
    assert all(low <= accuracy <= high for _, accuracy, low, high in rows)
    worst = [
        dict(re.findall(r"^  (chosen|rejected) +(\S+)", part, re.MULTILINE))
        for part in out.split("margin")[1:]
    ]
    assert len(worst) == 3
    margins = [float(scores["chosen"]) - float(scores["rejected"]) for scores in worst]
    assert margins == sorted(margins)


def test_compare_two_rms(story):
    out = story("compare_two_rms", LENGTHS=[64, 128], N=8)
    rows = table(out, "tokens    short")
    assert [row[0] for row in rows] == [64, 128]
    assert all(abs(second - first - gain) < 0.2 for _, first, second, gain, *_ in rows)
    assert "on the same 16 comparisons" in out


def test_pairs_from_my_texts(story):
    out = story("pairs_from_my_texts")
    assert "20 rows from 24 inputs" in out
    rules = dict(re.findall(r"^(\w+) +(\d+)% of 20 pairs", out, re.MULTILINE))
    assert rules.keys() == {"longest", "overlap"}
    assert all(25 <= int(share) <= 75 for share in rules.values()), "no rule decides the pairs"


# TRL 1.16 uses names that transformers has renamed.
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
def test_grpo_long_rm(story):
    out = story("grpo_long_rm", STEPS=4)
    assert [row[0] for row in table(out, "steps  reward")] == [1, 2, 3, 4]
    assert Path("runs/examples/grpo_long_rm/checkpoint-4/model.safetensors").is_file()


def test_train_judge_by_rl(story, monkeypatch):
    # Two steps make no judge that answers, so simulated ones are measured.
    judges, probe = ["simulated:0.4", "simulated:0"], longrm.probe
    monkeypatch.setattr(
        longrm, "probe", lambda model, *rest, **options: probe(judges.pop(0), *rest, **options)
    )
    out = story("train_judge_by_rl", STEPS=2, N=16)
    (before, _), (after, consistent) = table(out, "right  same verdict")
    assert before < after == consistent == 100
    assert "on the same 48 comparisons" in out
    assert Path("runs/examples/train_judge_by_rl/training/model/model.safetensors").is_file()


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Runs a story as users do, and returns what it printed. All share a folder, and so their tiny models."""
    folder = tmp_path_factory.mktemp("stories")

    def run(name):
        command = [sys.executable, str(FOLDER / f"{name}.py")]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_tiny_models_differ_beyond_128_tokens(printed):
    accuracy = {row[0]: row[1] for row in table(printed("judge_my_rm"), "tokens  accuracy")}
    assert accuracy[128] > 90
    assert accuracy[1024] < 70
    out = printed("compare_two_rms")
    assert "At 128 tokens choose" not in out
    assert "At 256 tokens choose wide." in out


def test_grpo_raises_reward_and_truth(printed):
    first, *_, last = table(printed("grpo_long_rm"), "steps  reward")
    assert last[1] > first[1] + 1
    assert last[2] > first[2] + 10


def test_reinforcement_makes_a_better_judge(printed):
    (before, _), (after, _) = table(printed("train_judge_by_rl"), "right  same verdict")
    assert after > before + 5
