"""The README's commands and code, run as they are."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import longrm
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.training.settings import TrainingSettings
from longrm.worlds import words_tokenizer

pytestmark = pytest.mark.full

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def percentages(text):
    """Accuracy by length in the table of `longrm probe`."""
    rows = re.findall(r"^ +(all|\d+) +([\d.]+) \[", text, flags=re.M)
    return {length: float(value) for length, value in rows}


def test_the_python_example_prints_the_shown_kind_of_result(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(
        new_scorer(ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8), words_tokenizer(), seed=0),
        tmp_path / "runs/demo/training/long/model",
    )
    *_, example = blocks("python")
    exec(compile(example, "README.md", "exec"), {})
    scores = eval(capsys.readouterr().out)
    (shown,) = re.findall(r"^# about (\[.*\])$", example, flags=re.M)
    assert len(scores) == len(eval(shown)) == 2
    assert all(isinstance(score, float) for score in scores)


def test_the_objects_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    save(
        new_scorer(ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8), words_tokenizer(), seed=0), folder
    )
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["Corimo holds bucket.", "Tanelo holds turtle."]
    rows = [{"prompt": text, "chosen": text, "rejected": texts[0]} for text in texts[1:] * 2]
    names = {"longrm": longrm, "model": model, "tokenizer": tokenizer, "rows": rows}
    exec(compile(blocks("python")[1], "README.md", "exec"), names)
    assert len(names["scores"]) == 2
    assert names["run"].summary.metrics.overall["pair_accuracy"].n == 2
    assert Path(names["trained"].model).is_dir()


def test_the_numbers_of_the_trainers_are_measured():
    lines = (Path(__file__).parents[1] / "perf/results/drop_in.jsonl").read_text().splitlines()
    tiny = [one for one in map(json.loads, lines) if "layers" in one.get("model", "")]
    results, sizes = {(one["case"], one["prompt"]): one for one in tiny}, (1024, 4096, 8192)
    table = re.findall(r"^\| .+? \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+)% \|$", README, flags=re.M)
    assert table == [
        (
            *(f"{results[case, size]['speedup']:.1f}" for size in sizes),
            f"{100 * results[case, 8192]['memory_ratio']:.0f}",
        )
        for case in ("reward", "reward-unequal", "dpo", "grpo")
    ]


def test_the_numbers_of_the_speed_table_are_measured():
    results = Path(__file__).parents[1] / "perf/results"
    steps, updates = (
        [json.loads(line) for line in (results / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train_step_trl", "grpo_update")
    )
    (pair,) = (
        one
        for one in steps
        if one["objective"] == "bradley_terry" and one["unequal"] == 16 and one["rejected"] == 1
    )
    (simpo,) = (one for one in steps if one["objective"] == "simpo" and one["vocabulary"] == 32768)
    (update,) = (one for one in updates if one["part"] == "update" and one["generations"] == 8)
    measured = [
        [pair["speedup_trl"], pair["memory_ratio_trl"]],
        [simpo["speedup_trl"], simpo["memory_ratio_trl"]],
        [update["speedup"]["1"], update["memory_ratio"]["trl"]],
    ]
    table = re.findall(r"^\| [^|]+ \| ([\d.]+)[^|]* \| (\d+)% \|$", README, flags=re.M)
    assert table == [(f"{times:.1f}", f"{100 * memory:.0f}") for times, memory in measured]


def test_the_commands_print_what_is_shown(tmp_path, monkeypatch):
    """Trains the demo's short model, then runs the console blocks in their order."""
    monkeypatch.chdir(tmp_path)
    run("longrm train bradley-terry --config demo/short --out runs/short-training")
    shutil.copytree("runs/short-training/model", "runs/demo/training/short/model")
    for block in blocks("console"):
        steps = re.split(r"^\$ (.+)\n", block, flags=re.M)[1:]
        for command, shown in zip(steps[::2], steps[1::2], strict=True):
            printed = run(command)
            for length, accuracy in percentages(shown).items():
                assert percentages(printed)[length] == pytest.approx(accuracy, abs=15), (command, length)
            for word in re.findall(r"[A-Za-z]{3,}", shown):
                assert word in printed, (command, word)
    assert Path("short.html").stat().st_size > 0


def run(command):
    done = subprocess.run(
        [sys.executable, "-m", "longrm", *shlex.split(command)[1:]], capture_output=True, text=True
    )
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def test_the_arms_of_the_demo_differ_in_their_lengths_alone():
    folder = Path(__file__).parents[1] / "src/longrm/recipes/demo"
    long, control = (
        TrainingSettings.resolve(folder / f"{name}.toml", {"model.path": "short"})
        for name in ("long", "control")
    )
    assert long.curriculum != control.curriculum
    assert long.model_copy(update={"curriculum": control.curriculum}) == control
