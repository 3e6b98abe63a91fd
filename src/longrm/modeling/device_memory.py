"""The precision that a model computes in, activation checkpointing, and memory that is freed or runs out.

Letters: S tokens of the sequence, C hidden size.
"""

import ctypes
import inspect
import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longrm.errors import ModelError
from longrm.modeling.sequence_parallel import sequence_group

_log = logging.getLogger(__name__)

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_MMAP_BYTES = 4 * 2**20

Precision = Literal["float32", "bfloat16"]

_RAN_OUT = re.compile(r"out of memory|_STATUS_ALLOC_FAILED|(can't allocate|not enough) memory")
"""The words of errors without a class of their own: from CUDA, the libraries on it, Apple's GPUs, and CPUs."""

_PRECISION = "longrm_precision"
"""The attribute of a model that holds the precision of its body; it travels with the model, as weights do."""


def set_precision(model: nn.Module, precision: Precision) -> None:
    """Brings the weights of a model to the precision of training, in place.

    Trained weights and scalar heads are fp32 always: an update of 1e-6 would be lost in bf16. With "bfloat16" all
    other weights are bf16, and `hidden_states` computes the body's matrix products in bf16.
    """
    frozen = torch.bfloat16 if precision == "bfloat16" else torch.float32
    head = getattr(model, "score", None)
    of_head = set() if head is None else set(head.parameters())
    for parameter in model.parameters():
        exact = parameter.requires_grad or parameter in of_head
        parameter.data = parameter.data.to(torch.float32 if exact else frozen)
    setattr(model, _PRECISION, precision)


def precision_of(model: nn.Module) -> Precision:
    """The precision of a model's body; "float32" stands for that of its weights where none was set."""
    precision: Precision = getattr(model, _PRECISION, "float32")
    return precision


def autocast_body(model: Any) -> AbstractContextManager[Any]:
    """The context in which the body of a model computes."""
    # Every weight is read once a forward: a cache of the converted ones would only hold memory.
    return torch.autocast(
        model.device.type, torch.bfloat16, enabled=precision_of(model) == "bfloat16", cache_enabled=False
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, that of a GPU or of the machine."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _RAN_OUT.search(str(error)) is not None


def concerns_one_query(error: BaseException, model: Any) -> bool:
    """Whether memory ran out over one query, and the model may be given another one.

    It may not where other processes compute the model with this one: they wait for it in the middle of a layer.
    """
    alone = sequence_group(model) is None and not any(
        hasattr(weight, "ds_id") for weight in model.parameters()
    )
    return alone and is_out_of_memory(error)


def checkpoint_activations(model: Any, *, offload: bool) -> None:
    """Keeps only the input of every layer for the backward pass, which computes the layer again.

    This works in training mode only, as transformers has it.

    Args:
        model: A transformers model.
        offload: Keep these inputs in the CPU's memory.

    Raises:
        ModelError: The installed transformers cannot offload.
    """
    on_cpu = model.device.type == "cpu"
    if offload and on_cpu:
        _log.info("memory.activation_offloading does nothing here: the model is on the CPU already")
    # transformers before 5.23 has the older name only, which goes when 5.23 is the oldest that is supported.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    if not offload or on_cpu:
        enable()
    elif "offload" in inspect.signature(enable).parameters:
        enable(offload=True)
    else:
        raise ModelError(
            "memory.activation_offloading needs transformers 5.17 or later: update it, or go without"
        )


def tile_feed_forward(model: Any, length: int) -> None:
    """Makes the feed-forward layers of a model compute `length` tokens at a time, in place; gradients stay exact.

    A feed-forward layer looks at one token at a time, and what it keeps of one for the backward pass is several times
    as wide as the token's state. In tiles (Liu and Abbeel 2023) it keeps their inputs, and computes each tile again
    when its gradient comes: only one tile's wide states exist at once.

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


def return_freed_memory() -> None:
    """Lets every tensor of 4 MiB or more go back to the system when it is freed, for the rest of this process.

    By itself glibc raises that size to 32 MiB while a program runs, and holds what is smaller in a heap that tensors
    of many sizes leave full of holes. A C library that has no such setting is left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
