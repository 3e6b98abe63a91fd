"""The tokens and rows that a recipe reads, compared with those of the training itself."""

import json

import pytest
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    FalconH1Config,
    MixtralConfig,
    Qwen3_5TextConfig,
)

from longrm.data import write
from longrm.errors import ConfigError, ModelError
from longrm.judging import load_format
from longrm.judging.judge_prompts import judge_prompt_rows
from longrm.modeling.shapes import PackedLayout, TreeShape
from longrm.runs.logs import Log
from longrm.runs.progress import no_progress
from longrm.runs.records import RolloutRecord
from longrm.training.initial_model import initial_model
from longrm.training.plan.memory import moments_of
from longrm.training.plan.plan import plan_training
from longrm.training.plan.workload import Workload, sizes_of, trained_part, workload_of
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.training.world_judgments import TEMPLATES
from longrm.worlds import WorldPlan, generate, words_tokenizer

TINY = {"layers": 1, "hidden": 16}


@pytest.mark.parametrize("weights", [(0.5, 2.0), (1.0, 1.0)])
def test_sources_count_as_often_as_they_are_read(tmp_path, weights):
    files = []
    for number, (length, weight) in enumerate(zip((400, 64), weights, strict=True)):
        path = tmp_path / f"{length}.jsonl"
        write(path, generate(WorldPlan("records", length, seed=number), 8, words_tokenizer()))
        files.append({"path": str(path), "weight": weight})
    recipe = TrainingSettings.model_validate(
        {"objective": "bradley_terry"}
        | {
            "model": {"new": TINY},
            "data": {"sources": files, "per_step": 2},
            "optimizer": {"num_train_epochs": 1},
        }
    )
    planned = workload_of(recipe, 4096, no_progress)
    done = train(recipe, tmp_path / "run")
    assert planned.steps == done["steps"]
    assert planned.rows == pytest.approx(8 * sum(weights))
    read = sum(count * shape.tokens for shape, count in planned.trees.items())
    assert read == pytest.approx(done["tokens"], rel=0.02)


@pytest.fixture(scope="module")
def judge_prompts(tmp_path_factory):
    """Eight comparisons in both orders: 16 prompts."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    format = load_format("pairwise", template=TEMPLATES["pairwise"])
    rows = [
        row
        for comparison in generate(WorldPlan("records", 200, per_group=1), 8, words_tokenizer())
        for row in judge_prompt_rows(comparison, format, tokenizer=words_tokenizer())
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def grpo(data, **changes):
    tree = {
        "objective": "grpo",
        "model": {"new": {**TINY, "tokenizer": "judge_words"}},
        "data": data,
        "loss": {"beta": 0.1},  # groups with equal rewards are computed, too
        "rollouts": {"num_generations": 4, "max_completion_length": 5},
    }
    return TrainingSettings.resolve(None, tree | changes)


@pytest.mark.parametrize("iterations", [1, 2])
def test_rollouts_are_those_of_the_training(judge_prompts, tmp_path, iterations):
    recipe = grpo(
        {"path": str(judge_prompts), "per_step": 4},
        **{"optimizer.num_train_epochs": 1, "rollouts.num_iterations": iterations},
    )
    planned, done = workload_of(recipe, 4096, no_progress), train(recipe, tmp_path / "run")
    records = list(Log(tmp_path / "run" / "rollouts.jsonl", RolloutRecord))
    assert planned.steps == done["steps"] == 4 * iterations
    assert planned.rows == len(records) == len({record.id for record in records}) == 16
    assert planned.tokens == pytest.approx(done["tokens"], rel=0.02)
    # Both orders of a comparison share their context.
    apart = iterations * sum(record.length + 4 * 5 for record in records)
    assert planned.tokens < 0.9 * apart
    assert all(len(tree.leaves) == 8 for tree in planned.trees)
    assert max(tree.tokens for tree in planned.largest.trees) == planned.longest_row.tokens
    assert len(planned.largest.trees) == 2  # of four prompts


def test_rollouts_of_a_world(tmp_path):
    recipe = grpo(
        {"world": {"completions": ["pairwise"], "tokens_per_step": 256, "responses_per_step": 4}},
        **{
            "curriculum.lengths": [64, 128],
            "optimizer.max_steps": 8,
            "rollouts.num_iterations": 2,
            "rollouts.max_completion_length": 8,
        },
    )
    planned, done = workload_of(recipe, 4096, no_progress), train(recipe, tmp_path / "run")
    records = list(Log(tmp_path / "run" / "rollouts.jsonl", RolloutRecord))
    assert planned.rows == len(records)
    assert planned.tokens == pytest.approx(done["tokens"], rel=0.1)


def test_stated_prompts_have_the_judgments_of_the_recipe():
    stated = {"plan": {"rows": [{"rows": 10, "prompt": 1000}]}}
    planned = workload_of(grpo({"path": "nowhere.jsonl", "per_step": 2}, **stated), None, no_progress)
    assert dict(planned.trees) == {TreeShape(1000, (5, 5, 5, 5)): 10}
    assert (planned.steps, planned.rows, planned.response_tokens) == (5, 10, 200)
    with pytest.raises(ConfigError, match="response"):
        grpo({"path": "nowhere.jsonl"}, plan={"rows": [{"rows": 10, "prompt": 1000, "response": 3}]})
    with pytest.raises(ConfigError, match="response"):
        grpo({"path": "nowhere.jsonl"}, objective="sft", loss={}, rollouts=None, **stated)


SHAPE = TreeShape(60, (5, 6))
READING = Workload(1, 1, {SHAPE: 1}, PackedLayout((SHAPE,)), False, "")

PLANNED = {
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "intermediate": 14336,
    "vocabulary": 128256,
}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("kind", "auto"),
    [("scorer", AutoModelForSequenceClassification), ("language_model", AutoModelForCausalLM)],
)
def test_parameters_are_those_of_transformers(bases, recipe, architecture, kind, auto):
    folder = bases[architecture]
    found = sizes_of(recipe(model__path=str(folder)), kind)
    model = auto.from_pretrained(folder, num_labels=1)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.layer_parameters == sum(
        parameter.numel() for parameter in model.base_model.layers[0].parameters()
    )
    assert found.qk_norm == (architecture == "qwen3")
    assert bool(found.biases) == (architecture == "qwen2")


@pytest.mark.parametrize("kind", ["scorer", "language_model"])
@pytest.mark.parametrize("new", [{}, {"layers": 4, "structured": True}])
def test_parameters_of_a_new_model(recipe, kind, new):
    settings = recipe(model__new=new)
    model = initial_model(settings, kind).model
    assert sizes_of(settings, kind).parameters == sum(parameter.numel() for parameter in model.parameters())


def test_published_shapes_give_the_published_number_of_parameters(recipe):
    settings = recipe(model__path="somewhere/else", plan__model=PLANNED)
    assert sizes_of(settings, "language_model").parameters == 8_030_261_248
    assert "[plan.model]" in sizes_of(settings, "scorer").origin


@pytest.mark.parametrize(
    ("family", "reason"),
    [(MixtralConfig, "experts"), (Qwen3_5TextConfig, "recurrent"), (FalconH1Config, "recurrent")],
)
def test_what_is_no_llama_is_refused(family, reason, recipe, tmp_path):
    config = family(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, vocab_size=50
    )
    config.num_key_value_heads = 2
    config.sliding_window = None
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(ModelError, match=reason):
        sizes_of(recipe(model__path=str(tmp_path)), "language_model")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["scorer", "language_model"])
@pytest.mark.parametrize("lora", [None, {"r": 4}])
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_trained_parameters_and_bytes_are_those_of_the_model(bases, recipe, frozen, lora, kind, tied):
    model = {
        "path": str(bases["tied" if tied else "qwen2"]),
        "frozen_layers": frozen,
        "bf16": True,
    }
    settings = recipe(model=model | ({"lora": lora} if lora else {}))
    sizes = sizes_of(settings, kind)
    weights = list(initial_model(settings, kind).model.parameters())
    found = trained_part(settings.model, sizes).parameters
    assert found == sum(weight.numel() for weight in weights if weight.requires_grad)
    assert (found == trained_part(recipe(model__path=model["path"]).model, sizes).parameters) is (
        not frozen and not lora
    )
    moment = moments_of(settings, sizes, READING, "cpu")[0]
    assert moment.weights == sum(weight.numel() * weight.element_size() for weight in weights)
    assert moment.optimizer == 8 * found


def test_freezing_every_layer_is_an_error(recipe):
    settings = recipe(model={"path": "somewhere/else", "frozen_layers": 32}, plan__model=PLANNED)
    with pytest.raises(ModelError, match=r"model\.frozen_layers = 32"):
        plan_training(settings, "cpu")
    fewer = settings.model.model_copy(update={"frozen_layers": 31})
    assert plan_training(settings.model_copy(update={"model": fewer}), "cpu").flops.total
