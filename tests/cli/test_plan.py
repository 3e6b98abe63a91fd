"""`longrm plan` as a user types it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from longrm.cli.commands import cli

RECIPE = """
objective = "preference"
[model]
path = "models/nowhere"
[data]
path = "data/nowhere.jsonl"
per_step = 4
[plan.model]
layers = 32
hidden = 4096
heads = 32
kv_heads = 8
head_dim = 128
intermediate = 14336
vocabulary = 128_256
[plan]
rows = [{rows = 100, prompt = 100_000, responses = 3, response = 500}]
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """A folder with the recipe, without its model and its data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "mine.toml").write_text(RECIPE)


def longrm(*arguments):
    return CliRunner().invoke(cli, ["plan", *arguments])


def test_a_plan_that_does_not_fit_lists_settings():
    done = longrm("mine.toml", "--device", "h100-80gb")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Does not fit: it needs ")
    assert lines[1].startswith("Gradient checkpointing is on")
    assert lines[2].startswith("It fits with these")
    assert "--set memory.tiled_mlp=true" in lines[3]
    without = longrm("mine.toml", "--device", "h100-80gb", "--set", "memory.gradient_checkpointing=false")
    assert "--set memory.gradient_checkpointing=true" in without.stdout.splitlines()[2]
    assert "not yet measured" in done.stdout
    assert "from [plan.model]" in done.stdout
    assert "from [plan.rows]" in done.stdout


def test_its_settings_make_it_fit():
    first = json.loads(longrm("mine.toml", "--device", "h100-80gb", "--json").stdout)
    assert not first["fits"]
    advice = [part for switch in first["switches"] for part in ("--set", switch["setting"])]
    then = json.loads(longrm("mine.toml", "--device", "h100-80gb", "--json", *advice).stdout)
    assert then["fits"]
    assert then["switches"] == []
    assert then["memory_bytes"]["total"] == pytest.approx(first["switches"][-1]["total"])
    assert then["steps"] == first["steps"] == 25


def test_the_longest_prompt_is_within_the_models_window(tmp_path):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 100, **sizes}
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    new = tmp_path / "new.toml"
    new.write_text(
        'objective = "bradley_terry"\n[model]\npath = "model"\n[data]\npath = "data/nowhere.jsonl"\n'
        "[plan]\nrows = [{rows = 10, prompt = 100, responses = 2, response = 96}]\n"
    )
    done = longrm(str(new), "--device", "h100-80gb")
    assert "prompts of 4,000 tokens" in " ".join(done.stdout.split()), done.output
    free = json.loads(
        longrm("mine.toml", "--device", "h100-80gb", "--json", "--set", "model.lora.r=4").stdout
    )
    assert free["model_reads"] is None


def test_a_plan_of_rollouts():
    text = (
        RECIPE.replace('"preference"', '"grpo"')
        .replace(", responses = 3, response = 500", "")
        .replace("[plan.model]", "[rollouts]\nnum_generations = 4\nmax_completion_length = 256\n[plan.model]")
    )
    Path("judge.toml").write_text(text)
    plan = json.loads(longrm("judge.toml", "--device", "h100-80gb", "--json").stdout)
    rollouts = plan["rollouts"]
    assert (rollouts["judgments"], rollouts["tokens"]) == (400, 400 * 256)
    assert plan["tokens"]["response"] == rollouts["tokens"]
    assert 0 < rollouts["seconds"] < plan["seconds"]
    assert sum(rollouts["flops"].values()) < plan["flops"]["total"]
    shown = longrm("judge.toml", "--device", "h100-80gb").stdout
    assert "400 judgments" in shown
    assert json.loads(longrm("mine.toml", "--json").stdout)["rollouts"] is None
