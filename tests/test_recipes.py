"""Every recipe is parsed and planned: a typing error in one would cost its user a GPU hour."""

import importlib
import math
from pathlib import Path

import pytest

import longrm
from longrm.errors import ConfigError
from longrm.modeling.loading import new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.reading import read_toml
from longrm.training.objectives import OBJECTIVES
from longrm.training.plan.plan import plan_training
from longrm.training.settings import TrainingSettings
from longrm.training.train import BETAS
from longrm.worlds.words_tokenizer import words_tokenizer

FOLDER = Path(longrm.__file__).parent / "recipes"
FILES = {file.relative_to(FOLDER).with_suffix("").as_posix(): file for file in sorted(FOLDER.rglob("*.toml"))}
PAPER = [name for name in FILES if name.startswith("paper/")]
FULL = [name for name in PAPER if not name.endswith("-lora")]
DEMO = [name for name in FILES if name.startswith("demo/")]
DATA = [name for name in FILES if name.startswith("data/")]
GENERATIVE = ("llama-3.1-8b", "qwen3-8b", "con-j-qwen2-7b", "selene-mini")
DISCRIMINATIVE = ("skywork-v2", "grm-llama3")


@pytest.fixture(autouse=True)
def _away_from_the_data(tmp_path, monkeypatch):
    """The recipes' paths begin where they are used: here none leads anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    shape = ModelShape(layers=2, hidden=32, heads=2, kv_heads=2, head_dim=16)
    save(new_language_model(shape, words_tokenizer(verdicts=True), seed=0), folder)
    return folder


def parsed(name, start="models/some"):
    """The recipe; the demo sets the initial model of its later stages at run time."""
    tree = read_toml(FILES[name], ConfigError)
    if name in DEMO and "new" not in tree["model"]:
        tree["model"]["path"] = str(start)
    return TrainingSettings.model_validate(tree)


def changed(recipe, group, **values):
    return recipe.model_copy(update={group: getattr(recipe, group).model_copy(update=values)})


def test_the_paper_s_recipes_are_there():
    names = {f"paper/{model}/{stage}" for model in GENERATIVE for stage in ("sft", "logo")}
    names |= {f"paper/{model}/bradley_terry" for model in DISCRIMINATIVE}
    assert set(FULL) == names
    assert set(PAPER) == names | {f"{name}-lora" for name in names}


@pytest.mark.parametrize("name", sorted({*FILES} - {*DATA}))
def test_a_recipe_is_parsed(name):
    assert parsed(name).objective in OBJECTIVES


@pytest.mark.parametrize("name", DATA)
def test_a_recipe_for_data_is_parsed(name):
    kind = importlib.import_module(f"longrm.synthesis.recipes.{name.removeprefix('data/')}")
    recipe = kind.RECIPE.resolve(FILES[name])
    assert recipe.to_dict().items() >= {"seed": 0}.items()
    misspelt = next(iter(read_toml(FILES[name], ConfigError))) + "x"
    with pytest.raises(ConfigError, match=f"unknown key '{misspelt}'"):
        kind.RECIPE.resolve(FILES[name], {misspelt: 1})


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_is_planned(name):
    found = plan_training(parsed(name), "h100-80gb")
    assert 6.5e9 < found.sizes.parameters < 8.5e9
    assert found.workload.steps > 100
    assert found.seconds is not None
    assert math.isfinite(found.seconds)
    assert found.seconds > 3600
    assert found.memory.total > found.memory.weights > 10e9


@pytest.mark.parametrize("name", DEMO)
def test_a_recipe_of_the_demo_is_planned(name, small):
    recipe = parsed(name, small)
    found = plan_training(recipe, "rtx4090")
    assert found.workload.steps == recipe.optimizer.max_steps
    assert found.memory.total < found.offers.memory
    assert found.workload.largest.tokens > max(recipe.curriculum.lengths)


@pytest.mark.parametrize("name", PAPER)
def test_it_trains_as_the_paper_says(name):
    recipe = parsed(name)
    optimizer = recipe.optimizer
    assert (optimizer.warmup_steps, optimizer.lr_scheduler_kwargs["min_lr_rate"], BETAS) == (
        0.03,
        0.1,
        (0.9, 0.95),
    )
    assert (optimizer.max_grad_norm, optimizer.num_train_epochs, recipe.data.per_step) == (1.0, 1, 32)
    assert recipe.data.max_length == 131_072
    assert recipe.model.bf16
    if recipe.objective == "preference":
        loss = recipe.loss
        assert (loss.loss_type, loss.rejected, loss.beta, loss.gamma, loss.nll_coef) == (
            "logo",
            2,
            2.5,
            0.5,
            0.05,
        )
    if name in FULL:
        assert optimizer.learning_rate == 2e-6
    assert (recipe.model.lora is not None) == (name not in FULL or recipe.objective == "bradley_terry")


@pytest.mark.parametrize("name", [name for name in FULL if "bradley_terry" not in name])
def test_adapters_take_less_than_all_weights_and_checkpointing_less_than_none(name):
    full, lora = parsed(name), parsed(f"{name}-lora")
    assert full.memory.gradient_checkpointing
    plain = changed(full, "memory", gradient_checkpointing=False)
    peaks = [plan_training(recipe, "h100-80gb").memory.total for recipe in (plain, full, lora)]
    assert peaks[0] > 2 * peaks[1] > 4 * peaks[2]
