"""Sequence parallelism: processes each hold a share of a packed sequence's tokens (Ulysses, Jacobs et al. 2023).

Everything but attention looks at one token at a time and runs on a process's own tokens. Attention runs on a share of
the heads, for which every process receives all tokens. So the attention of one process is used unchanged, and the
shared prefix stays shared.

The rows that a model's head reads may be anywhere in the sequence, mostly at its end. Every process receives all of
them, so a loss is the same number everywhere. The backward pass is that of the *sum* of these equal losses: averaging
gradients over the processes, as data parallelism does, gives the gradient of one.

Shapes: M processes, S tokens of the packed sequence, Q tokens of a share, H query heads, G key heads, D head size,
C hidden size, N rows.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from longrm.errors import ConfigError
from longrm.modeling.folders import check_keys_only

SequenceGroup = dist.ProcessGroup

_GROUP = "longrm_sequence"  # attribute of a model: the processes that share its sequences


def share_sequences(model: Any, group: SequenceGroup) -> None:
    """Makes a model read sequences of which every process of a group holds a share."""
    check_keys_only(model.config, "parallel.sequence_parallel_size")
    heads, members = int(model.config.num_attention_heads), group.size()
    if heads % members:
        divisors = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ConfigError(
            f"parallel.sequence_parallel_size = {members} does not divide the model's {heads} attention heads; use "
            f"one of {divisors}"
        )
    setattr(model, _GROUP, group)


def sequence_group(model: Any) -> SequenceGroup | None:
    """Returns the processes that share the sequences of a model; None if it reads them alone."""
    group: SequenceGroup | None = getattr(model, _GROUP, None)
    return group


def own_share(sequence: Tensor, group: SequenceGroup) -> Tensor:
    """Returns the tokens `[1, Q]` of `[1, S]` that this process holds; zeros fill up the last shares."""
    size = -(-sequence.shape[1] // group.size())
    filled = F.pad(sequence, (0, size * group.size() - sequence.shape[1]))
    return filled[:, group.rank() * size : (group.rank() + 1) * size]


def over_heads(
    query: Float[Tensor, "1 H Q D"],
    key: Float[Tensor, "1 G Q D"],
    value: Float[Tensor, "1 G Q D"],
    tokens: int,
    group: SequenceGroup,
) -> tuple[Float[Tensor, "1 H/M S D"], Float[Tensor, "1 G/M S D"], Float[Tensor, "1 G/M S D"]]:
    """Exchanges all heads of a share of the tokens for a share of the heads of all tokens."""
    heads, members = key.shape[1], group.size()
    # With fewer key heads than processes a key head is sent to several. Both counts divide H, so their lcm does.
    copies = math.lcm(heads, members) // heads
    key, value = (states.repeat_interleave(copies, dim=1) for states in (key, value))

    def exchanged(states: Float[Tensor, "1 H Q D"]) -> Float[Tensor, "1 H/M S D"]:
        _, heads, share, size = states.shape
        received = _exchange(states.reshape(members, heads // members, share, size), group)  # [M, H/M, Q, D]
        # Process i sent tokens i*Q to (i+1)*Q; those beyond S are filling.
        return received.transpose(0, 1).flatten(1, 2)[None, :, :tokens]

    return exchanged(query), exchanged(key), exchanged(value)


def over_tokens(output: Float[Tensor, "1 S H/M D"], group: SequenceGroup) -> Float[Tensor, "1 Q H D"]:
    """Exchanges a share of the heads of all tokens for all heads of a share of the tokens."""
    members, (tokens, heads, size) = group.size(), output.shape[1:]
    share = -(-tokens // members)
    filled = F.pad(output[0], (0, 0, 0, 0, 0, share * members - tokens))
    received = _exchange(filled.view(members, share, heads, size), group)  # [M, Q, H/M, D]
    return received.transpose(0, 1).flatten(1, 2)[None]


def gather_rows(
    hidden: Float[Tensor, "Q C"], indices: Sequence[int] | Int[Tensor, " N"], group: SequenceGroup
) -> Float[Tensor, "N C"]:
    """Returns the rows of the whole sequence at these indices, on every process."""
    size, first = len(hidden), group.rank() * len(hidden)
    places = torch.as_tensor(indices, device=hidden.device) - first
    own = (places >= 0) & (places < size)
    # Each row is on one process and zero on all others, so that the sum is the row.
    return _sum(hidden[places.clamp(0, size - 1)] * own[:, None], group)


def own_part(values: Tensor, group: SequenceGroup) -> Tensor:
    """Returns this process's part of values that all processes have; `gather_parts` joins what is computed of them."""
    return torch.tensor_split(values, group.size())[group.rank()]


def gather_parts(part: Float[Tensor, " n"], total: int, group: SequenceGroup) -> Float[Tensor, " N"]:
    """Returns the results of all processes, on every process, in the order that `own_part` divided."""
    sizes = [len(one) for one in torch.tensor_split(torch.empty(total, device="meta"), group.size())]
    before = sum(sizes[: group.rank()])
    return _sum(F.pad(part, (before, total - before - len(part))), group)


def _exchange(parts: Float[Tensor, "M ..."], group: SequenceGroup) -> Float[Tensor, "M ..."]:
    """Sends part i to process i, and returns what every process sent to this one."""
    received: Tensor = _SelfAdjoint.apply(parts, group, _all_to_all)  # type: ignore[no-untyped-call]  # torch's own
    return received


def _sum(values: Tensor, group: SequenceGroup) -> Tensor:
    """Returns the sum over the processes, on each of them."""
    total: Tensor = _SelfAdjoint.apply(values, group, _all_reduce)  # type: ignore[no-untyped-call]  # torch's own
    return total


def _all_to_all(parts: Tensor, group: SequenceGroup) -> Tensor:
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return received


def _all_reduce(values: Tensor, group: SequenceGroup) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class _SelfAdjoint(torch.autograd.Function):
    """A collective operation that is its own backward pass.

    That of an exchange sends every gradient back to where its value came from. That of a sum over processes, for the
    sum of their losses, is the sum of their gradients.
    """

    @staticmethod
    def forward(context: Any, values: Tensor, group: SequenceGroup, collective: Any) -> Any:
        context.group, context.collective = group, collective
        return collective(values, group)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        group, collective = context.group, context.collective
        return _SelfAdjoint.apply(gradients[0], group, collective), None, None  # type: ignore[no-untyped-call]  # torch's own
