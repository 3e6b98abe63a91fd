"""The model that a training starts from."""

import logging
from pathlib import Path
from typing import assert_never

import torch

from longrm import hub
from longrm.errors import ModelError
from longrm.modeling.device_memory import checkpoint_activations, set_precision, tile_feed_forward
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
from longrm.training.objectives.spec import ModelKind
from longrm.training.training_settings import ModelSettings, NewModelSettings, TrainingSettings
from longrm.worlds.words_tokenizer import load_tokenizer

_logger = logging.getLogger(__name__)


def initial_model(settings: TrainingSettings, kind: ModelKind) -> Scorer | LanguageModel:
    """The model that training starts from, set up as the settings have it: attention, RoPE, adapters, memory.

    Raises:
        ModelError: It cannot be loaded, or its architecture is not supported; the message says why.
    """
    start, memory = settings.model, settings.memory
    model = _new(start.new, kind, settings.seed) if start.new else _loaded(start, kind, settings.seed)
    if start.rope_theta is not None:
        rescale_rope(model.model, start.rope_theta)
    if start.lora is not None:
        _add_adapters(model, start, settings.seed)
    set_precision(model.model, start.precision)
    if memory.gradient_checkpointing:
        checkpoint_activations(model.model, offload=memory.activation_offloading)
    if memory.tiled_mlp:
        tile_feed_forward(model.model, tile_length(model.model.config.hidden_size))
    return model


def _new(new: NewModelSettings, kind: ModelKind, seed: int) -> Scorer | LanguageModel:
    model: Scorer | LanguageModel
    match kind:
        case "scorer":
            model = new_scorer(new.shape(), load_tokenizer(new.tokenizer), seed=seed)
        case "language_model":
            model = new_language_model(new.shape(), load_tokenizer(new.tokenizer), seed=seed)
        case unknown:
            assert_never(unknown)
    if new.structured:
        structure(model.model, seed=seed)
    model.model.to(resolve_device("auto"))
    return model


def _loaded(start: ModelSettings, kind: ModelKind, seed: int) -> Scorer | LanguageModel:
    path = start.path
    assert path is not None
    parts = find_model_folders(path)
    if parts.adapter is not None:
        raise ModelError(
            f"{path} is an adapter: merge it (longrm merge {path} --out DIR) and start from the merged model"
        )
    check_trainable(read_config(parts.base, path, trust_remote_code=False), path)
    # Frozen weights are kept as they are used; the others are trained in fp32.
    dtype = torch.bfloat16 if start.lora and start.precision == "bfloat16" else torch.float32
    match kind:
        case "scorer":
            if kind_of(path) == "generative":
                _logger.info("%s has no scalar head; a new one is drawn from seed %d", path, seed)
            return load_scorer(path, dtype=dtype, head_seed=seed, keep_padding=start.lora is not None)
        case "language_model":
            loaded = load_language_model(path, dtype=dtype, packed=True)
            check_savable(loaded.model, path)
            return loaded
        case unknown:
            assert_never(unknown)


def _add_adapters(model: Scorer | LanguageModel, start: ModelSettings, seed: int) -> None:
    # PEFT takes two seconds to import, and most trainings have no adapter.
    from longrm.modeling.adapters import adapt

    lora, base = start.lora, start.path
    assert lora is not None
    assert base is not None
    named = None if Path(base).expanduser().exists() else hub.split_revision(base)
    adapt(
        model.model,
        base=base if named is None else named[0],
        revision=model.origin.get("commit"),
        rank=lora.rank,
        alpha=lora.alpha,
        targets=lora.targets,
        seed=seed,
    )
