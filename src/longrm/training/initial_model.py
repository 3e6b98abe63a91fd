"""The model that a training starts from."""

import logging
from pathlib import Path

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
from longrm.modeling.folders import check_trainable, find_model_folders, kind_of
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
)
from longrm.modeling.shapes import tile_length
from longrm.modeling.structured_start import structure
from longrm.training.objectives import ModelKind
from longrm.training.settings import ModelSettings, TrainingSettings
from longrm.worlds.words_tokenizer import load_tokenizer

_logger = logging.getLogger(__name__)


def initial_model(settings: TrainingSettings, kind: ModelKind) -> Scorer | LanguageModel:
    """Loads or creates the model that training starts from, with its adapters, precision and memory savings."""
    start, memory = settings.model, settings.memory
    if start.new is not None:
        shape, tokenizer = start.new.shape(start.rope_theta), load_tokenizer(start.new.tokenizer)
        model: Scorer | LanguageModel
        if kind == "scorer":
            model = new_scorer(shape, tokenizer, seed=settings.seed, head=start.head)
        else:
            model = new_language_model(shape, tokenizer, seed=settings.seed)
        if start.new.structured:
            structure(model.model, seed=settings.seed)
        model.model.to(resolve_device("auto"))
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
                rank=start.lora.rank,
                alpha=start.lora.alpha,
                targets=None,  # every linear layer but the heads
                seed=settings.seed,
                first_layer=start.frozen_layers,
            )
    freeze_layers(model.model, start.frozen_layers)
    set_precision(model.model, start.precision)
    if memory.gradient_checkpointing:
        checkpoint_activations(
            model.model, offload=memory.activation_offloading, keep_attention=memory.keep_attention
        )
    if memory.tiled_mlp:
        tile_feed_forward(model.model, tile_length(model.model.config.hidden_size))
    if start.compile:
        compile_layers(model.model)
    return model


def _load(path: str, start: ModelSettings, kind: ModelKind, seed: int) -> Scorer | LanguageModel:
    folders = find_model_folders(path)
    if folders.adapter is not None:
        raise ModelError(f"{path} is an adapter: start from what longrm merge {path} --out DIR writes")
    check_trainable(read_config(folders.base, path), path)
    # Trained weights are fp32. Frozen ones are kept in the precision in which they are used.
    dtype = torch.bfloat16 if start.lora and start.precision == "bfloat16" else torch.float32
    if kind == "scorer":
        if kind_of(path) == "generative":
            _logger.info("%s has no scalar head; a new one is initialized with seed %d", path, seed)
        return load_scorer(
            path, dtype=dtype, head=start.head, head_seed=seed, keep_padding=start.lora is not None
        )
    model = load_language_model(path, dtype=dtype, packed=True)
    check_savable(model.model, path)
    return model
