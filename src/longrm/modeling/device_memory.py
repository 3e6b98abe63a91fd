"""Precision, activation checkpointing, tiled feed-forward layers, and running out of memory.

Shapes: S tokens of the sequence, C hidden size.
"""

import logging
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longrm.errors import ModelError
from longrm.modeling.attention_varlen import keep_results
from longrm.modeling.folders import layer_kinds
from longrm.modeling.sequence_parallel import sequence_group
from longrm.modeling.shapes import PINNED_PIECE, check_frozen_layers
from longrm.modeling.sharding import is_sharded

_log = logging.getLogger(__name__)

Precision = Literal["float32", "bfloat16"]

_PRECISION = "longrm_precision"  # attribute of a model: the precision of its body, which travels with it

# Errors without a class of their own: from CUDA, the libraries on it, Apple's GPUs, and CPUs.
_RAN_OUT = re.compile(r"out of memory|_STATUS_ALLOC_FAILED|(can't allocate|not enough) memory")


def set_precision(
    model: nn.Module,
    precision: Precision,
    weights: Iterable[nn.Parameter] | None = None,
    device: torch.device | str | None = None,
) -> None:
    """Converts weights of a model, by default all, to the precision of training, in place; moves them to a device.

    Trained weights and scalar heads are always fp32: bf16 would lose an update of 1e-6. With "bfloat16" all other
    weights are bf16, and `hidden_states` computes the body's matrix products in bf16.
    """
    frozen = torch.bfloat16 if precision == "bfloat16" else torch.float32
    head = getattr(model, "score", None)
    of_head = set() if head is None else set(head.parameters())
    for weight in model.parameters() if weights is None else weights:
        if hasattr(weight, "quant_state"):  # of bitsandbytes
            continue
        exact = weight.requires_grad or weight in of_head
        # One after the other, so that a GPU converts.
        weight.data = weight.data.to(device).to(torch.float32 if exact else frozen)
    setattr(model, _PRECISION, precision)


def precision_of(model: nn.Module) -> Precision:
    """Returns the precision of a model's body; "float32", which is no conversion at all, if none was set."""
    precision: Precision = getattr(model, _PRECISION, "float32")
    return precision


def freeze_layers(model: Any, count: int) -> None:
    """Stops the training of the lowest layers of a model and of its embeddings, in place; 0 freezes nothing.

    No operation below the first trained weight is recorded for the backward pass.
    """
    layers = model.base_model.layers
    check_frozen_layers(count, len(layers))
    for module in (model.get_input_embeddings(), *layers[:count]) if count else ():
        module.requires_grad_(False)


def compile_layers(model: Any) -> None:
    """Compiles what looks at one token at a time, the norms and feed-forward layers of a model, in place.

    There most of the time is spent on reading and writing activations, which compiled code does in fewer passes.
    Attention stays as it is: its layout differs from batch to batch.
    """
    for module in model.base_model.modules():
        if type(module).__name__.endswith(("RMSNorm", "LayerNorm", "MLP")):
            module.compile(dynamic=True)


def autocast_body(model: Any) -> AbstractContextManager[Any]:
    """Returns the context in which the body of a model computes."""
    # Each weight is used once per forward pass: a cache of converted ones would only take memory.
    return torch.autocast(
        model.device.type, torch.bfloat16, enabled=precision_of(model) == "bfloat16", cache_enabled=False
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error reports that a GPU or the machine ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _RAN_OUT.search(str(error)) is not None


def concerns_one_query(error: BaseException, model: Any) -> bool:
    """Whether memory ran out for one query and the model can go on with the next.

    It cannot if other processes compute the model with this one: they are waiting in the middle of a layer.
    """
    return sequence_group(model) is None and not is_sharded(model) and is_out_of_memory(error)


def cache_bytes(model: Any) -> int:
    """Memory for cached keys and values: half of a GPU's free memory, as forward passes need some too, else 1 GiB.

    It is 1 GiB also where other processes compute the model with this one, which must all decide alike.
    """
    if model.device.type != "cuda" or sequence_group(model) is not None or is_sharded(model):
        return 2**30
    return int(torch.cuda.mem_get_info(model.device)[0]) // 2


def checkpoint_activations(
    model: Any, *, offload: bool, keep_attention: bool = False, device: str | None = None
) -> None:
    """Stores only the input of every layer, with `offload` in the CPU's memory, and computes the layer again backward.

    With `keep_attention` the output of attention is stored on the device, too, and not computed again where a flash
    kernel computes it. Transformers does all this in training mode only. `device` is where the model will compute, if
    it is not there yet.
    """
    # transformers before 5.23 has the older name only.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    kept = {"context_fn": keep_results} if keep_attention else {}
    enable({"use_reentrant": False, **kept})
    if offload and (device or model.device.type) == "cpu":
        _log.info("memory.activation_offloading has no effect: the model is on the CPU")
    elif offload:
        for module in model.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                compute = module._gradient_checkpointing_func
                module._gradient_checkpointing_func = partial(_with_inputs_on_host, compute)
    # Transformers makes the embeddings' output require a gradient, for reentrant checkpoints: the backward pass would
    # go through all frozen layers.
    model.disable_input_require_grads()


def _with_inputs_on_host(compute: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(_to_host, _to_device):
        return compute(*arguments, **options)


_OnHost = tuple[torch.Size, torch.dtype, torch.device, list[Tensor]]


def _to_host(kept: Tensor) -> _OnHost:
    """Copies a tensor to pinned memory, in pieces of one size.

    torch rounds pinned memory up to a power of two, and reuses it for the same rounded size only: whole tensors of many
    lengths, which `torch.autograd.graph.save_on_cpu` pins, would take up to four times their bytes. Pieces fit every
    tensor.
    """
    parts = torch.split(kept.contiguous().flatten().view(torch.uint8), PINNED_PIECE)
    # A checkpoint also saves an empty tensor, which needs no piece.
    pieces = [_pinned_piece()[: len(part)].copy_(part, non_blocking=True) for part in parts if len(part)]
    return kept.shape, kept.dtype, kept.device, pieces


def _to_device(on_host: _OnHost) -> Tensor:
    shape, dtype, device, pieces = on_host
    kept = torch.empty(shape, dtype=dtype, device=device)
    for part, piece in zip(torch.split(kept.flatten().view(torch.uint8), PINNED_PIECE), pieces, strict=False):
        part.copy_(piece, non_blocking=True)
    return kept


def _pinned_piece() -> Tensor:
    return torch.empty(PINNED_PIECE, dtype=torch.uint8, pin_memory=True)


def tile_feed_forward(model: Any, length: int) -> None:
    """Makes the feed-forward layers of a model compute `length` tokens at a time, in place; gradients stay exact.

    What a feed-forward layer stores of a token for the backward pass is several times as wide as the token's state. In
    tiles (Liu and Abbeel 2023) it stores their inputs and computes each tile again when its gradient is due: only one
    tile's wide activations exist at once. Layers without a plain feed-forward module are refused.
    """
    for layer in model.base_model.layers:
        module = getattr(layer, "mlp", None)
        if not isinstance(module, nn.Module) or not hasattr(module, "down_proj"):
            raise ModelError(
                f"memory.tiled_mlp = true: {type(layer).__name__} has no plain feed-forward module"
            )
        # The forward of the module, not the module: hooks on it, such as those gathering sharded weights, stay outside.
        module.forward = partial(_in_tiles, module.forward, length)


def _in_tiles(
    compute: Callable[[Tensor], Tensor], length: int, states: Float[Tensor, "1 S C"]
) -> Float[Tensor, "1 S C"]:
    tile_by_tile = compute
    if torch.is_grad_enabled():
        # A feed-forward layer draws nothing at random, so no generator state is stored.
        tile_by_tile = partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([tile_by_tile(tile) for tile in torch.split(states, length, dim=1)], dim=1)


def pair_cost(model: Any) -> float:
    """Returns the operations of attention for a pair of tokens, over those of the layers' matrices for one token.

    Layers with a window are counted without attention: their pairs grow with the tokens, not with the square.
    """
    layers, config = model.base_model.layers, model.config
    matrices = [module for module in layers.modules() if isinstance(module, nn.Linear)]
    elements = sum(matrix.in_features * matrix.out_features for matrix in matrices)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    full = layer_kinds(config).count("full_attention")
    return float(2 * config.num_attention_heads * size * full / elements)
