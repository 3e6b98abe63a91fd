"""ZeRO: the state of training sharded over all processes (Rajbhandari et al. 2020), by DeepSpeed's engine.

Checkpoints hold the full state, in the format of training without ZeRO, so that any layout can resume any other's.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from longrm.errors import importing
from longrm.modeling.process_group import set_timeouts
from longrm.training.batches import MicroBatch
from longrm.training.objectives import Objective
from longrm.training.settings import ParallelSettings

UNSHARDED = 100_000
"""Weights with at most this many elements, such as norms, are kept whole: they would be gathered all the time."""

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Zero:
    """A model, its optimizer and its gradients, sharded over all processes.

    Every process starts with the full model, whose weights may be sharded in place, and an AdamW that has not stepped.
    """

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        settings: ParallelSettings,
        *,
        max_norm: float,
    ) -> None:
        self._stage = settings.zero
        self._parameters = [list(group["params"]) for group in optimizer.param_groups]
        self.engine: Any = _engine(_LossModule(model, objective), optimizer, settings, max_norm)

    def loss(self, micro: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        """The loss of a micro-batch, and metrics; every process takes part."""
        loss, metrics = self.engine(micro)
        return loss, metrics

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Adds to the gradients, the mean over all processes; `last` marks the last micro-batch of a step."""
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss)

    def step(self) -> float:
        """Clips the gradient, updates the weights, and returns the norm before clipping."""
        self.engine.step()
        norm = float(self.engine.get_global_grad_norm())
        self.engine.zero_grad()
        return norm

    def state(self) -> dict[str, Any]:
        """The full optimizer state, in the format of an optimizer without ZeRO, on the CPU of the main process."""
        from deepspeed.utils import safe_get_full_optimizer_state as gather_state

        self._link()
        is_main = dist.get_rank() == 0
        inner = self.engine.optimizer.optimizer
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in inner.param_groups
        ]
        steps = next(iter(inner.state.values()))["step"].cpu()
        state: dict[int, dict[str, Tensor]] = {}
        for group, parameters in zip(groups, self._parameters, strict=True):
            group["params"] = list(range(len(state), len(state) + len(parameters)))
            for parameter in parameters:
                moments = {name: _on_cpu(gather_state(parameter, name), is_main) for name in _MOMENTS}
                state[len(state)] = {"step": steps.clone(), **moments}
        return {"state": state, "param_groups": groups}

    def load(self, stored: dict[str, Any]) -> None:
        """Loads what `state`, or the `state_dict` of an optimizer without ZeRO, returned."""
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        load_without_moments(self.engine.optimizer.optimizer, self._own_shards(), stored)
        self._link()
        parameters = [parameter for group in self._parameters for parameter in group]
        for index, parameter in enumerate(parameters):
            for name in _MOMENTS:
                moment = stored["state"][index][name]
                if self._stage < 3:
                    safe_set_full_optimizer_state(parameter, moment, name)
                else:
                    group = parameter.ds_process_group
                    shard = shard_of(moment, dist.get_rank(group), dist.get_world_size(group))
                    safe_set_local_optimizer_state(parameter, shard, name)

    def _link(self) -> None:
        """Links parameters to their state; DeepSpeed 0.19 does so only once, before it has stepped a second group."""
        if self._stage < 3:
            sharded = self.engine.optimizer
            sharded._hp_optimizer_states_linked = False
            sharded._lazy_init_hp_params_optimizer_state()

    def _own_shards(self) -> list[list[Tensor]]:
        """The flat tensors of every group whose state this process keeps."""
        sharded = self.engine.optimizer
        if self._stage < 3:
            return [[shard] for shard in sharded.single_partition_of_fp32_groups]
        shards: list[list[Tensor]] = [[] for _ in sharded.optimizer.param_groups]
        for number, shard in enumerate(sharded.fp32_partitioned_groups_flat):
            shards[sharded.sub_group_to_group_id[number]].append(shard)
        return shards


class _LossModule(nn.Module):
    """A model whose forward pass is the loss: heads are read inside it, where the engine gathers sharded weights."""

    def __init__(self, model: Any, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self._objective = objective

    def forward(self, micro: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        return self._objective.loss(self.model, micro)


def load_without_moments(
    optimizer: torch.optim.Optimizer, shards: Sequence[Sequence[Tensor]], stored: dict[str, Any]
) -> None:
    """Loads the settings and the number of steps of a stored state; all moments start at zero.

    A second optimizer loads the state, because torch's own loading decides on which device each value belongs: the
    number of steps is on the GPU for fused AdamW, and on the CPU otherwise. `optimizer` keeps its groups, to which the
    schedule and the engine hold references; `shards` are the flat tensors of every group that it steps.
    """
    make: Any = type(optimizer)
    second = make([{"params": list(own)} for own in shards])
    groups = [
        stored_group | {"params": own["params"]}
        for stored_group, own in zip(stored["param_groups"], second.state_dict()["param_groups"], strict=True)
    ]
    step = stored["state"][0]["step"]
    state = {
        number: {"step": step.clone()} | {name: torch.zeros_like(shard) for name in _MOMENTS}
        for number, shard in enumerate(shard for own in shards for shard in own)
    }
    second.load_state_dict({"state": state, "param_groups": groups})
    optimizer.state.update(second.state)
    for group, loaded in zip(optimizer.param_groups, second.param_groups, strict=True):
        group.update({key: value for key, value in loaded.items() if key != "params"})


def shard_of(full: Tensor, rank: int, count: int) -> Tensor:
    """The shard of one of several processes, all of equal size; the last shards are padded with zeros."""
    size = -(-full.numel() // count)
    shard = full.flatten()[rank * size : (rank + 1) * size]
    return F.pad(shard, (0, size - len(shard)))


@contextmanager
def gather_weights(model: Any) -> Iterator[None]:
    """Within the block the main process has the full trained weights, for saving; every process takes part.

    Sharded weights are gathered one by one, into CPU memory.
    """
    sharded = [parameter for parameter in _sharded(model) if parameter.requires_grad]
    if not sharded:
        yield
        return
    import deepspeed

    is_main, shards = dist.get_rank() == 0, []
    for parameter in sharded:
        with deepspeed.zero.GatheredParameters([parameter]):
            full = _on_cpu(parameter.data, is_main)
        shards.append(parameter.data)
        parameter.data = full
    try:
        yield
    finally:
        for parameter, shard in zip(sharded, shards, strict=True):
            parameter.data = shard


@contextmanager
def gather_heads(model: Any) -> Iterator[None]:
    """Within the block all processes can evaluate the model without the engine: its heads are gathered."""
    heads = [getattr(model, "score", None), model.get_output_embeddings(), model.get_input_embeddings()]
    sharded = [parameter for head in heads if head is not None for parameter in _sharded(head)]
    if not sharded:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(dict.fromkeys(sharded))):
        yield


def _sharded(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if hasattr(parameter, "ds_id")]


def _on_cpu(values: Tensor, wanted: bool) -> Tensor:
    """A copy in CPU memory; an empty tensor on processes that do not want it."""
    copy = torch.empty(values.shape if wanted else 0, dtype=values.dtype)
    return copy.copy_(values) if wanted else copy


def _engine(
    module: nn.Module, optimizer: torch.optim.Optimizer, settings: ParallelSettings, max_norm: float
) -> Any:
    with importing("parallel.zero"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DeepSpeed's imports warn
        import deepspeed
    # Otherwise DeepSpeed compiles, for minutes, an extension that only speeds up processes on one CPU.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed calls collectives by names that torch 2.13 deprecates.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    on_gpu = torch.cuda.is_available()
    sharding: dict[str, Any] = {
        "stage": settings.zero,
        "overlap_comm": on_gpu,
        "stage3_param_persistence_threshold": UNSHARDED,
    }
    if settings.offload != "none":
        sharding["offload_optimizer"] = {"device": "cpu", "pin_memory": on_gpu}
    if settings.offload == "parameters":
        sharding["offload_param"] = {"device": "cpu", "pin_memory": on_gpu}
    config = {
        "train_micro_batch_size_per_gpu": 1,  # a micro-batch is one packed sequence
        "gradient_accumulation_steps": 1,  # `backward` marks where a step ends
        "gradient_clipping": max_norm,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": sharding,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # initialize() imports more
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    set_timeouts()  # also in the groups that DeepSpeed has created
    return engine
