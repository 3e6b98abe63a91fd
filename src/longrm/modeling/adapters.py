"""Low-rank adapters (LoRA, Hu et al. 2021) on the frozen weights of a model, in PEFT's own files.

Adapters are injected into the model, which stays the transformers model it was: body, head and embeddings keep their
names. A scalar head is trained in full, and always saved and merged with them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, TaskType, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer, cast_adapter_dtype
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import nn

from longrm.errors import ConfigError, ModelError, first_line, nearest
from longrm.modeling.folders import ADAPTER, ADAPTER_PREFIX, ADAPTER_WEIGHTS, HEAD_PREFIX
from longrm.modeling.shared_prefix import TransformersModel

_NAME = "default"  # PEFT's name of the one adapter of a model


def adapt(
    model: TransformersModel,
    *,
    base: str,
    rank: int,
    alpha: float,
    seed: int,
    target_modules: str | Sequence[str] = "all-linear",
    revision: str | None = None,
    first_layer: int = 0,
) -> None:
    """Freezes a model and adds adapters to linear layers of its body, in place; a scalar head stays trainable.

    Args:
        model: The model of a scorer or language model.
        base: The folder or Hub id of its weights, recorded for loading the adapter.
        rank: The rank of every update.
        alpha: Updates are scaled by alpha / rank.
        seed: The seed of the random half of the updates; the other half is zero, so that training starts from the base.
        target_modules: The names of the linear layers, or "all-linear".
        revision: The commit of a base of the Hub.
        first_layer: The lowest layer that gets adapters, counted from 0.
    """
    linear = {
        name.rpartition(".")[2]
        for name, module in model.base_model.named_modules()
        if isinstance(module, nn.Linear)
    }
    targets = linear if target_modules == "all-linear" else target_modules
    if unknown := [name for name in targets if name not in linear]:
        raise ConfigError(
            f"model.lora.target_modules: no linear layer {unknown[0]!r}; {nearest(unknown[0], linear)}"
        )
    head, folder = getattr(model, "score", None), Path(base).expanduser()
    config = LoraConfig(
        r=rank,
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,  # type: ignore[arg-type]  # any number will do
        target_modules=sorted(targets),
        task_type=TaskType.CAUSAL_LM if head is None else TaskType.SEQ_CLS,
        base_model_name_or_path=str(folder.resolve()) if folder.exists() else base,
        revision=revision,
        layers_to_transform=list(range(first_layer, model.config.num_hidden_layers)) if first_layer else None,
    )
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    cast_adapter_dtype(model, _NAME)
    for module in model.modules():
        if isinstance(module, LoraLayer):
            # PEFT's copies of inputs in the fp32 of the adapters would be rounded right back by autocast.
            module.cast_input_dtype_enabled = False
    if head is not None:
        head.requires_grad_(True)


@contextmanager
def without_adapter(model: TransformersModel) -> Iterator[None]:
    """Lets a model compute with the weights of its base, within a `with` block."""
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def write_adapter(
    model: TransformersModel, folder: Path, weights: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Writes the adapter of a model, and its scalar head if it has one, as PEFT does; `weights` as for `save`."""
    head = getattr(model, "score", None)
    saved = None if head is None else ["score"]
    replace(model.peft_config[_NAME], modules_to_save=saved, inference_mode=True).save_pretrained(folder)
    config = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
    config["target_modules"].sort()  # PEFT has a set, which every process writes in another order
    (folder / ADAPTER).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    stored = _weights(model, weights)
    state = weights or dict(model.named_parameters())
    stored |= {name: state[name] for name in state if name.startswith(HEAD_PREFIX)}
    stored = {ADAPTER_PREFIX + name: tensor.detach().contiguous() for name, tensor in stored.items()}
    save_file(stored, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def read_adapter(model: TransformersModel, folder: Path, where: str) -> None:
    """Adds the adapter of a folder to a model, in place and frozen; the caller sets the scalar head."""
    try:
        config = PeftConfig.from_pretrained(str(folder))
        weights = load_file(folder / ADAPTER_WEIGHTS)
        config.modules_to_save = None
        inject_adapter_in_model(config, model)
        cast_adapter_dtype(model, _NAME)
        stored = {name.removeprefix(ADAPTER_PREFIX): tensor for name, tensor in weights.items()}
        stored = {name: tensor for name, tensor in stored.items() if not name.startswith(HEAD_PREFIX)}
        report: Any = set_peft_model_state_dict(model, stored)
    except Exception as error:  # PEFT raises errors of many types for values of the wrong kind
        raise ModelError(f"{where}: its adapter cannot be applied: {first_line(error)}") from None
    # PEFT itself would leave what is missing at zero and ignore what is unknown.
    missing = sorted(_weights(model).keys() - stored.keys())
    if missing or report.unexpected_keys:
        name = (missing or sorted(report.unexpected_keys))[0]
        what = "is missing from" if missing else "is not supported in"
        raise ModelError(f"{where}: {name} {what} its adapter")
    model.requires_grad_(False)


def merge_adapter(model: TransformersModel) -> None:
    """Adds the adapter of a model to its weights, in place; sums are fp32 and finite, and weights keep their dtype."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, BaseTunerLayer):
            continue
        layer: Any = module.get_base_layer()
        dtype = layer.weight.dtype
        layer.float()
        try:
            module.merge(safe_merge=True)
        except ValueError as error:
            raise ModelError(f"the adapter of {name} cannot be merged: {first_line(error)}") from None
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer.to(dtype))
    del model.peft_config


def _weights(
    model: TransformersModel, state: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Returns the adapter's weights, never embeddings: PEFT would ask the Hub whether their size has changed."""
    found: dict[str, torch.Tensor] = get_peft_model_state_dict(model, state, save_embedding_layers=False)
    return found
