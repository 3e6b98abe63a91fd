import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaConfig, T5Config

from longrm.errors import ModelError
from longrm.modeling.folders import kind_of

from .conftest import CONFIGS, SIZES


def saved(auto: Any, config: Any, folder: Path, **how: Any) -> Path:
    auto.from_config(config).save_pretrained(folder, **how)
    return folder


def shards(folder: Path) -> int:
    return len(list(folder.glob("model-*.safetensors")))


@pytest.mark.parametrize("family", CONFIGS)
def test_the_kind_is_read_from_what_the_folder_holds(family: str, tmp_path: Path):
    config = CONFIGS[family]()
    assert kind_of(saved(AutoModelForCausalLM, config, tmp_path / "discriminative-name")) == "generative"
    config.num_labels = 1
    scorer = saved(AutoModelForSequenceClassification, config, tmp_path / "causal-lm-name")
    assert kind_of(scorer) == "discriminative"


def test_a_head_is_found_in_whatever_shard(tmp_path: Path):
    config = LlamaConfig(**SIZES, num_labels=1)
    folder = saved(AutoModelForSequenceClassification, config, tmp_path, max_shard_size="20KB")
    assert shards(folder) > 2
    assert kind_of(folder) == "discriminative"
    assert (
        shards(saved(AutoModelForCausalLM, LlamaConfig(**SIZES), tmp_path / "lm", max_shard_size="20KB")) > 2
    )
    assert kind_of(tmp_path / "lm") == "generative"


def test_the_head_decides_whatever_the_config_says(tmp_path: Path):
    # As a checkpoint is left by tools that change the weights and not the config.
    saved(AutoModelForCausalLM, LlamaConfig(**SIZES), tmp_path)
    save_file({"score.weight": torch.zeros(1, 32)}, tmp_path / "model-head.safetensors")
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert kind_of(tmp_path) == "discriminative"


def header_of_garbage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)


def header_cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:40])


def header_of_no_object(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"[]")


def config_of_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def config_of_no_object(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def config_with(**values: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return damage


def weights_that_are(kind: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.unlink()
        {"folder": path.mkdir, "loop": lambda: path.symlink_to(path.name)}[kind]()

    return damage


def header_with(**values: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        told = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | values
        text = json.dumps({"a": told}).encode()
        (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))

    return damage


def index_with(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))

    return damage


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (header_of_garbage, "its weights cannot be read"),
        (header_cut_short, "its weights cannot be read"),
        (header_of_no_object, "its weights cannot be read"),
        (config_of_no_json, r"config\.json: "),
        (config_of_no_object, r"config\.json: "),
        (
            config_with(num_hidden_layers=1_000_000),
            "'num_hidden_layers': needs a whole number from 1 to 1,000, got",
        ),
        (
            config_with(num_hidden_layers=-1),
            "'num_hidden_layers': needs a whole number from 1 to 1,000, got -1",
        ),
        (config_with(hidden_size="32"), "'hidden_size': needs a whole number from 1 to 1,000,000, got '32'"),
        (config_with(hidden_size=True), "'hidden_size': needs a whole number .* got True"),
        (config_with(vocab_size=10**12), "'vocab_size': needs a whole number"),
        (
            config_with(intermediate_size=[48, 10**9]),
            "'intermediate_size': needs a whole number .* got 1000000000",
        ),
        (config_with(architectures="LlamaForCausalLM"), "field 'architectures'"),
        (config_with(model_type=7), "field 'model_type'"),
        (weights_that_are("folder"), r"model\.safetensors: "),
        (header_with(shape=[-1]), r"model\.safetensors, field 'a\.shape\.0'"),
        (header_with(shape="8"), r"model\.safetensors, field 'a\.shape'"),
        (header_with(data_offsets=None), r"model\.safetensors, field 'a\.data_offsets'"),
        (header_with(dtype=5), r"model\.safetensors, field 'a\.dtype'"),
        (index_with("../other.safetensors"), r"index\.json, field 'weight_map\.a'"),
        (no_config, "no config.json"),
        (pickled, "pickled weights"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(damage: Callable[[Path], None], line: str, tmp_path: Path):
    folder = saved(AutoModelForCausalLM, LlamaConfig(**SIZES), tmp_path / "model")
    damage(folder)
    with pytest.raises(ModelError, match=line) as caught:
        kind_of(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_what_neither_scores_nor_writes_is_refused_with_what_it_is(tmp_path: Path):
    config = T5Config(vocab_size=97, architectures=["T5ForConditionalGeneration"])
    config.save_pretrained(tmp_path)
    save_file({"shared.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"neither .* \(architectures: T5ForConditionalGeneration\)"):
        kind_of(tmp_path)


def test_a_name_that_is_neither_folder_nor_model_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for source, line in [
        (tmp_path / "absent", "no such model folder"),
        (tmp_path / "file", "give the model's folder"),
        ("nobody/no-such-model", "nor can it be had from the Hub"),
    ]:
        with pytest.raises(ModelError, match=line):
            kind_of(source)


def test_asking_for_the_kind_imports_no_torch(tmp_path: Path):
    saved(AutoModelForCausalLM, LlamaConfig(**SIZES), tmp_path)
    probe = (
        "import sys; from longrm.modeling.folders import kind_of; print(kind_of(sys.argv[1])); "
        "assert not {'torch', 'transformers', 'safetensors'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "generative\n"), done.stderr
