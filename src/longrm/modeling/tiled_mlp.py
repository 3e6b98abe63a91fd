"""Feed-forward layers that compute a sequence tile by tile, as Liu and Abbeel (2023) have it.

A feed-forward layer looks at one token at a time, and what it keeps of one for the backward pass is several times as
wide as the token's state. In tiles it keeps their inputs, and computes each tile again when its gradient comes: only
one tile's wide states exist at once.

Letters: S tokens of the sequence, C hidden size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longrm.errors import ModelError


def tile_feed_forward(model: Any, length: int) -> None:
    """Makes the feed-forward layers of a model compute `length` tokens at a time, in place; gradients stay exact.

    Raises:
        ModelError: A layer has no feed-forward module of which that is known.
    """
    for layer in model.base_model.layers:
        module = getattr(layer, "mlp", None)
        if not isinstance(module, nn.Module) or not hasattr(module, "down_proj"):
            raise ModelError(
                f"memory.tiled_mlp: {type(layer).__name__} has no plain feed-forward module: set it to false"
            )
        # What is hooked to a module, such as the gathering of weights that are cut over devices, stays around it.
        module.forward = partial(_in_tiles, module.forward, length)


def _in_tiles(
    compute: Callable[[Tensor], Tensor], length: int, states: Float[Tensor, "1 S C"]
) -> Float[Tensor, "1 S C"]:
    tile_by_tile = compute
    if torch.is_grad_enabled():
        # Nothing in a feed-forward layer is drawn, so no state of a generator is kept.
        tile_by_tile = partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([tile_by_tile(tile) for tile in torch.split(states, length, dim=1)], dim=1)
