"""Sharded models: every process keeps a part of each weight, gradient and optimizer state (FSDP2, `fully_shard`).

The weights of a layer are gathered while it computes. Embeddings, the last norm and the heads are read from several
places, so they are gathered for as long as a function computes with the model (`compute`).
"""

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

P = ParamSpec("P")
R = TypeVar("R")

_ROOT = "longrm_sharded"  # attribute of a model: the module that gathers its heads


class _Root(nn.Module):
    """A model whose forward pass is any function: FSDP gathers and frees weights around forward passes only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)


def shard(
    model: Any,
    device: str,
    place: Callable[[Iterable[nn.Parameter]], None],
    *,
    rounded: bool,
    reshard: bool,
    offload: bool,
) -> None:
    """Shards a model over all processes, in place.

    The model may still be in the files that safetensors has mapped into memory: layer by layer `place` moves weights to
    the device, "cpu" or "cuda", in the precision of training, and all but a shard of them is freed.

    With `rounded`, layers are gathered in bf16. With `reshard` they are freed after the forward pass, and gathered
    again for the backward pass. With `offload` shards, their gradients and optimizer state are in CPU memory.
    """
    # Late: it takes seconds to import, which scoring and most trainings do not need.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    policy = CPUOffloadPolicy(pin_memory=device != "cpu") if offload else OffloadPolicy()
    shared: Any = {"mesh": init_device_mesh(device, (dist.get_world_size(),)), "offload_policy": policy}
    root: Any = _Root(model)
    placed: set[nn.Parameter] = set()
    for module in (*model.base_model.layers, root):
        place([weight for weight in module.parameters() if weight not in placed])
        is_layer = module is not root
        # Autocast would round the matrices of layers anyway; the residual stream and the heads stay fp32.
        gathered = torch.bfloat16 if rounded and is_layer else None
        precision = MixedPrecisionPolicy(gathered, torch.float32, cast_forward_inputs=False)
        fully_shard(module, reshard_after_forward=reshard and is_layer, mp_policy=precision, **shared)
        placed |= {*module.parameters()}
    model.__dict__[_ROOT] = root  # not a submodule, which would make a circle
    # Gathered weights are written into the same tensors again and again. They must not be made in inference mode.
    compute(model, lambda: None)
    layer: Any
    for layer in model.base_model.layers:
        layer.unshard()
        layer.reshard()
    root.reshard()


def is_sharded(model: Any) -> bool:
    """Whether the weights of a model are sharded over processes."""
    return _ROOT in model.__dict__


def compute(model: Any, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls a function that computes with a model; if the model is sharded, all processes call it at the same time.

    The heads stay gathered until the backward pass has ended, or without gradients until the function has.
    """
    root = model.__dict__.get(_ROOT)
    if root is None:
        return function(*args, **kwargs)
    result: R = root(function, *args, **kwargs)
    if not torch.is_grad_enabled():
        # Without a backward pass, layers that are kept for it would miss the next update.
        layer: Any
        for layer in (*model.base_model.layers, root):
            layer.reshard()
    return result


def gather_weights(model: Any, *, wanted: bool) -> dict[str, Tensor] | None:
    """Gathers the weights of a sharded model in CPU memory, one by one; None for a model that is not sharded.

    Every process takes part, and those that want no weights get none. Of a model with adapters only the trained weights
    are gathered.
    """
    if not is_sharded(model):
        return None
    adapted = hasattr(model, "peft_config")
    full: dict[int, Tensor] = {}  # tied weights stay one tensor
    weights = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        if adapted and not weight.requires_grad:
            continue
        if id(weight) not in full:
            whole = weight.detach()
            if isinstance(weight, nn.Parameter):  # else a buffer, which is not sharded
                whole = whole.full_tensor()
            full[id(weight)] = whole.cpu() if wanted else whole.new_empty(0)
        weights[name] = full[id(weight)]
    return weights if wanted else {}
