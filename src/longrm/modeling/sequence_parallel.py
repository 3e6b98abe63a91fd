"""One packed sequence over several processes, each of which holds a share of its tokens (Jacobs et al. 2023, Ulysses).

Everything but attention looks at one token at a time and computes on a process's own share. Attention is computed on
a share of the heads, for which every process is sent all tokens; so the function for one process is its core, and
the shared prefix stays shared.

The rows that a head of the model reads lie anywhere in the sequence, at its end mostly. They are given to all
processes, so that a loss is one number on all of them. The backward pass is that of the *sum* of their losses: whoever
takes the mean of the gradients over the processes has the gradient of one.

Letters: M processes, S tokens of the packed sequence, Q tokens of a share, H query heads, G key heads, D head size,
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

SequenceGroup = dist.ProcessGroup

_GROUP = "longrm_sequence"
"""The attribute of a model that says which processes share its sequences."""


def share_sequences(model: Any, group: SequenceGroup) -> None:
    """Has a model read sequences of which every process of a group holds a share.

    Raises:
        ConfigError: Its attention heads cannot be shared out evenly.
    """
    heads, members = int(model.config.num_attention_heads), group.size()
    if heads % members:
        *others, most = [str(n) for n in range(1, heads + 1) if heads % n == 0]
        raise ConfigError(
            f"parallel.sequence = {members} does not divide the model's {heads} attention heads, which "
            f"the processes share out; take {', '.join(others) + ' or ' if others else ''}{most}"
        )
    setattr(model, _GROUP, group)


def sequence_group(model: Any) -> SequenceGroup | None:
    """The processes that share the sequences of a model; None where it reads them alone."""
    group: SequenceGroup | None = getattr(model, _GROUP, None)
    return group


def own_share(sequence: Tensor, group: SequenceGroup) -> Tensor:
    """The tokens `[1, Q]` of `[1, S]` that this process holds; zeros fill the last shares up."""
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
    """Turns all heads of a share of the tokens into a share of the heads of all tokens."""
    heads, members = key.shape[1], group.size()
    # A key head that several processes need is sent to each; both counts divide the query heads, so this does too.
    copies = math.lcm(heads, members) // heads
    key, value = (states.repeat_interleave(copies, dim=1) for states in (key, value))
    query, key, value = (_heads(states, tokens, group) for states in (query, key, value))
    return query, key, value


def over_tokens(output: Float[Tensor, "1 S H/M D"], group: SequenceGroup) -> Float[Tensor, "1 Q H D"]:
    """Turns a share of the heads of all tokens into all heads of a share of the tokens."""
    members, (tokens, heads, size) = group.size(), output.shape[1:]
    share = -(-tokens // members)
    filled = F.pad(output[0], (0, 0, 0, 0, 0, share * members - tokens))
    received = _exchange(filled.view(members, share, heads, size), group)
    return received.transpose(0, 1).flatten(1, 2)[None]


def gather_rows(
    hidden: Float[Tensor, "Q C"], indices: Sequence[int] | Int[Tensor, " N"], group: SequenceGroup
) -> Float[Tensor, "N C"]:
    """Gives every process the rows of the sequence at these indices."""
    size, first = len(hidden), group.rank() * len(hidden)
    places = torch.as_tensor(indices, device=hidden.device) - first
    own = (places >= 0) & (places < size)
    return _sum(hidden[places.clamp(0, size - 1)] * own[:, None], group)


def own_part(values: Tensor, group: SequenceGroup) -> Tensor:
    """Returns this process's part of what every process could compute; `gather_parts` puts the results together."""
    return torch.tensor_split(values, group.size())[group.rank()]


def gather_parts(part: Float[Tensor, " n"], total: int, group: SequenceGroup) -> Float[Tensor, " N"]:
    """Gives every process all results of what `own_part` divided."""
    sizes = [len(one) for one in torch.tensor_split(torch.empty(total, device="meta"), group.size())]
    before = sum(sizes[: group.rank()])
    return _sum(F.pad(part, (before, total - before - len(part))), group)


def _heads(states: Float[Tensor, "1 H Q D"], tokens: int, group: SequenceGroup) -> Float[Tensor, "1 H/M S D"]:
    members, (heads, share, size) = group.size(), states.shape[1:]
    received = _exchange(states.reshape(members, heads // members, share, size), group)
    return received.transpose(0, 1).flatten(1, 2)[None, :, :tokens]


def _exchange(parts: Float[Tensor, "M ..."], group: SequenceGroup) -> Float[Tensor, "M ..."]:
    """Sends part i to process i, and returns what every process sent to this one."""
    received: Tensor = _OwnAdjoint.apply(parts, group, _all_to_all)  # type: ignore[no-untyped-call]  # torch's own
    return received


def _sum(values: Tensor, group: SequenceGroup) -> Tensor:
    """Returns the sum over the processes, on each of them."""
    total: Tensor = _OwnAdjoint.apply(values, group, _all_reduce)  # type: ignore[no-untyped-call]  # torch's own
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


class _OwnAdjoint(torch.autograd.Function):
    """A collective operation whose backward pass is the operation itself."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: SequenceGroup, collective: Any) -> Any:
        context.group, context.collective = group, collective
        return collective(values, group)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        group, collective = context.group, context.collective
        return _OwnAdjoint.apply(gradients[0], group, collective), None, None  # type: ignore[no-untyped-call]  # torch's own
