"""Rotary positions of a GGUF file in the words of transformers, whose own reader carries over their base alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from longrm.errors import ModelError
from longrm.modeling.gguf_header import INSTEAD, GgufHeader, GgufTensor

FREQUENCIES = "rope_freqs.weight"
"""A tensor by which frequencies are divided, one number for each: how Llama 3.1 and later are stretched."""

_BASE, _PLAIN, _SCALING = 10_000.0, ("rope.freq_base", "rope.dimension_count"), "rope.scaling."
_SCALINGS = {
    "none": {},
    "linear": {"factor": "factor"},
    "yarn": {"factor": "factor", "original_context_length": "original_max_position_embeddings"},
}
"""Kinds of `rope.scaling`, and their keys with the names that transformers has for them."""

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Those of all Llama 3.1, 3.2 and 3.3; a file tells only what they come to."""


def rope_parameters(
    file: Path, header: GgufHeader, keys: Mapping[str, Any], head_dim: int
) -> dict[str, str | float]:
    """The field `rope_parameters` of a config.

    Args:
        file: The file.
        header: Its header.
        keys: The keys of its architecture, without the prefix.
        head_dim: Numbers of a head; two have one frequency.

    Raises:
        ModelError: The file scales positions in a way that cannot be carried over.
    """
    base = float(keys.get("rope.freq_base", _BASE))
    scaling = {key.removeprefix(_SCALING): value for key, value in keys.items() if key.startswith(_SCALING)}
    kind, stretched = scaling.pop("type", "none"), header.tensors.get(FREQUENCIES)
    known = _SCALINGS.get(kind)
    unknown = [key for key in keys if key.startswith("rope.") and not key.startswith((*_PLAIN, _SCALING))]
    if known is None or (stretched is not None and kind != "none"):
        unknown = [f"{_SCALING}type = {kind}"]
    else:
        unknown += [f"{_SCALING}{key}" for key in scaling if key not in known]
    if unknown or known is None:
        raise ModelError(f"{file}: {', '.join(unknown)}: positions that cannot be carried over; {INSTEAD}")
    if stretched is not None:
        return {"rope_theta": base, **_of_llama3(file, stretched, base, head_dim)}
    named = {known[key]: value for key, value in scaling.items()}
    return {"rope_theta": base, "rope_type": "default" if kind == "none" else kind, **named}


def _of_llama3(file: Path, tensor: GgufTensor, base: float, head_dim: int) -> dict[str, str | float]:
    """The parameters of Llama 3.1 that come to these divisors."""
    numbers = np.fromfile(file, "<f4", tensor.numbers, offset=tensor.start)
    found: dict[str, str | float] = {"rope_type": "llama3", "factor": float(numbers.max()), **_LLAMA3}
    config = LlamaConfig(
        head_dim=head_dim, max_position_embeddings=2**20, rope_parameters={"rope_theta": base, **found}
    )
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = base ** -(torch.arange(0, head_dim, 2) / head_dim)
    divisors = torch.from_numpy(numbers)
    if (
        tensor.type != "F32"
        or len(divisors) != len(plain)
        or not torch.allclose(plain / stretched, divisors, rtol=1e-4)
    ):
        raise ModelError(
            f"{file}: its {FREQUENCIES} stretches positions in another way than Llama 3.1 does, which cannot be "
            f"carried over; {INSTEAD}"
        )
    return found
