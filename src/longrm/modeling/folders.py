"""Model folders: where one lies, and what kind of model it holds. Imports no torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from longrm import hub
from longrm.errors import ModelError

HEAD = "score.weight"
"""The name of a scalar head among the weights of a sequence classifier."""

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter, as PEFT writes them: small changes to the weights of a base model."""

ADAPTER_HEAD = f"base_model.model.{HEAD}"
"""The name of a scalar head among the weights of an adapter."""

_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.py"]
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the parts of a model lie.

    Attributes:
        base: The folder with its config and weights.
        tokenizer: The folder with its tokenizer.
        adapter: The folder with changes to the weights, where the model is an adapter.
    """

    base: Path
    tokenizer: Path
    adapter: Path | None = None

    @property
    def commits(self) -> dict[str, str]:
        """Of what comes from the Hub, the commits: the model's, and that of an adapter's base."""
        found = {"commit": hub.commit_of(self.adapter or self.base)}
        if self.adapter:
            found["base_commit"] = hub.commit_of(self.base)
        return {name: commit for name, commit in found.items() if commit is not None}


def locate_parts(source: str | Path) -> Parts:
    """Finds the parts of a model; an adapter names its base, and its own tokenizer comes before the base's.

    Raises:
        ModelError: There is no such model, its files cannot be read, or an adapter's base is not found.
    """
    folder = locate(source)
    if not (folder / ADAPTER).is_file():
        return Parts(folder, folder)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"{source} is an adapter without {ADAPTER_WEIGHTS}: save it as safetensors")
    told = _object(folder / ADAPTER, f"{source}: its {ADAPTER}")
    named, revision = told.get("base_model_name_or_path"), told.get("revision")
    if not isinstance(named, str):
        raise ModelError(f"{source}: its {ADAPTER} names no base model (base_model_name_or_path)")
    try:
        base = locate(f"{named}@{revision}" if revision and not Path(named).expanduser().is_dir() else named)
    except ModelError as error:
        raise ModelError(f"{source} is an adapter, and its base cannot be found: {error}") from None
    if (base / ADAPTER).is_file():
        raise ModelError(
            f"{source} is an adapter of an adapter, {named}: merge that one first (longrm merge)"
        )
    return Parts(base, folder if (folder / "tokenizer.json").is_file() else base, folder)


def locate(source: str | Path) -> Path:
    """The folder of a model; one of the Hub is downloaded.

    Raises:
        ModelError: There is no such folder, and no such model on the Hub.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelError(f"{source} is a file: give the model's folder")
    if hub.split_revision(str(source)) is None:
        raise ModelError(f"{source}: there is no such model folder")
    return hub.fetch(str(source), _PATTERNS, ModelError)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a model folder.

    Raises:
        ModelError: It holds no config, no weights, or pickled ones only.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: it is not a model folder")
    shards = sorted(folder.glob("model*.safetensors"))
    if shards:
        return shards
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise ModelError(f"{folder} has only pickled weights, which may run code: save it as safetensors")
    raise ModelError(f"{folder} has no weights (model*.safetensors)")


def kind_of(source: str | Path) -> Literal["discriminative", "generative"]:
    """What a model can do: score, where its weights hold a head, or else write, where its config says so.

    Args:
        source: A folder with `config.json` and safetensors, or with an adapter, or a Hub id such as `owner/name`.

    Raises:
        ModelError: It can do neither, or its files cannot be read.
    """
    parts = locate_parts(source)
    shards = weight_files(parts.base)
    if parts.adapter:
        task = _object(parts.adapter / ADAPTER, f"{source}: its {ADAPTER}").get("task_type")
        # A head that was trained and lost is no reason to take a reward model for one that writes.
        if task == "SEQ_CLS" or ADAPTER_HEAD in header(parts.adapter / ADAPTER_WEIGHTS):
            return "discriminative"
    if any(HEAD in header(shard) for shard in shards):
        return "discriminative"
    config = _object(parts.base / "config.json", f"{source}: its config")
    architectures = config.get("architectures") or []
    if any(name.endswith("ForCausalLM") for name in architectures):
        return "generative"
    named = ", ".join(architectures) or "none"
    raise ModelError(
        f"{source}: neither a scalar head ({HEAD}) among its weights nor a causal language model in its config "
        f"(architectures: {named})"
    )


def first_line(error: Exception) -> str:
    """What an error says first, or its name where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _object(file: Path, what: str) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{what} cannot be read: {first_line(error)}") from None
    return value if isinstance(value, dict) else {}


def header(shard: Path) -> dict[str, Any]:
    """The names of the tensors in a safetensors file, with their types and shapes."""
    with shard.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        try:
            told = json.loads(stream.read(size) if size <= _LONGEST_HEADER else b"")
        except ValueError:
            told = None
    if not isinstance(told, dict):
        raise ModelError(f"{shard}: not safetensors: its weights cannot be read")
    return told
