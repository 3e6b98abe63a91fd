"""The model that a training starts from."""

import logging
from pathlib import Path
from typing import Literal, assert_never, overload

import torch

from longrm import hub
from longrm.errors import ModelError
from longrm.modeling.capabilities import check_trainable
from longrm.modeling.checkpoints import read_config
from longrm.modeling.folders import kind_of, locate_parts
from longrm.modeling.loading import (
    LanguageModel,
    Scorer,
    load_language_model,
    load_scorer,
    new_language_model,
    new_scorer,
    rescale_rope,
    settle_device,
)
from longrm.modeling.memory import keep_layer_inputs, set_precision
from longrm.modeling.structured_start import structure
from longrm.modeling.tiled_mlp import tile_feed_forward, tile_length
from longrm.training.settings import ModelSettings, NewModel, Training
from longrm.worlds.words_tokenizer import load_tokenizer

Kind = Literal["scorer", "language_model"]
_logger = logging.getLogger(__name__)


@overload
def start_of(settings: Training, kind: Literal["scorer"]) -> Scorer: ...
@overload
def start_of(settings: Training, kind: Literal["language_model"]) -> LanguageModel: ...
@overload
def start_of(settings: Training, kind: Kind) -> Scorer | LanguageModel: ...
def start_of(settings: Training, kind: Kind) -> Scorer | LanguageModel:
    """The model that training starts from, set up as the settings have it: attention, RoPE, adapters, memory.

    Raises:
        ModelError: It cannot be loaded, or its architecture is not supported; the message says why.
    """
    model, memory = settings.model, settings.memory
    trainee = _new(model.new, kind, settings.seed) if model.new else _loaded(model, kind, settings.seed)
    if model.rope_theta is not None:
        rescale_rope(trainee.model, model.rope_theta)
    if model.lora is not None:
        _adapt(trainee, model, settings.seed)
    set_precision(trainee.model, model.precision)
    if memory.checkpointing:
        keep_layer_inputs(trainee.model, offload=memory.offload)
    if memory.tiled_mlp:
        tile_feed_forward(trainee.model, tile_length(trainee.model.config.hidden_size))
    return trainee


def _new(new: NewModel, kind: Kind, seed: int) -> Scorer | LanguageModel:
    trainee: Scorer | LanguageModel
    match kind:
        case "scorer":
            trainee = new_scorer(new.shape(), load_tokenizer(new.tokenizer), seed=seed)
        case "language_model":
            trainee = new_language_model(new.shape(), load_tokenizer(new.tokenizer), seed=seed)
        case unknown:
            assert_never(unknown)
    if new.structured:
        structure(trainee.model, seed=seed)
    trainee.model.to(settle_device("auto"))
    return trainee


def _loaded(model: ModelSettings, kind: Kind, seed: int) -> Scorer | LanguageModel:
    path = model.path
    assert path is not None
    parts = locate_parts(path)
    if parts.adapter is not None:
        raise ModelError(
            f"{path} is an adapter: merge it (longrm merge {path} --out DIR) and start from the merged model"
        )
    check_trainable(read_config(parts.base, path, trust_remote_code=False), path)
    holds = kind_of(path)
    # Frozen weights are kept as they are used; the others are trained in fp32.
    dtype = torch.bfloat16 if model.lora and model.precision == "bfloat16" else torch.float32
    match kind:
        case "scorer":
            if holds == "generative":
                _logger.info("%s has no scalar head; a new one is drawn from seed %d", path, seed)
            return load_scorer(path, dtype=dtype, head_seed=seed, keep_padding=model.lora is not None)
        case "language_model":
            if holds == "discriminative":
                raise ModelError(
                    f"{path} has a scalar head in place of one that writes: start from a language model"
                )
            return load_language_model(path, dtype=dtype, packed=True)
        case unknown:
            assert_never(unknown)


def _adapt(trainee: Scorer | LanguageModel, model: ModelSettings, seed: int) -> None:
    # PEFT takes two seconds to import, and most trainings have no adapter.
    from longrm.modeling.adapters import adapt

    lora, base = model.lora, model.path
    assert lora is not None
    assert base is not None
    named = None if Path(base).expanduser().is_dir() else hub.split_revision(base)
    adapt(
        trainee.model,
        base=base if named is None else named[0],
        revision=trainee.commits.get("commit"),
        rank=lora.rank,
        alpha=lora.alpha,
        targets=lora.targets,
        seed=seed,
    )
