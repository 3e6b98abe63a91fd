"""`longrm train` as a user types it."""

import json
import re
import shutil
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import longrm.runs
from longrm.cli.commands import cli
from longrm.data import write
from longrm.errors import LongRMError
from longrm.training.settings import TrainingSettings
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_model, make_scorer

RECIPE = """
objective = "{objective}"
[model.new]
layers = 2
hidden = 16
[data]
path = "{data}"
per_step = 4
[optimizer]
max_steps = 4
learning_rate = 1e-3
"""
EVALUATION = """
[evaluation]
eval_steps = 2
load_best_model_at_end = true
[evaluation.settings]
bench = "probe"
judging.resamples = 100
probe.cells = [{lengths = [64], groups = 4, per_group = 2}]
judge.max_tokens = 4
judge.retries = 0
judge.format = "pointwise"
"""


def command(*arguments):
    """Runs a command in this process, for torch takes seconds to load."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def refused(*arguments):
    error = command(*arguments).exception
    assert isinstance(error, LongRMError), error
    assert "\n" not in str(error)
    return str(error)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """A recipe of every objective, by name, with what it reads."""
    folder = tmp_path_factory.mktemp("recipes")
    pairs = list(generate(WorldPlan("records", 64), 8, words_tokenizer()))
    write(folder / "pairs.jsonl", pairs)
    told = [
        {"id": pair.id, "prompt": list(pair.prompt), "completion": list(pair.responses[pair.best_first()[0]])}
        for pair in pairs
    ]
    (folder / "told.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    paths = {}
    for objective, data in [("sft", "told"), ("preference", "pairs"), ("bradley_terry", "pairs")]:
        paths[objective] = folder / f"{objective}.toml"
        paths[objective].write_text(RECIPE.format(objective=objective, data=folder / f"{data}.jsonl"))
    return paths


@pytest.mark.parametrize("objective", ["sft", "preference", "bradley_terry"])
def test_every_objective_trains_and_prints_what_to_do_next(tmp_path, recipes, objective):
    out = tmp_path / "run"
    name = objective.replace("_", "-")
    done = command("train", name, "--config", recipes[objective], "--out", out)
    assert done.exit_code == 0, done.exception
    trained, saved, following = done.stdout.splitlines()
    assert trained.startswith("Trained 4 steps: loss ")
    assert trained.endswith("per second")
    assert ("pair accuracy" in trained) == (objective != "sft")
    assert saved == f"Saved the model to {out / 'model'}"
    assert following == f"next: longrm probe {out / 'model'} --lengths 256,1k,4k --out RUN"
    assert (out / "model/README.md").is_file()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["objective"] == objective
    check_schema(summary)
    again = command("train", name, "--config", out / "config.toml", "--out", out, "--json")
    assert json.loads(again.stdout) == summary
    shown = command("runs", "show", out)
    assert shown.stdout.splitlines() == [trained, saved, f"next: longrm report {out} --out report.html"]
    assert "--id" in refused("runs", "show", out, "--id", "x")
    (out / "summary.json").unlink()
    stopped = " ".join(command("runs", "show", out).stdout.split())
    assert stopped.startswith("Not finished: 4 steps, loss ")
    assert stopped.endswith(f"longrm train {name} --config {out / 'config.toml'} --out {out}")


@pytest.fixture
def desk(tmp_path, recipes, monkeypatch):
    """A folder with a model and pairs, in which commands run."""
    make_scorer(tmp_path / "MODEL", positions=512)
    make_model(tmp_path / "JUDGE")
    shutil.copy(recipes["sft"].parent / "pairs.jsonl", tmp_path / "pairs.jsonl")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_model_and_data_are_enough(desk):
    done = command("train", "bradley-terry", "--model", "MODEL", "--data", "pairs.jsonl")
    assert done.exit_code == 0, done.exception
    assert "Saved the model to runs/bradley-terry/model" in done.stdout
    settings = TrainingSettings.resolve(Path("runs/bradley-terry/config.toml"))
    assert (settings.model.path, settings.data.path, settings.optimizer.max_steps) == (
        "MODEL",
        "pairs.jsonl",
        None,
    )


def test_every_common_setting_has_a_flag(desk, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        "longrm.training.train.train", lambda settings, out, **_: asked.update(to=settings) or 1 / 0
    )
    flags = "--lora 4 --max-steps 3 --learning-rate 1e-3 --per-step 2 --max-length 100 --too-long skip"
    command(*f"train sft --model M --data D {flags} --gradient-checkpointing --set seed=3".split())
    told = asked["to"].to_dict()
    assert told["model"] == {
        **told["model"],
        "path": "M",
        "lora": {"r": 4, "lora_alpha": 32.0, "target_modules": "all-linear", "load_in_4bit": False},
    }
    assert told["data"] == {**told["data"], "path": "D", "per_step": 2, "max_length": 100, "too_long": "skip"}
    assert (told["optimizer"]["max_steps"], told["optimizer"]["learning_rate"]) == (3, 1e-3)
    assert told["memory"]["gradient_checkpointing"]
    assert told["seed"] == 3
    shown = command("train", "sft", "--help").stdout
    assert len(re.findall(r"^  --", shown.partition("Settings:")[2].partition("Run:")[0], re.MULTILINE)) == 10
    every = command("train", "sft", "--help-all").stdout
    assert all(f"\n  {key} " in every for key in ("seed", "optimizer.weight_decay", "rollouts.top_p"))


def test_the_recipes_for_own_pairs_train(desk):
    prompts = ("--set", "source=file:pairs.jsonl", "--set", "tokenizer=JUDGE", "--out", "runs/prompts")
    assert command("synthesize", "judge-prompts", *prompts).exit_code == 0
    small = ("--max-steps", 1, "--per-step", 4, "--max-length", 2000)
    rows = [json.loads(line) for line in Path("pairs.jsonl").read_text().splitlines()]
    steps = [
        {
            "prompt": row["prompt"],
            "completions": row["responses"],
            "labels": [rank == 1 for rank in row["ranks"]],
        }
        for row in rows
    ]
    Path("steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    for name, recipe, model, data, more in (
        ("bradley-terry", "scalar", "MODEL", "pairs.jsonl", ()),
        ("prm", "steps", "MODEL", "steps.jsonl", ()),
        (
            "grpo",
            "judge",
            "JUDGE",
            "runs/prompts",
            ("rollouts.max_completion_length=4", "rollouts.num_generations=2"),
        ),
    ):
        config = ("--config", f"my_pairs/{recipe}", "--model", model, "--data", data, "--out", f"runs/{name}")
        sets = [word for one in more for word in ("--set", one)]
        done = command("train", name, *config, *small, *sets)
        assert done.exit_code == 0, done.exception
        assert Path(f"runs/{name}/model/adapter_model.safetensors").is_file()


def check_schema(summary):
    schema = json.loads((Path(longrm.runs.__file__).parent / "summary.schema.json").read_text())
    jsonschema.validate(summary, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**summary, "other": 1}, schema)


@pytest.mark.parametrize("objective", ["preference", "bradley_terry"])
def test_evaluations_of_a_recipe_are_made_and_the_best_is_printed(tmp_path, recipes, objective):
    recipe, out, template = tmp_path / "recipe.toml", tmp_path / "run", tmp_path / "judge.j2"
    template.write_text("{{ conversation }} {{ response }}")  # in words that the model knows
    recipe.write_text(recipes[objective].read_text() + EVALUATION + f'judge.template = "{template}"\n')
    done = command("train", objective.replace("_", "-"), "--config", recipe, "--out", out)
    assert done.exit_code == 0, done.exception
    # A language model that can write four tokens gives no verdict.
    told = {"bradley_terry": "Best pair_accuracy ", "preference": "pair_accuracy is undefined"}
    assert told[objective] in done.stdout
    summary = json.loads((out / "summary.json").read_text())
    check_schema(summary)
    assert list(summary["evaluations"]["values"]) == ["2", "4"]
    values = summary["evaluations"]["values"].values()
    shown = ["undefined" if value is None else f"{value:.4f}" for value in values]
    lines = [f"Step {step}: pair_accuracy {value}" for step, value in zip((2, 4), shown, strict=True)]
    assert command("runs", "show", out).stdout.splitlines()[:2] == lines
    judged = json.loads((out / f"evaluations/{summary['model_step']}/summary.json").read_text())
    value = judged["metrics"]["overall"]["pair_accuracy"]["value"]
    assert summary["evaluations"]["values"][str(summary["model_step"])] == value
    if objective == "preference":
        assert value is None
        return
    card = (out / "model/README.md").read_text()
    assert f"{value:.3f}" in card


def test_wrong_recipes_are_refused_before_any_work(tmp_path, recipes):
    def train(name, *more, config="sft"):
        return refused("train", name, "--config", recipes[config], "--out", tmp_path / "run", *more)

    line = train("bradley-terry")
    assert "longrm train sft" in line
    line = train("sft", "--set", "objective=bradley_terry")
    assert "longrm train bradley-terry" in line
    assert '--set has objective = "other"' in train("sft", "--set", "objective=other")
    assert "'optimizer.max_steps'" in train("sft", "--set", "optimizer.step=1")
    assert "'wandb'" in train("sft", "--report-to", "wandbb")
    evaluation = ("--set", 'evaluation.settings={bench = "probe", judgin = 1}')
    assert "'judging'" in train("sft", *evaluation)
    nowhere = ("--set", 'evaluation.settings={bench = "file:nowhere.jsonl"}')
    assert "nowhere.jsonl" in train("sft", *nowhere)
    assert not (tmp_path / "run").exists()


def test_the_name_of_a_loss_leads_to_its_objective():
    done = CliRunner().invoke(cli, ["train", "dpo"])
    assert done.exit_code == 2
    assert "preference --set loss_type=dpo" in done.output
