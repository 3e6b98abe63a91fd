"""GGUF files in the place of model folders: each is converted once, and everything reads the copy. Imports no torch."""

import logging
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter

from longrm import reading
from longrm.errors import ModelError

LAYOUT = 1
"""Counted up when a file would be converted in another way than before."""

FACTS = "gguf.json"
"""What a folder that was converted from a GGUF file says of that file."""

_FACTS = TypeAdapter(dict[str, str])
_PART = re.compile(r".*-\d{5}-of-\d{5}\.gguf", re.DOTALL)
_logger = logging.getLogger(__name__)


def find_gguf(source: str | Path) -> Path | None:
    """The GGUF file that a path names, or that alone holds the model of a folder; None where there is none.

    Raises:
        ModelError: A folder holds several and no other model, or the file is one part of a model.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        if any((path / name).exists() for name in ("config.json", "adapter_config.json")):
            return None
        found = sorted(path.glob("*.gguf"))
        if len(found) > 1 and not all(map(_is_part, found)):
            names = ", ".join(file.name for file in found)
            raise ModelError(f"{source} holds {len(found)} GGUF files ({names}): name the one that is meant")
    else:
        found = [path] if path.suffix == ".gguf" and path.exists() else []
    if found and _is_part(found[0]):
        raise ModelError(
            f"{found[0]} is one part of a model: join them first (llama-gguf-split --merge FIRST.gguf WHOLE.gguf)"
        )
    return found[0] if found else None


def converted(file: Path) -> Path:
    """The folder of safetensors that stands for a GGUF file: in the cache, made now where it is not there.

    It is named by the digest of the file. Several processes may ask for it at once: one converts, the others wait. The
    first time that a process asks, the types of the quantized weights and the place of the folder are logged.

    Raises:
        ModelError: The file cannot be read, holds something else than a causal language model that transformers
            computes as the file says, or there is no room for the copy.
    """
    reading.check_file(file, ModelError)
    stat = file.stat()
    return _converted(file.absolute(), stat.st_size, stat.st_mtime_ns)


def facts_of(folder: Path) -> Mapping[str, str]:
    """What identifies the GGUF file that a model folder was converted from, for manifests: empty for other folders.

    Raises:
        ModelError: The folder's `gguf.json` cannot be read.
    """
    file = folder / FACTS
    if not os.path.lexists(file):
        return {}
    return reading.typed(_FACTS, reading.read_object(file, ModelError), file, ModelError)


@lru_cache(maxsize=16)
def _converted(file: Path, size: int, changed: int) -> Path:
    from longrm.data.token_cache import locked, user_cache  # late: most models are no such files

    digest = reading.file_digest(file, ModelError)
    root = user_cache() / "gguf"
    folder = root / f"{file.stem[:100]}-{digest[:12]}-{LAYOUT}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            with locked(root / f".{folder.name}.lock", "converts the same file"):
                if not folder.is_dir():
                    from longrm.modeling.gguf_conversion import convert  # late: it needs torch

                    convert(file, folder, digest)
    except OSError as error:
        raise ModelError(
            f"{root}: cannot hold the copy of {file.name} ({error.strerror or error}); name another place with "
            "LONGRM_CACHE"
        ) from None
    held = facts_of(folder)
    bytes_held = sum(part.stat().st_size for part in folder.iterdir())
    _logger.info(
        "%s: weights in %s; what it computes is what the quantized model computes. Its fp32 copy: %s (%s)",
        file.name,
        held["gguf_types"],
        folder,
        f"{bytes_held / 1e6:,.0f} MB",
    )
    return folder


def _is_part(file: Path) -> bool:
    return _PART.fullmatch(file.name) is not None
