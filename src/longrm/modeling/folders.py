"""Model folders: how one is found, and what kind of model it holds. Imports no torch."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from longrm import hub, reading
from longrm.errors import ModelError

HEAD = "score.weight"
"""The name of a scalar head among the weights of a sequence classifier."""

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter, as PEFT writes them: small changes to the weights of a base model."""

ADAPTER_HEAD = f"base_model.model.{HEAD}"
"""The name of a scalar head among the weights of an adapter."""

_READ = (
    "generation_config.json",
    "model.safetensors.index.json",
    "processor_config.json",
    "preprocessor_config.json",
)
"""Files that transformers reads beside config and tokenizer, where they exist; each holds an object."""

_GATE = re.compile(r"(?:gating|gate|weight_net)\.")
"""What weights are called that weigh several rewards by the prompt, as ArmoRM's (arXiv 2406.12845) do."""

_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.py", "README.md"]
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit


_LARGEST = {
    "num_hidden_layers": 1000,
    "hidden_size": 1_000_000,
    "intermediate_size": 10_000_000,
    "num_attention_heads": 100_000,
    "num_key_value_heads": 100_000,
    "head_dim": 100_000,
    "vocab_size": 100_000_000,
    "max_position_embeddings": 2**40,
}
"""The largest sizes in a config: a model is built from them before its weights could show that they are wrong."""


class _Config(BaseModel):
    """The fields of a config that identify the kind of model."""

    model_config = ConfigDict(extra="allow")

    architectures: list[str] | None = None
    model_type: str | None = None


class _Adapter(BaseModel):
    """The fields of an adapter's config that are read here."""

    model_config = ConfigDict(extra="allow")

    base_model_name_or_path: str | None = None
    revision: str | None = None
    task_type: str | None = None
    r: Annotated[int, Field(strict=True, ge=1, le=65_536)] | None = None


class _Index(BaseModel):
    """The index of a folder: the file of every weight."""

    weight_map: dict[str, Annotated[str, Field(pattern=r"^[^/]+\.safetensors$")]]


class _Tensor(BaseModel):
    """A tensor in the header of a safetensors file."""

    dtype: str
    shape: list[Annotated[int, Field(strict=True, ge=0)]]
    data_offsets: tuple[int, int]


_CONFIG, _ADAPTER, _INDEX = TypeAdapter(_Config), TypeAdapter(_Adapter), TypeAdapter(_Index)
_HEADER = TypeAdapter(dict[str, _Tensor])


@dataclass(frozen=True, slots=True)
class ModelFolders:
    """The folders that hold the parts of a model.

    Attributes:
        base: The folder with its config and weights.
        tokenizer: The folder with its tokenizer.
        adapter: The folder with changes to the weights, where the model is an adapter.
    """

    base: Path
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
    """Finds the parts of a model; an adapter names its base, and its own tokenizer comes before the base's.

    Raises:
        ModelError: There is no such model, its files cannot be read, or an adapter's base is not found.
    """
    folder = find_model_folder(source)
    if not (folder / ADAPTER).is_file():
        return ModelFolders(folder, folder)
    if not os.path.lexists(folder / ADAPTER_WEIGHTS):
        raise ModelError(f"{source} is an adapter without {ADAPTER_WEIGHTS}: save it as safetensors")
    config = _read_adapter(folder)
    named, revision = config.base_model_name_or_path, config.revision
    if named is None:
        raise ModelError(f"{source}: its {ADAPTER} names no base model (base_model_name_or_path)")
    try:
        base = find_model_folder(
            f"{named}@{revision}" if revision and not Path(named).expanduser().is_dir() else named
        )
    except ModelError as error:
        raise ModelError(f"{source} is an adapter, and its base cannot be found: {error}") from None
    if (base / ADAPTER).is_file():
        raise ModelError(
            f"{source} is an adapter of an adapter, {named}: merge that one first (longrm merge)"
        )
    return ModelFolders(base, folder if (folder / "tokenizer.json").is_file() else base, folder)


def find_model_folder(source: str | Path) -> Path:
    """The folder of a model; a model of the Hub is downloaded.

    Raises:
        ModelError: There is no such folder, and no such model on the Hub.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelError(f"{source} is a file: give the model's folder")
    if hub.split_revision(str(source)) is None:
        lack = hub.missing_part(str(source))
        raise ModelError(f"{source}: {lack or 'there is no such model folder'}")
    return hub.fetch(str(source), _PATTERNS, ModelError)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a model folder.

    Raises:
        ModelError: It holds no config or one that no model can have, no weights, or pickled ones only.
    """
    if not os.path.lexists(folder / "config.json"):
        raise ModelError(f"{folder} has no config.json: it is not a model folder")
    _read_config(folder)
    for name in _READ:
        if os.path.lexists(folder / name):
            value = reading.read_json(folder / name, ModelError)
            if name.endswith("index.json"):
                reading.typed(_INDEX, value, folder / name, ModelError)
    shards = sorted(folder.glob("model*.safetensors"))
    if shards:
        return shards
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise ModelError(f"{folder} has only pickled weights, which may run code: save it as safetensors")
    raise ModelError(f"{folder} has no weights (model*.safetensors)")


def kind_of(source: str | Path) -> Literal["discriminative", "generative"]:
    """Whether a model scores, as its weights hold a head, or else writes, as its config says.

    Args:
        source: A folder with `config.json` and safetensors, or with an adapter, a GGUF file or a folder that holds one,
            or a Hub id such as `owner/name`.

    Raises:
        ModelError: It can do neither, or its files cannot be read.
    """
    parts = find_model_folders(source)
    if has_head(parts):
        return "discriminative"
    shards = weight_files(parts.base)
    architectures = _read_config(parts.base).architectures or []
    gate = next((name for shard in shards for name in tensor_headers(shard) if _GATE.match(name)), None)
    if gate is not None:
        raise ModelError(
            f"{source}: its scores are weighed by a gate that reads the prompt ({gate}), which is not computed here; "
            "a head whose labels have fixed weights can be read (--weights)"
        )
    if any(name.endswith("ForCausalLM") for name in architectures):
        return "generative"
    named = ", ".join(architectures) or "none"
    raise ModelError(
        f"{source}: neither a scalar head ({HEAD}) among its weights nor a causal language model in its config "
        f"(architectures: {named})"
    )


def has_head(parts: ModelFolders) -> bool:
    """Whether a model is a sequence classifier, which scores and does not write.

    Raises:
        ModelError: Its files cannot be read.
    """
    if parts.adapter:
        task = _read_adapter(parts.adapter).task_type
        # A reward model whose trained head is lost is still no generative model.
        if task == "SEQ_CLS" or ADAPTER_HEAD in tensor_headers(parts.adapter / ADAPTER_WEIGHTS):
            return True
    return any(HEAD in tensor_headers(shard) for shard in weight_files(parts.base))


def positions_of(source: str | Path) -> int | None:
    """The most tokens that a model reads, as its config says; None where it says nothing.

    Raises:
        ModelError: There is no such model, or its config cannot be read.
    """
    said = (_read_config(find_model_folders(source).base).model_extra or {}).get("max_position_embeddings")
    return said if isinstance(said, int) else None


def _read_config(folder: Path) -> _Config:
    file = folder / "config.json"
    fields = reading.read_json(file, ModelError)
    for name, most in _LARGEST.items():
        sizes = fields.get(name)
        for size in sizes if isinstance(sizes, list) else [] if sizes is None else [sizes]:
            # Some architectures have a size for every layer.
            if type(size) is not int or not 1 <= size <= most:
                raise ModelError(
                    f"{file}, field '{name}': needs a whole number from 1 to {most:,}, got {reading.short(size)}"
                )
    return reading.typed(_CONFIG, fields, file, ModelError)


def _read_adapter(folder: Path) -> _Adapter:
    file = folder / ADAPTER
    return reading.typed(_ADAPTER, reading.read_json(file, ModelError), file, ModelError)


def tensor_headers(shard: Path) -> dict[str, Any]:
    """The names of the tensors in a safetensors file, with their types and shapes.

    Raises:
        ModelError: It is no such file.
    """
    with reading.reading(shard, ModelError), shard.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        text = stream.read(size) if size <= _LONGEST_HEADER else b""
    try:
        tensors = reading.parse_json(text)
    except ValueError as error:
        raise ModelError(f"{shard}: not safetensors: its weights cannot be read ({error})") from None
    if not isinstance(tensors, dict):
        raise ModelError(f"{shard}: not safetensors: its weights cannot be read")
    tensors.pop("__metadata__", None)
    reading.typed(_HEADER, tensors, shard, ModelError)
    return tensors
