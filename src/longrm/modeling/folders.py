"""Model folders: where one lies, and what kind of model it holds. Imports no torch."""

import json
import re
from pathlib import Path
from typing import Any, Literal

from longrm.errors import ModelError

HEAD = "score.weight"
"""The name of a scalar head among the weights of a sequence classifier."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.py"]
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit


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
    if not _HUB_ID.fullmatch(str(source)):
        raise ModelError(f"{source}: there is no such model folder")
    # Slow to import, and needed for the Hub only.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(source), allow_patterns=_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(f"{source}: no such folder, nor such a Hub model ({first_line(error)})") from None


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
        source: A folder with `config.json` and safetensors, or a Hub id such as `owner/name`.

    Raises:
        ModelError: It can do neither, or its files cannot be read.
    """
    folder = locate(source)
    if any(HEAD in _header(shard) for shard in weight_files(folder)):
        return "discriminative"
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{source}: its config cannot be read: {error}") from None
    architectures = config.get("architectures") or [] if isinstance(config, dict) else []
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


def _header(shard: Path) -> dict[str, Any]:
    """The names of the tensors in a safetensors file, with their types and shapes."""
    with shard.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        try:
            header = json.loads(stream.read(size) if size <= _LONGEST_HEADER else b"")
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise ModelError(f"{shard}: not safetensors: its weights cannot be read")
    return header
