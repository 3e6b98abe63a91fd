"""Writes models: trained ones, and an adapter merged into its base."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError, RunError
from longrm.modeling.device_memory import precision_of
from longrm.modeling.folders import ADAPTER, HEAD_PREFIX, check_trainable, find_model_folders, kind_of
from longrm.modeling.loading import (
    LanguageModel,
    LoadedModel,
    Scorer,
    load_language_model,
    load_scorer,
    read_config,
)
from longrm.modeling.shared_prefix import TransformersModel
from longrm.runs.folder import FILES, check_files, keep_umask, record_files
from longrm.runs.scratch import new_folder

_CARD = "README.md"  # not recorded: users edit it before they push a model


def save(model: LoadedModel, folder: str | Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
    """Writes a folder that transformers' own auto classes load, with plain attention, unless its head is an `MLPHead`.

    A model that trained in bf16 is written in bf16, its scalar head in fp32. For a model with adapters, the adapters
    are written for PEFT, and the head. What is already there is replaced, and only by something complete. Of a sharded
    model, `weights` are those that `gather_weights` returned.

    Raises:
        RunError: The folder cannot be written, or contains something that is not a model.
    """
    target = Path(folder)
    known = any((target / name).is_file() for name in ("config.json", ADAPTER))
    empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not known and not empty:
        raise RunError(f"{target} exists and is not a model folder; choose another one")
    try:
        with new_folder(target) as scratch:
            _write(model, scratch, weights)
            model.tokenizer.save(scratch)
            for file in scratch.glob("*.safetensors"):
                keep_umask(file)
            record_files(
                scratch, [file for file in scratch.rglob("*") if file.is_file() and file.name != _CARD]
            )
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write the model to {target}: {error}") from None


def merge(
    source: str | Path, out: str | Path, *, finish: Callable[[Path], None] = lambda folder: None
) -> None:
    """Writes a model with its adapter merged in, the scalar head included, in the base's dtype.

    The folder appears when it is complete, so a merge that was killed can be repeated. Before, `finish` may write
    further files into it.

    Raises:
        ModelError: There is no adapter, its base cannot be loaded, or a sum of both is not finite.
        RunError: The folder is not empty, or cannot be written.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} is not empty; choose another folder for the merged model")
    try:
        with new_folder(out) as folder:
            parts = find_model_folders(source)
            if parts.adapter is None:
                raise ModelError(f"{source} is a full model: there is no adapter to merge")
            for part in (parts.base, parts.adapter):
                if (part / FILES).is_file():
                    check_files(part, digests=True)
            check_trainable(read_config(parts.base, str(source)), str(source))
            load = load_scorer if kind_of(source) == "discriminative" else load_language_model
            model = load(source, device="cpu")
            from longrm.modeling.adapters import merge_adapter  # late: PEFT takes two seconds to import

            merge_adapter(model.model)
            save(model, folder)
            finish(folder)
    except OSError as error:
        raise RunError(f"cannot write the model to {out}: {error.strerror or error}") from None


def _write(loaded: LoadedModel, folder: Path, weights: Mapping[str, torch.Tensor] | None) -> None:
    model = loaded.model
    if hasattr(model, "peft_config"):
        from longrm.modeling.adapters import write_adapter  # late: PEFT takes two seconds to import

        write_adapter(model, folder, weights)
        return
    if isinstance(loaded, LanguageModel):
        _declare_ends(model, loaded.tokenizer)
    if isinstance(loaded, Scorer):
        model.config.problem_type = "regression"  # else vLLM serves the sigmoid of a score
    if precision_of(model) == "float32":
        model.save_pretrained(folder, state_dict=weights)
        return
    model.save_pretrained(folder, state_dict=_bf16_weights(weights or model.state_dict()))
    file = folder / "config.json"  # transformers writes the dtype of the model in memory
    config = json.loads(file.read_text(encoding="utf-8")) | {"dtype": "bfloat16"}
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _bf16_weights(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights on the CPU, in bf16 but for the scalar head; tied weights stay one tensor."""
    converted: dict[int, torch.Tensor] = {}
    weights = {}
    for name, tensor in state.items():
        address = tensor.data_ptr()
        if address not in converted:
            exact = name.startswith(HEAD_PREFIX)
            converted[address] = tensor.to("cpu", torch.float32 if exact else torch.bfloat16)
        weights[name] = converted[address]
    return weights


def _declare_ends(model: TransformersModel, tokenizer: Tokenizer) -> None:
    """Declares the tokenizer's end of a message as an end of generation, for servers, and the padding of the config."""
    config = model.generation_config
    declared = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    ends = [end for end in dict.fromkeys([*declared, tokenizer.eos_id]) if end is not None]
    config.eos_token_id = ends[0] if len(ends) == 1 else ends or None
    config.pad_token_id = model.config.pad_token_id
    config._from_model_config = False  # else transformers may replace these by the model config's own
