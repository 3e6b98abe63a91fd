import json

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, MixtralConfig

from longrm.errors import ModelError
from longrm.modeling.shapes import PackedLayout, TreeShape
from longrm.training.initial_model import initial_model
from longrm.training.plan.memory import moments_of
from longrm.training.plan.plan import plan_training
from longrm.training.plan.workload import Workload, sizes_of, trained_part

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


def test_experts_are_refused(recipe, tmp_path):
    config = MixtralConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, vocab_size=50
    )
    config.num_key_value_heads = 2
    config.sliding_window = None
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(ModelError, match="cannot be planned"):
        sizes_of(recipe(model__path=str(tmp_path)), "language_model")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["scorer", "language_model"])
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_trained_parameters_and_bytes_are_those_of_the_model(bases, recipe, frozen, lora, kind, tied):
    model = {
        "path": str(bases["tied" if tied else "qwen2"]),
        "frozen_layers": frozen,
        "precision": "bfloat16",
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
