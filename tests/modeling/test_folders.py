from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaConfig

from longrm.errors import ModelError
from longrm.modeling.folders import kind_of

from .conftest import CONFIGS, SIZES


def saved(auto: Any, config: Any, folder: Path, **how: Any) -> Path:
    auto.from_config(config).save_pretrained(folder, **how)
    return folder


@pytest.mark.parametrize("family", CONFIGS)
def test_the_kind_is_read_from_weights_and_config(family: str, tmp_path: Path):
    config = CONFIGS[family]()
    assert kind_of(saved(AutoModelForCausalLM, config, tmp_path / "discriminative-name")) == "generative"
    config.num_labels = 1
    scorer = saved(AutoModelForSequenceClassification, config, tmp_path / "causal-lm-name")
    assert kind_of(scorer) == "discriminative"


def test_pickled_weights_and_folders_without_a_config_are_refused(tmp_path: Path):
    folder = saved(AutoModelForCausalLM, LlamaConfig(**SIZES), tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled"):
        kind_of(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json"):
        kind_of(folder)
