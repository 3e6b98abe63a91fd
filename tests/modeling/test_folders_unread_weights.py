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


def test_scales_that_nothing_reads_are_refused(load: Load, folder: Path):
    """An fp8 layer without its scales is another layer; here the config does not say that it is one."""
    weight = load_file(folder / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    store(
        folder,
        model__layers__0__mlp__up_proj__weight=(weight * 100).to(torch.float8_e4m3fn),
        model__layers__0__mlp__up_proj__weight_scale_inv=torch.tensor([[0.01]]),
    )
    with pytest.raises(ModelError, match=r"up_proj\.weight_scale_inv"):
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
    with pytest.raises(ModelError, match=r"v_head\.weight"):
        load_scorer(folder)


def test_quantized_bases_are_neither_trained_nor_merged(tokenizer: Tokenizer, tmp_path: Path):
    folder = saved(tokenizer, tmp_path / "model", scores=False)
    settings = {"model": {"path": str(folder), "lora": {"r": 2}}, "data": {"path": "rows.jsonl"}}
    recipe = TrainingSettings.model_validate({"objective": "sft"} | settings)
    save(initial_model(recipe, "language_model"), tmp_path / "adapter")
    change_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    for refuses in (initial_model, sizes_of):
        with pytest.raises(ModelError, match=rf"{folder}: .*quantized"):
            refuses(recipe, "language_model")
    with pytest.raises(ModelError, match="quantized"):
        merge(tmp_path / "adapter", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    shutil.rmtree(folder)
    with pytest.raises(ModelError):
        kind_of(tmp_path / "adapter")
