"""Writes models: those that were trained, and an adapter merged into its base."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

import torch
from safetensors import SafetensorError

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError, RunError
from longrm.modeling.capabilities import check_trainable
from longrm.modeling.device_memory import precision_of
from longrm.modeling.folders import ADAPTER, HEAD, find_model_folders, kind_of
from longrm.modeling.heads import TransformersModel
from longrm.modeling.loading import LanguageModel, LoadedModel, Scorer, load_language_model, load_scorer
from longrm.modeling.model_files import read_config
from longrm.reading import read_json
from longrm.runs.folder import keep_umask
from longrm.runs.promised_files import FILES, check_files, record_files
from longrm.runs.scratch import new_folder

_PROMISED = ("*.safetensors", "*.safetensors.index.json", "config.json", "tokenizer.json")
"""The files of a model whose sizes and digests are recorded; others, such as its card, are meant to be edited."""


def save(model: LoadedModel, folder: str | Path) -> None:
    """Writes a folder that transformers' own auto classes load as it is, with plain attention.

    A model that trained in bf16 is written in bf16, its scalar head in fp32. Of a model with adapters these are
    written, for PEFT, and the head. The config of a scorer says that it is one of regression, by which servers know
    that its score is the raw logit. What is already there is replaced, and only by something complete.

    Raises:
        RunError: the folder cannot be written, or holds something that is not a model.
    """
    target = Path(folder)
    known = any((target / name).is_file() for name in ("config.json", ADAPTER))
    empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not known and not empty:
        raise RunError(f"{target} exists and is not a model folder: choose another place")
    try:
        with new_folder(target) as scratch:
            _write(model, scratch)
            model.tokenizer.save(scratch)
            for file in scratch.glob("*.safetensors"):
                keep_umask(file)
            record_files(scratch, {file for pattern in _PROMISED for file in scratch.glob(pattern)})
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write the model to {target}: {error}") from None


def merge(
    source: str | Path,
    out: str | Path,
    *,
    finish: Callable[[Path], None] = lambda folder: None,
    trust_remote_code: bool = False,
) -> None:
    """Writes a model with its adapter merged in, the scalar head included, in the base's dtype.

    The folder appears when it is complete: a merge that was killed can be repeated.

    Args:
        source: The folder or Hub id of an adapter.
        out: The folder to write.
        finish: Writes into the folder of the model, before it appears, what else belongs there.
        trust_remote_code: Whether code that comes with the base may run.

    Raises:
        ModelError: There is no adapter, its base cannot be loaded, or the sum of both is not finite.
        RunError: The folder is not empty, or cannot be written.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} is not empty: choose another place for the merged model")
    try:
        with new_folder(out) as folder:
            _merge(source, folder, trust_remote_code)
            finish(folder)
    except OSError as error:
        raise RunError(f"cannot write the model to {out}: {error.strerror or error}") from None


def _merge(source: str | Path, folder: Path, trust_remote_code: bool) -> None:
    parts = find_model_folders(source)
    if parts.adapter is None:
        raise ModelError(f"{source} is a full model: there is no adapter to merge")
    for part in (parts.base, parts.adapter):
        if (part / FILES).is_file():
            check_files(part, digests=True)
    check_trainable(read_config(parts.base, str(source), trust_remote_code), str(source))
    model: LoadedModel
    match kind_of(source):
        case "discriminative":
            model = load_scorer(source, device="cpu", trust_remote_code=trust_remote_code)
        case "generative":
            model = load_language_model(source, device="cpu", trust_remote_code=trust_remote_code)
        case unknown:
            assert_never(unknown)
    from longrm.modeling.adapters import merge_adapter  # late: PEFT takes two seconds to import

    merge_adapter(model.model)
    save(model, folder)


def _write(loaded: LoadedModel, folder: Path) -> None:
    model = loaded.model
    if hasattr(model, "peft_config"):
        from longrm.modeling.adapters import write_adapter  # late, as in _complete

        write_adapter(model, folder)
        return
    if isinstance(loaded, LanguageModel):
        _declare_ends(model, loaded.tokenizer)
    if isinstance(loaded, Scorer):
        model.config.problem_type = "regression"  # else vLLM serves the sigmoid of a score
    if precision_of(model) == "float32":
        model.save_pretrained(folder)
        return
    model.save_pretrained(folder, state_dict=_halved(model))
    config = read_json(folder / "config.json", ModelError)
    text = json.dumps(config | {"dtype": "bfloat16"}, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def _halved(model: TransformersModel) -> dict[str, torch.Tensor]:
    """The weights on the CPU, in bf16 but for the scalar head; what is one tensor in the model stays one."""
    once: dict[int, torch.Tensor] = {}
    weights = {}
    for name, tensor in model.state_dict().items():
        place = tensor.data_ptr()
        if place not in once:
            once[place] = tensor.to("cpu", torch.float32 if name == HEAD else torch.bfloat16)
        weights[name] = once[place]
    return weights


def _declare_ends(model: TransformersModel, tokenizer: Tokenizer) -> None:
    """Makes whoever serves a model stop at the tokenizer's end of a message too, and pad with no such end."""
    config = model.generation_config
    declared = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    ends = [end for end in dict.fromkeys([*declared, tokenizer.eos_id]) if end is not None]
    config.eos_token_id = ends[0] if len(ends) == 1 else ends or None
    config.pad_token_id = model.config.pad_token_id
    config._from_model_config = False  # else transformers may put the model config's own in place of these
