"""Model folders and configs: where a model's parts are, of what kind it is, and whether it is supported. No torch.

Folders may come from the Hub, which is not trusted: weights are safetensors only, and none of their code runs.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from longrm import hub
from longrm.errors import ModelError
from longrm.reading import read_json, reading
from longrm.runs.folder import FILES, MANIFEST, trained_model

HEAD_PREFIX = "score."
"""Begins the names of a scalar head's weights in a sequence classifier."""

HEAD, HEAD_OUT = "score.weight", "score.out.weight"
"""The names of a scalar head's weight, and of the second layer of an MLP head, whose first layer is `HEAD`."""

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of a low-rank adapter, as PEFT writes them."""

ADAPTER_PREFIX = "base_model.model."
"""Begins the names of all weights of an adapter."""

ADAPTER_HEAD = ADAPTER_PREFIX + HEAD
"""The name of a scalar head among the weights of an adapter."""

_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "README.md"]  # what is downloaded from the Hub

_LONGEST_HEADER = 100_000_000  # bytes; the limit of safetensors itself

# Weights that combine several rewards depending on the prompt, as ArmoRM's (arXiv 2406.12845) do.
_GATE = re.compile(r"(?:gating|gate|weight_net)\.")


class _Config(BaseModel):
    """The fields that are read here of a model's `config.json`, or of an adapter's."""

    architectures: list[str] | None = None
    max_position_embeddings: Any = None
    # Of an adapter:
    base_model_name_or_path: str | None = None
    revision: str | None = None
    task_type: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFolders:
    """The folders that hold the parts of a model."""

    base: Path  # with config and weights
    tokenizer: Path
    adapter: Path | None = None

    @property
    def origin(self) -> dict[str, str]:
        """Commits of what comes from the Hub: `commit`, and `base_commit` for an adapter."""
        found = {"commit": hub.commit_of(self.adapter or self.base)}
        if self.adapter:
            found["base_commit"] = hub.commit_of(self.base)
        return {name: commit for name, commit in found.items() if commit is not None}


def find_model_folders(source: str | Path) -> ModelFolders:
    """Finds the parts of a model. An adapter names its base, and its own tokenizer is preferred to the base's."""
    folder = find_model_folder(source)
    if not (folder / ADAPTER).is_file():
        return ModelFolders(folder, folder)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"{source} is an adapter without {ADAPTER_WEIGHTS}: save it as safetensors")
    config = _read_config(folder, ADAPTER)
    named, revision = config.base_model_name_or_path, config.revision
    if named is None:
        raise ModelError(f"{folder / ADAPTER}, field 'base_model_name_or_path': names no base model")
    try:
        is_folder = Path(named).expanduser().is_dir()
        base = find_model_folder(f"{named}@{revision}" if revision and not is_folder else named)
    except ModelError as error:
        raise ModelError(f"{source} is an adapter whose base model was not found: {error}") from None
    if (base / ADAPTER).is_file():
        raise ModelError(
            f"{source} is an adapter of an adapter, {named}: merge that one first (longrm merge)"
        )
    return ModelFolders(base, folder if (folder / "tokenizer.json").is_file() else base, folder)


def find_model_folder(source: str | Path) -> Path:
    """Returns the folder of a model, which may be that of a training run; a model of the Hub is downloaded."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        model = trained_model(folder)
        # A model without its chat template, say, would be read in another form.
        listed = read_json(model / FILES, ModelError) if (model / FILES).is_file() else {}
        if missing := [name for name in listed if not (model / name).exists()]:
            raise ModelError(
                f"{model / missing[0]} is missing: restore it, or remove {model / FILES}, which lists it, if you "
                "deleted it on purpose"
            )
        return model
    if folder.exists():
        raise ModelError(f"{source} is a file, not a model folder")
    if hub.split_revision(str(source)) is None:
        raise ModelError(f"{source}: {hub.missing_part(str(source)) or 'no such model folder'}")
    return hub.fetch(str(source), _PATTERNS, ModelError)


def weight_files(folder: Path) -> list[Path]:
    """Returns the safetensors files of a model folder; refuses a folder without config or with pickled weights only."""
    if not (folder / "config.json").is_file():
        lacks = "it is not a model folder"
        if (folder / MANIFEST).is_file():
            lacks = "it is the folder of a run without a finished model"
        raise ModelError(f"{folder} has no config.json: {lacks}")
    shards = sorted(folder.glob("model*.safetensors"))
    if shards:
        return shards
    if any(file.suffix in (".bin", ".pt", ".pth") for file in folder.iterdir()):
        raise ModelError(f"{folder} has only pickled weights, which may run code: save it as safetensors")
    raise ModelError(f"{folder} has no weights (model*.safetensors)")


def kind_of(source: str | Path) -> Literal["discriminative", "generative"]:
    """Whether a model scores (its weights contain a head) or generates (its config names a language model)."""
    parts = find_model_folders(source)
    if has_head(parts):
        return "discriminative"
    shards = weight_files(parts.base)
    architectures = _read_config(parts.base).architectures or []
    gate = next((name for shard in shards for name in tensor_shapes(shard) if _GATE.match(name)), None)
    if gate is not None:
        raise ModelError(
            f"{source}: a gate that reads the prompt ({gate}) weights its scores, which is not supported; heads with "
            "fixed weights per label are (--weights)"
        )
    # A multimodal model may have a text part; otherwise it is refused with its reason when it is loaded.
    if any(name.endswith(("ForCausalLM", "ForConditionalGeneration")) for name in architectures):
        return "generative"
    raise ModelError(
        f"{source}: neither a scalar head ({HEAD}) among its weights nor a causal language model in its config "
        f"(architectures: {', '.join(architectures) or 'none'})"
    )


def has_head(parts: ModelFolders) -> bool:
    """Whether a model is a sequence classifier, which scores and cannot generate."""
    if parts.adapter:
        task = _read_config(parts.adapter, ADAPTER).task_type
        # A reward model without its trained head is still no generative model.
        if task == "SEQ_CLS" or ADAPTER_HEAD in tensor_shapes(parts.adapter / ADAPTER_WEIGHTS):
            return True
    return any(HEAD in tensor_shapes(shard) for shard in weight_files(parts.base))


def has_mlp_head(folder: Path) -> bool:
    """Whether a folder has the weights of a model or an adapter with an MLP head."""
    shards = folder.glob("*model*.safetensors")
    return any(name.endswith(HEAD_OUT) for shard in shards for name in tensor_shapes(shard))


def positions_of(source: str | Path) -> int | None:
    """Returns the context length in a model's config; None if it has none."""
    limit = _read_config(find_model_folders(source).base).max_position_embeddings
    return limit if isinstance(limit, int) else None


def tensor_shapes(shard: Path) -> dict[str, list[int]]:
    """Returns the shapes of the tensors in a safetensors file by name."""
    return {name: shape for name, (_, shape) in _tensors(shard).items()}


def stored_precisions(folder: Path) -> set[str]:
    """Returns the dtypes of a model's weights, but for its scalar head, as safetensors names them."""
    shards = map(_tensors, weight_files(folder))
    return {
        dtype for shard in shards for name, (dtype, _) in shard.items() if not name.startswith(HEAD_PREFIX)
    }


def _tensors(shard: Path) -> dict[str, tuple[str, list[int]]]:
    """The dtypes and shapes of the tensors in a safetensors file by name. The file's header is plain JSON."""
    with reading(shard, ModelError), shard.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        try:
            tensors = json.loads(stream.read(size) if size <= _LONGEST_HEADER else b"")
            return {
                name: (tensor["dtype"], tensor["shape"])
                for name, tensor in tensors.items()
                if name != "__metadata__"
            }
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ModelError(f"{shard}: not safetensors: its weights cannot be read") from None


def _read_config(folder: Path, name: str = "config.json") -> _Config:
    with reading(folder / name, ModelError):
        return _Config.model_validate(read_json(folder / name, ModelError))


# Capabilities, read from the config of transformers and never from a model's name


def check_config(config: Any, where: str) -> None:
    """Refuses a config that needs what attention over a shared prefix does not compute, with a `ModelError`."""
    for problem in unsupported(config):
        raise ModelError(f"{where}: {problem}")


def check_decoder(config: Any, where: str) -> None:
    """Refuses the config of a model that is not a text-only causal decoder, with a `ModelError`."""
    if problem := _not_a_decoder(config):
        raise ModelError(f"{where}: {problem}")


def check_trainable(config: Any, where: str) -> None:
    """Refuses the config of a quantized model with a `ModelError`: its weights cannot learn or be merged."""
    quantized = getattr(config, "quantization_config", None)
    if quantized:
        fields = quantized if isinstance(quantized, dict) else vars(quantized)
        raise ModelError(
            f"{where}: its weights are quantized ({fields.get('quant_method', 'by an unknown method')}); training and "
            "merging need the original model"
        )


def _not_a_decoder(config: Any) -> str | None:
    if config.is_encoder_decoder:
        return "an encoder-decoder model: only decoders are supported"
    if getattr(config, "is_causal", True) is False or getattr(config, "use_bidirectional_attention", False):
        return "bidirectional attention: only causal attention is supported"
    if config.get_text_config() is not config:
        return "a multimodal model: only text models are supported"
    return None


def layer_kinds(config: Any) -> list[str]:
    """The kinds of all layers, as transformers names them; without `layer_types`, all have the window, if any."""
    kinds: list[str] | None = getattr(config, "layer_types", None)
    windowed = getattr(config, "sliding_window", None) is not None
    return kinds or ["sliding_attention" if windowed else "full_attention"] * config.num_hidden_layers


RECURRENT = {"linear_attention", "conv", "hybrid"}
"""Kinds of layers that carry a state from token to token, next to attention (hybrid) or in its place."""


def recurrent_layers(config: Any) -> dict[int, str]:
    """The kinds of a model's recurrent layers by their numbers."""
    return {number: kind for number, kind in enumerate(layer_kinds(config)) if kind in RECURRENT}


def check_keys_only(config: Any, what: str) -> None:
    """Refuses a model with recurrent layers for what stores or exchanges keys and values alone, with a `ModelError`."""
    if recurrent_layers(config):
        raise ModelError(f"{what}: not supported for a model with recurrent layers")


def unsupported(config: Any) -> Iterator[str]:
    """Yields what a model does that neither a shared prefix nor reading block by block computes exactly."""
    if problem := _not_a_decoder(config):
        yield problem
    known = RECURRENT | {"full_attention", "sliding_attention", "moe", "mlp"}
    other = sorted(set(getattr(config, "layer_types", None) or ()) - known)
    named = ", ".join(other)
    if named == "chunked_attention":
        yield f"{named}: attention within chunks is not supported with a shared prefix"
    elif named:
        yield f"layers of type {named}: not supported with a shared prefix"
    if getattr(config, "alibi", False):
        yield "alibi positions: a bias on attention logits is not supported"
    rope = getattr(config, "rope_parameters", None)
    if recurrent_layers(config):
        if getattr(config, "max_position_embeddings", None) is None:
            yield "no context length in its config (a pure state-space model): not supported"
        if not rope:
            return  # states alone encode positions
    if not rope:
        yield "no rotary positions (learned or ALiBi): not supported with a shared prefix"
        return
    # Some families have parameters for each kind of layer.
    for own in (part for part in (rope, *rope.values()) if isinstance(part, dict)):
        if own.get("rope_type", "default") in ("dynamic", "longrope"):
            yield (
                f"rope_type = {own['rope_type']}: its frequencies depend on the longest sequence of a call, so scores "
                "would depend on the batch"
            )
