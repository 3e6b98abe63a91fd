"""A structured initialization with which a tiny model learns to look facts up within a minute on a laptop.

A transformer this small finds the circuit for looking up a fact (heads that copy a neighbor, then heads that match what
was copied: Olsson et al. 2022, "In-context Learning and Induction Heads") only after many thousand steps. Here the
first layer's heads start as heads that look back one token, two tokens and so on, and the second layer's queries and
keys start correlated, so that equal content attracts itself; a third and fourth layer start likewise. What is a fact,
and that it should match, is left to training.

In a model that generates, what a head copies must also be legible to the output embeddings: there the output maps
start as the transposes of the value maps, and the last norm is raised so that a copied token stands out.
"""

import math
from collections.abc import Iterator
from itertools import cycle

import torch
from jaxtyping import Float
from torch import Tensor

from longrm.modeling.shared_prefix import TransformersModel

_LOOK_BACK_SHARPNESS = 24.0  # attention logit of the token looked back at, against a mean of zero
_FAST_PAIRS = 6  # rotary pairs whose frequency is high enough to distinguish neighbors
_SLOW_FREQUENCY = 0.02  # radians per token, below which content matches at any distance
_MATCH_STD = 0.3
_MAP_SCALE = 0.7
_GENERATION_NORM = 3.0


def structure(model: TransformersModel, *, seed: int) -> None:
    """Overwrites the attention of the first layers of a Llama, four at most, with the structured start, in place.

    The model needs at least two layers, and attention biases. `seed` draws the orthonormal maps.
    """
    layers = model.base_model.layers
    if len(layers) < 2 or layers[0].self_attn.q_proj.bias is None:
        raise ValueError("a structured start needs at least two layers and attention biases")
    generator = torch.Generator().manual_seed(seed)
    frequencies = model.base_model.rotary_emb.inv_freq.float()
    with torch.no_grad():
        _look_back(layers[0].self_attn, frequencies, (1, 2, 3, 4))
        _match_content(layers[1].self_attn, frequencies, generator)
        if len(layers) > 2:
            _look_back(layers[2].self_attn, frequencies, (2, 6, 10, 14))
        if len(layers) > 3:
            _match_content(layers[3].self_attn, frequencies, generator)
        generates = model.get_output_embeddings() is not None
        for layer in layers[:4]:
            _copy_faithfully(layer.self_attn, generator, back=generates)
        if generates:
            model.base_model.norm.weight.fill_(_GENERATION_NORM)


def _look_back(
    attention: TransformersModel, frequencies: Float[Tensor, " pairs"], distances: tuple[int, ...]
) -> None:
    """Every head attends to the token some distance back: rotated query and key biases agree best there."""
    size = 2 * len(frequencies)
    fast = torch.arange(len(frequencies)) < _FAST_PAIRS
    strength = math.sqrt(_LOOK_BACK_SHARPNESS * math.sqrt(size) / _FAST_PAIRS) * fast
    attention.q_proj.weight.mul_(0.1)
    attention.k_proj.weight.mul_(0.1)
    for distance, (query, key) in zip(cycle(distances), _heads(attention, size, "bias"), strict=False):
        angle = -frequencies * distance
        key.copy_(torch.cat([strength, torch.zeros_like(strength)]))
        query.copy_(torch.cat([strength * torch.cos(angle), strength * torch.sin(angle)]))


def _match_content(
    attention: TransformersModel, frequencies: Float[Tensor, " pairs"], generator: torch.Generator
) -> None:
    """Queries and keys share random rows on the slow rotary pairs, so that equal content attracts itself."""
    slow = (frequencies < _SLOW_FREQUENCY).repeat(2)[:, None]
    for query, key in _heads(attention, len(slow), "weight"):
        rows = _MATCH_STD * slow * torch.randn(query.shape, generator=generator)
        query.add_(rows)
        key.add_(rows)


def _copy_faithfully(attention: TransformersModel, generator: torch.Generator, *, back: bool) -> None:
    """Value and output maps are scaled orthonormal, so that what a head copies stays legible.

    With `back` it is written to the subspace that it was read from, else to one of its own.
    """
    size = attention.head_dim
    hidden = attention.o_proj.weight.shape[0]
    for start in range(0, attention.v_proj.weight.shape[0], size):
        into, out = (
            torch.linalg.qr(torch.randn(hidden, size, generator=generator)).Q * _MAP_SCALE for _ in range(2)
        )
        attention.v_proj.weight[start : start + size] = into.T
        attention.o_proj.weight[:, start : start + size] = into if back else out


def _heads(attention: TransformersModel, size: int, name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of the rows of every head's query and key."""
    query, key = (
        getattr(projection, name).split(size) for projection in (attention.q_proj, attention.k_proj)
    )
    return zip(query, key, strict=True)
