"""The model that a training starts from."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch

from longrm import hub
from longrm.errors import ModelError
from longrm.modeling.device_memory import (
    checkpoint_activations,
    compile_layers,
    freeze_layers,
    set_precision,
    tile_feed_forward,
)
from longrm.modeling.folders import (
    check_trainable,
    find_model_folders,
    kind_of,
    stored_precisions,
)
from longrm.modeling.loading import (
    LanguageModel,
    Scorer,
    check_savable,
    load_language_model,
    load_scorer,
    new_language_model,
    new_scorer,
    read_config,
    rescale_rope,
    resolve_device,
    weights_fit,
)
from longrm.modeling.products import choose_products
from longrm.modeling.shapes import tile_length
from longrm.modeling.sharding import shard
from longrm.modeling.structured_start import structure
from longrm.training.objectives import ModelKind
from longrm.training.settings import ModelSettings, TrainingSettings
from longrm.worlds.words_tokenizer import load_tokenizer

_logger = logging.getLogger(__name__)

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}  # by their names in safetensors


def initial_model(settings: TrainingSettings, kind: ModelKind) -> Scorer | LanguageModel:
    """Loads or creates the model that training starts from, with its adapters, precision and memory savings."""
    model = load_initial_model(settings, kind)
    prepare_model(model, settings)
    return model


def load_initial_model(settings: TrainingSettings, kind: ModelKind) -> Scorer | LanguageModel:
    """Loads or creates the model that training starts from, with its adapters; its weights stay in their files."""
    start = settings.model
    if start.new is not None:
        shape, tokenizer = start.new.shape(start.rope_theta), load_tokenizer(start.new.tokenizer)
        model: Scorer | LanguageModel
        if kind == "scorer":
            model = new_scorer(shape, tokenizer, seed=settings.seed, head=start.head)
        else:
            model = new_language_model(shape, tokenizer, seed=settings.seed)
        if start.new.structured:
            structure(model.model, seed=settings.seed)
    else:
        assert start.path is not None, "settings have either a path or a new model"
        model = _load(start.path, start, kind, settings.seed)
        if start.rope_theta is not None:
            rescale_rope(model.model, start.rope_theta)
        if start.lora is not None:
            # PEFT takes two seconds to import, and most trainings have no adapter.
            from longrm.modeling.adapters import adapt

            local = Path(start.path).expanduser().exists()
            on_hub = None if local else hub.split_revision(start.path)
            adapt(
                model.model,
                base=start.path if on_hub is None else on_hub[0],
                revision=model.origin.get("commit"),
                rank=start.lora.r,
                alpha=start.lora.lora_alpha,
                target_modules=start.lora.target_modules,
                seed=settings.seed,
                first_layer=start.frozen_layers,
            )
    return model


def prepare_model(model: Scorer | LanguageModel, settings: TrainingSettings) -> None:
    """Moves a model to the device that trains it, with the precision and the memory savings of the settings."""
    start, memory, parallel = settings.model, settings.memory, settings.parallel
    device = str(resolve_device("auto"))
    if start.bf16 and device == "cpu" and _emulates_bf16():
        _logger.warning(
            "this processor has no instructions for bf16 and emulates them, which makes training several times slower; "
            "set model.bf16 = false"
        )
    freeze_layers(model.model, start.frozen_layers)
    if memory.gradient_checkpointing:
        offload, keep = memory.activation_offloading, memory.keep_attention
        checkpoint_activations(model.model, offload=offload, keep_attention=keep, device=device)
    if memory.tiled_mlp:
        tile_feed_forward(model.model, tile_length(model.model.config.hidden_size))
    if start.compile:
        compile_layers(model.model)
    # Until here the weights are in their files, which safetensors has mapped into memory. They go to the device one by
    # one, or layer by layer, so that CPU memory never has the whole model.
    place = partial(set_precision, model.model, "bfloat16" if start.bf16 else "float32", device=device)
    with weights_fit(start.path or "model.new", device):
        if parallel.shard:
            rounded = start.bf16
            reshard = parallel.reshard_after_forward
            shard(model.model, device, place, rounded=rounded, reshard=reshard, offload=parallel.offload)
        else:
            place()
            model.model.to(device)  # its buffers
    choose_products(model.model)


def _emulates_bf16() -> bool:
    found = torch.cpu.get_capabilities()
    return found.get("architecture") == "x86_64" and not (found.get("avx512_bf16") or found.get("amx_bf16"))


def stored_dtype(folder: Path) -> torch.dtype:
    """The precision of a model's files; fp32 if they have several."""
    return _DTYPES.get(" ".join(stored_precisions(folder)), torch.float32)


def _load(path: str, start: ModelSettings, kind: ModelKind, seed: int) -> Scorer | LanguageModel:
    folders = find_model_folders(path)
    if folders.adapter is not None:
        raise ModelError(f"{path} is an adapter: start from what longrm merge {path} --out DIR writes")
    check_trainable(read_config(folders.base, path), path)
    # In the precision of the files nothing is copied; `set_precision` converts weight by weight.
    options: dict[str, Any] = {"dtype": stored_dtype(folders.base), "device": "cpu"}
    if start.lora and start.lora.load_in_4bit:  # on the device
        quantize = torch.bfloat16 if start.bf16 else torch.float32
        options |= {"device": str(resolve_device("auto")), "quantize": quantize}
    if kind == "scorer":
        if kind_of(path) == "generative":
            _logger.info("%s has no scalar head; a new one is initialized with seed %d", path, seed)
        options |= {"head": start.head, "head_seed": seed, "keep_padding": start.lora is not None}
        return load_scorer(path, **options)
    model = load_language_model(path, packed=True, **options)
    check_savable(model.model, path)
    return model
