"""Converts a GGUF file into a folder of safetensors: transformers reads it, and what it would leave out is refused.

Transformers' reader passes over keys and tensors that it does not know, such as those that scale rotary positions. Here
every key of the architecture is carried over by name or refused, and every number that the file stores has a place in
the model.
"""

import contextlib
import io
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from longrm import reading
from longrm.errors import ModelError, RunError
from longrm.modeling.gguf_files import FACTS
from longrm.modeling.gguf_header import INSTEAD, GgufHeader, read_header
from longrm.modeling.gguf_positions import FREQUENCIES, rope_parameters
from longrm.modeling.gguf_tokenizer import read_gguf_tokenizer
from longrm.modeling.heads import TransformersModel
from longrm.modeling.loading import LanguageModel
from longrm.modeling.model_files import without_report
from longrm.modeling.saving import save

_FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.dimension_count": "head_dim",
}
"""Keys of an architecture, and the fields of a config of transformers that say the same."""

_logger = logging.getLogger(__name__)
_OTHER_KINDS = {"mmproj": "the part of a model that reads images", "adapter": "an adapter (LoRA)"}


def convert(file: Path, folder: Path, digest: str | None = None) -> None:
    """Writes the model of a GGUF file as transformers writes models: fp32 safetensors, config, tokenizer, template.

    Weights that are quantized stay what they are, written as the fp32 numbers that they stand for. `gguf.json` says
    which file they come from.

    Args:
        file: The file.
        folder: The folder to write, which is empty or not there: it is written beside its place and renamed.
        digest: The SHA-256 of the file, where that is known: it takes a while to compute.

    Raises:
        ModelError: The file cannot be read; it holds something else than a causal language model, or one that
            transformers does not compute as the file says; or there is no room for the copy.
        RunError: The folder cannot be written.
    """
    header = read_header(file)
    digest = digest or reading.file_digest(file, ModelError)
    with reading.reading(file, ModelError):  # values of another kind than their keys need
        _check_kind(header, file)
        _check_room(4 * header.numbers, folder, file)
        _logger.info("converting %s, once", file)
        config = _config(file, header)
        tokenizer = read_gguf_tokenizer(file, header)
        model = _read(file, config, header)
    # The ends of a text, and of a turn.
    ends = [header.fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    model.generation_config.eos_token_id = [end for end in dict.fromkeys(ends) if end is not None] or None
    facts = {"gguf": file.name, "gguf_sha256": digest, "gguf_types": header.quantization}
    scratch = folder.with_name(f".{folder.name}.gguf")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
    try:
        save(LanguageModel(model, tokenizer), scratch)
        (scratch / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        scratch.rename(folder)
    except OSError as error:
        raise RunError(f"cannot write the model to {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check_room(needed: int, folder: Path, file: Path) -> None:
    """Refuses a conversion whose copy, of so many bytes, has no room where it is to lie."""
    place = next(parent for parent in folder.absolute().parents if parent.is_dir())
    room = shutil.disk_usage(place).free
    if needed > room:
        raise ModelError(
            f"{file}: its fp32 copy takes {needed / 1e9:,.1f} GB, and {place} has room for {room / 1e9:,.1f} GB; "
            "make room there, or name another folder (that of copies with LONGRM_CACHE)"
        )


def _check_kind(header: GgufHeader, file: Path) -> None:
    """Refuses what holds no causal language model."""
    fields = header.fields
    architecture = fields.get("general.architecture")
    kind = "mmproj" if architecture == "clip" else fields.get("general.type", "model")
    if kind != "model":
        what = _OTHER_KINDS.get(kind, f"'{kind}'")
        raise ModelError(f"{file}: it holds {what}, and no language model: name the file of the model")
    if fields.get("split.count", 1) > 1:
        raise ModelError(
            f"{file}: one of {fields['split.count']} parts of a model: join them first (llama-gguf-split --merge)"
        )
    if not header.tensors or not isinstance(architecture, str):
        raise ModelError(
            f"{file}: it holds no weights, or does not say of which architecture: it is no model"
        )
    if any(name.startswith("cls.") for name in header.tensors):
        raise ModelError(
            f"{file}: a reward model or classifier (cls.*), whose head transformers does not read; {INSTEAD}"
        )


def _config(file: Path, header: GgufHeader) -> Any:
    """The config that transformers makes of the file, with every key of its architecture in its place."""
    try:
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    except Exception as error:  # what is missing or of the wrong kind there has no narrower type
        raise ModelError(
            f"{file}: transformers cannot read this GGUF file: {reading.one_line(error)}"
        ) from None
    given = _architecture_keys(header)
    for key, value in given.items():
        if key in _FIELDS and type(value) in (int, float):
            setattr(config, _FIELDS[key], value)
        elif not key.startswith("rope."):
            raise ModelError(
                f"{file}: {key} = {reading.short(value)} changes what the model computes, and cannot be carried over; "
                f"{INSTEAD}"
            )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    config.rope_parameters = rope_parameters(file, header, given, head_dim)
    return config


def _architecture_keys(header: GgufHeader) -> dict[str, Any]:
    prefix = f"{header.fields['general.architecture']}."
    return {key.removeprefix(prefix): value for key, value in header.fields.items() if key.startswith(prefix)}


def _read(file: Path, config: Any, header: GgufHeader) -> TransformersModel:
    """The model with its weights in fp32, as one that can be saved."""
    auto: Any = AutoModelForCausalLM
    try:
        with without_report(), contextlib.redirect_stderr(io.StringIO()):  # a progress bar
            quantized, report = auto.from_pretrained(
                file.parent,
                gguf_file=file.name,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are looked for below
            )
    except Exception as error:
        raise ModelError(
            f"{file}: transformers cannot read this GGUF file: {reading.one_line(error)}"
        ) from None
    wrong = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})
    if wrong:
        raise ModelError(
            f"{file}: {len(wrong)} weights are missing or have other sizes than its keys say, among them {wrong[0]}; "
            f"{INSTEAD}"
        )
    _check_all_read(quantized, header, file)
    # Transformers saves no model that it has read from GGUF, so another one takes its weights.
    config = quantized.config
    del config.quantization_config
    with torch.device("meta"):
        model = auto.from_config(config)
    model.load_state_dict(quantized.state_dict(), assign=True)
    model.tie_weights()
    return model


def _check_all_read(model: TransformersModel, header: GgufHeader, file: Path) -> None:
    """Refuses a file whose tensors are not all in the model: transformers passes over those that it does not know."""
    held = sum(parameter.numel() for parameter in model.parameters())
    left = sum(tensor.numbers for name, tensor in header.tensors.items() if name != FREQUENCIES)
    if left != held:
        raise ModelError(
            f"{file}: its tensors hold {left:,} numbers, and the model that transformers makes of it {held:,}: what is "
            f"left out would change what it computes; {INSTEAD}"
        )
