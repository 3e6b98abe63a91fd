"""Weights and config.json must fit: nothing that is stored may silently be left unread."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError
from longrm.modeling.folders import kind_of
from longrm.modeling.loading import load_language_model, load_scorer
from longrm.modeling.saving import merge, save
from longrm.training.initial_model import initial_model
from longrm.training.plan.workload import sizes_of
from longrm.training.settings import TrainingSettings

from .conftest import CONFIGS, write_model

Load = Callable[[Path], Any]
LOADS: dict[str, Load] = {
    "scorer": load_scorer,
    "writer": load_language_model,
    "trained writer": lambda folder: load_language_model(folder, packed=True),
    "new head": lambda folder: load_scorer(folder, head_seed=1),
}


@pytest.fixture(params=LOADS)
def load(request) -> Load:
    return LOADS[request.param]


@pytest.fixture
def folder(load: Load, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A model of two layers as transformers writes it."""
    return saved(tokenizer, tmp_path / "model", scores=load is LOADS["scorer"])


def saved(tokenizer: Tokenizer, place: Path, *, scores: bool) -> Path:
    config = CONFIGS["qwen2"]()
    config.num_labels = 1
    auto = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    return write_model(config, tokenizer, place, auto)


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config | fields))


def store(folder: Path, **tensors: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    save_file(
        load_file(file) | {name.replace("__", "."): one for name, one in tensors.items()},
        file,
        {"format": "pt"},
    )


def test_layers_that_the_config_does_not_count_are_refused(load: Load, folder: Path):
    load(folder)
    change_config(folder, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"model\.layers\.1\..*num_hidden_layers = 1\b"):
        load(folder)


def test_layers_that_are_not_stored_are_refused(load: Load, folder: Path):
    change_config(folder, num_hidden_layers=3)
    with pytest.raises(ModelError, match=r"12 weights .* missing, such as model\.layers\.2\."):
        load(folder)


def test_scales_that_nothing_reads_are_refused(load: Load, folder: Path):
    """An fp8 layer without its scales is another layer; here the config does not say that it is one."""
    weight = load_file(folder / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    store(
        folder,
        model__layers__0__mlp__up_proj__weight=(weight * 100).to(torch.float8_e4m3fn),
        model__layers__0__mlp__up_proj__weight_scale_inv=torch.tensor([[0.01]]),
    )
    with pytest.raises(ModelError, match=r"1 weights have no place .*up_proj\.weight_scale_inv;"):
        load(folder)


@pytest.mark.parametrize("fault", ["bias", "fp8"])
def test_a_head_that_would_be_read_in_part_is_refused(fault: str, tokenizer: Tokenizer, tmp_path: Path):
    folder = saved(tokenizer, tmp_path / "model", scores=True)
    if fault == "bias":
        store(folder, score__bias=torch.ones(1))
    else:
        store(folder, score__weight=torch.ones(1, 32).to(torch.float8_e4m3fn))
    with pytest.raises(
        ModelError, match=r"such as score\.bias" if fault == "bias" else "score.weight is quantized"
    ):
        load_scorer(folder)


def test_a_head_over_the_vocabulary_is_no_part_of_a_scorer(tokenizer: Tokenizer, tmp_path: Path):
    folder = saved(tokenizer, tmp_path / "model", scores=True)
    store(folder, lm_head__weight=torch.ones(97, 32))
    assert load_scorer(folder).model.score.weight.shape == (1, 32)
    store(folder, v_head__weight=torch.ones(1, 32))
    with pytest.raises(ModelError, match=r"1 weights have no place .*v_head\.weight"):
        load_scorer(folder)


QUANTIZED = [
    {"quant_method": "bitsandbytes", "load_in_4bit": True},
    {"quant_method": "fp8", "weight_block_size": [128, 128]},
]


@pytest.mark.parametrize("quantization", QUANTIZED, ids=lambda config: config["quant_method"])
@pytest.mark.parametrize("objective", ["bradley_terry", "sft"])
def test_quantized_bases_are_not_trained(
    objective: str, quantization: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path
):
    folder = saved(tokenizer, tmp_path / "model", scores=False)
    change_config(folder, quantization_config=quantization)
    model = {"path": str(folder), "lora": {"rank": 2}}
    recipe = TrainingSettings.model_validate(
        {"objective": objective} | {"model": model, "data": {"path": "rows.jsonl"}}
    )
    kind: Any = "scorer" if objective == "bradley_terry" else "language_model"
    line = rf"{folder}: its weights are quantized \({quantization['quant_method']}\)"
    with pytest.raises(ModelError, match=line):
        initial_model(recipe, kind)
    with pytest.raises(ModelError, match=line):
        sizes_of(recipe, kind)


def test_an_adapter_is_not_merged_into_a_quantized_base(tokenizer: Tokenizer, tmp_path: Path):
    folder = saved(tokenizer, tmp_path / "model", scores=False)
    recipe = {"model": {"path": str(folder), "lora": {"rank": 2}}, "data": {"path": "rows.jsonl"}}
    save(
        initial_model(TrainingSettings.model_validate({"objective": "sft"} | recipe), "language_model"),
        tmp_path / "adapter",
    )
    change_config(folder, quantization_config=QUANTIZED[0])
    with pytest.raises(ModelError, match=r"quantized \(bitsandbytes\)"):
        merge(tmp_path / "adapter", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    shutil.rmtree(folder)
    with pytest.raises(ModelError, match="base model was not found"):
        kind_of(tmp_path / "adapter")


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU transformers keeps them in 8 bits")
def test_declared_fp8_weights_are_read_with_their_scales(tokenizer: Tokenizer, tmp_path: Path):
    folder = saved(tokenizer, tmp_path / "model", scores=True)
    file = folder / "model.safetensors"
    stored, exact, bare = {}, {}, {}
    for name, weight in load_file(file).items():
        if not name.endswith("proj.weight"):
            stored[name] = exact[name] = bare[name] = weight
            continue
        blocks = weight.view(weight.shape[0] // 16, 16, weight.shape[1] // 16, 16)
        scale = blocks.abs().amax((1, 3)) / 400
        eighths = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        stored |= {name: eighths.view(weight.shape), f"{name}_scale_inv": scale}
        exact[name] = (eighths.float() * scale[:, None, :, None]).view(weight.shape)
        bare[name] = eighths.float().view(weight.shape)
    save_file(stored, file, {"format": "pt"})
    change_config(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [16, 16]})
    weights = load_scorer(folder, device="cpu").model.state_dict()
    name = "model.layers.1.mlp.down_proj.weight"
    torch.testing.assert_close(weights[name].float(), exact[name], rtol=1e-2, atol=1e-3)
    assert (exact[name] - bare[name]).abs().max() > 1
