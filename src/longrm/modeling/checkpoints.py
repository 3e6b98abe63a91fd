"""Reads the parts of a model: its config, its scalar head, its weights; refuses what is damaged."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig
from transformers.utils.logging import disable_progress_bar

from longrm.errors import ModelError
from longrm.modeling.folders import HEAD, first_line
from longrm.modeling.heads import Model

_REPORTING = ("modeling_utils", "distributed.tensor_parallel")

# Loading and saving take milliseconds to seconds, and progress of long work is ours to show.
disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no types here


def read_config(folder: Path, where: str, trust_remote_code: bool) -> Any:
    """The config of a model folder.

    Raises:
        ModelError: It cannot be read.
    """
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (ValueError, KeyError, OSError) as error:
        raise ModelError(f"{where}: its config cannot be read: {first_line(error)}") from None


def read_head(shards: Sequence[Path], name: str, where: str) -> torch.Tensor | None:
    """The scalar head as stored: read apart because loading in a lower dtype would round it.

    Raises:
        ModelError: The files cannot be read, or the head is not scalar.
    """
    try:
        found = [head for shard in shards for head in _tensors(shard, name)]
    except SafetensorError as error:
        raise ModelError(f"{where}: its weights cannot be read: {error}") from None
    if not found:
        return None
    if found[0].shape[0] != 1:
        raise ModelError(f"{where}: its head has {len(found[0])} outputs; a reward model has num_labels=1")
    return found[0]


def read_metadata(file: Path) -> dict[str, str] | None:
    """What whoever wrote a safetensors file says of it; transformers and PEFT always say something.

    Raises:
        ModelError: It cannot be read.
    """
    try:
        with safe_open(file, framework="pt") as weights:
            found: dict[str, str] | None = weights.metadata()
            return found
    except SafetensorError as error:
        raise ModelError(f"{file}: its weights cannot be read: {error}") from None


def read_model(
    auto: Any,
    check: Callable[[Any, str], None],
    folder: Path,
    config: Any,
    dtype: torch.dtype | str,
    trust_remote_code: bool,
    where: str,
) -> Model:
    """Loads a model by one of transformers' auto classes, once its architecture is checked without weights.

    Raises:
        ModelError: The architecture is refused, the weights cannot be read, or some other than the head are missing.
    """
    try:
        with torch.device("meta"):
            skeleton = auto.from_config(config, trust_remote_code=trust_remote_code)
        check(skeleton, where)
        with _without_report():
            model, report = auto.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
    except ModelError:
        raise
    except (ValueError, RuntimeError, OSError, SafetensorError) as error:
        raise ModelError(f"{where}: {auto.__name__} cannot load it: {first_line(error)}") from None
    missing = set(report["missing_keys"]) - {HEAD}
    if missing:
        raise ModelError(f"{where}: {len(missing)} weights are missing, among them {min(missing)}")
    return model


@contextmanager
def _without_report() -> Iterator[None]:
    """Without what transformers prints while it loads.

    A table of missing weights, which `read_model` looks at itself, and that a plan for several devices, which nobody
    asked for, leaves some layers whole.
    """
    loggers = [logging.getLogger(f"transformers.{name}") for name in _REPORTING]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _tensors(shard: Path, name: str) -> Iterator[torch.Tensor]:
    with safe_open(shard, framework="pt") as weights:
        if name in weights.keys():  # noqa: SIM118 (not a mapping)
            yield weights.get_tensor(name)
