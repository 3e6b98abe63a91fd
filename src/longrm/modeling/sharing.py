"""Shared prefixes in any trainer: `share_prefixes(model)` makes a transformers model read equal beginnings once.

    model = longrm.share_prefixes(AutoModelForCausalLM.from_pretrained(...))
    GRPOTrainer(model, ...)  # unchanged, and each prompt is encoded once for all of its completions

Every trainer calls the body of the model (`model.base_model`, below all heads); TRL replaces `model.forward`. The
body's forward finds rows of the batch with a common prefix, packs them into trees, reads these in one pass with
`longrm_shared_prefix` attention, and gathers the last hidden states back to `[B, L, C]`. Heads, losses and gradients
are computed from these as before. Calls with anything but a plain batch of token ids (a cache, embeddings, hidden
states of all layers, ...) use the original forward.

Shapes: B rows of L tokens, padding included; S tokens of the packed sequence, C hidden size.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from inspect import signature
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from longrm.errors import ModelError
from longrm.modeling.attention import shared_prefix_attention
from longrm.modeling.folders import check_config
from longrm.modeling.shapes import PackedLayout, TreeShape

_logger = logging.getLogger(__name__)

_Model = TypeVar("_Model", bound=nn.Module)

_ATTRIBUTE = "_longrm_sharing"  # of a body that shares; a plain object, so it is in no checkpoint

_reading_trees: ContextVar[bool] = ContextVar("reading_trees", default=False)
"""Whether the body's forward pass that makes masks now reads packed trees, which need none."""

# Arguments of attention that describe sequences packed by the caller. Others that are not parameters of the body, such
# as the columns that trainers pass on, change no hidden state.
_PACKING = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}
_HARMLESS = {"use_cache", "cache_position"}


class SharedTokens(NamedTuple):
    """Tokens of the calls that shared, without padding, and the tokens that were computed for them."""

    given: int
    computed: int


@dataclass(slots=True)
class _Sharing:
    """The state of a body that shares."""

    min_tokens: int
    attention: str  # the implementation before
    given: int = 0
    computed: int = 0
    logged: set[str] = field(default_factory=set)

    def log_once(self, message: str, *values: object) -> None:
        if message not in self.logged:
            self.logged.add(message)
            _logger.info(message, *values)


def share_prefixes(model: _Model, *, min_tokens: int = 64) -> _Model:
    """Makes a transformers decoder encode the common prefixes of a batch's rows once; changes it in place, returns it.

    Outputs and gradients are those of separate rows, up to rounding. Rows may be in any order, padded on either side.
    PEFT may wrap the model before or after. Calls with a cache, `use_cache=True`, `inputs_embeds`, hidden states or
    attentions of all layers, a 4D mask or packed sequences are computed as before. A call that shares returns no cache.

    Args:
        model: A causal language model, a sequence or token classifier, or a body alone.
        min_tokens: A batch in which sharing saves fewer tokens is computed as before.

    Raises:
        ModelError: The architecture needs what attention over a shared prefix does not compute.
    """
    body = _body(model)
    if _ATTRIBUTE in vars(body):
        vars(body)[_ATTRIBUTE].min_tokens = min_tokens
        return model
    config = body.config
    where = type(model).__name__
    check_config(config, where)
    for name, module in body.named_modules():
        if getattr(module, "is_causal", True) is False:
            raise ModelError(f"{where}: {name} is not causal: later tokens would change earlier ones")
    if not body._supports_attention_backend:
        raise ModelError(f"{where}: its attention cannot be replaced by one for a shared prefix")
    if getattr(config, "attention_dropout", 0.0):
        raise ModelError(f"{where}: attention dropout is not supported: set attention_dropout to 0")
    before = config._attn_implementation
    setattr(body, _ATTRIBUTE, _Sharing(min_tokens, before))
    body.set_attn_implementation(_either_attention(before))
    # A class, because a deep copy of an instance's `forward` would call the original instance.
    body.__class__ = _sharing_class(type(body))
    return model


def unshare(model: _Model) -> _Model:
    """Undoes `share_prefixes`, in place; returns the model."""
    body = _body(model)
    if _ATTRIBUTE in vars(body):
        body.set_attn_implementation(vars(body).pop(_ATTRIBUTE).attention)
        body.__class__ = type(body)._longrm_plain
    return model


def shared_tokens(model: nn.Module) -> SharedTokens:
    """Returns the counts of tokens since the last call of this function, and resets them."""
    sharing = vars(_body(model)).get(_ATTRIBUTE)
    if sharing is None:
        raise ModelError("the model does not share prefixes: call longrm.share_prefixes(model)")
    found = SharedTokens(sharing.given, sharing.computed)
    sharing.given = sharing.computed = 0
    return found


def _body(model: Any) -> Any:
    """The stack of layers below all heads, also of a model within PEFT's or DistributedDataParallel's wrapper."""
    inner = model
    while not hasattr(inner, "config") or not hasattr(inner, "_supports_attention_backend"):
        if hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()
        elif isinstance(getattr(inner, "module", None), nn.Module):
            inner = inner.module
        else:
            raise ModelError(f"{type(model).__name__} is not a transformers model")
    if hasattr(inner, "get_base_model"):  # PEFT passes unknown attributes on to its model
        inner = inner.get_base_model()
    return inner.base_model


def _sharing_class(plain: type) -> type:
    """A subclass of a body's class that shares."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _forward(self, partial(plain.forward, self), *args, **kwargs)  # type: ignore[attr-defined]

    forward.__wrapped__ = plain.forward  # type: ignore[attr-defined]  # transformers and trainers read the signature
    read = _PACKING | (signature(plain.forward).parameters.keys() - _HARMLESS)  # type: ignore[attr-defined]
    added = {"forward": forward, "_longrm_plain": plain, "_longrm_read": read, "__module__": plain.__module__}
    return type(plain.__name__, (plain,), added)


def _forward(
    body: Any,
    plain: Callable[..., Any],
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    sharing: _Sharing = vars(body)[_ATTRIBUTE]
    reason = _plain_because(body, input_ids, attention_mask, args, kwargs)
    plan: _Plan | None = None
    if input_ids is not None and reason is None:
        plan, reason = _plan(input_ids, attention_mask, position_ids, sharing.min_tokens)
    if input_ids is None or plan is None:
        sharing.log_once(f"prefixes are not shared: {reason}")
        return plain(input_ids, attention_mask, position_ids, *args, **kwargs)
    sharing.given, sharing.computed = sharing.given + plan.given, sharing.computed + plan.layout.tokens
    sharing.log_once("prefixes are shared: %d of %d tokens are computed", plan.layout.tokens, plan.given)
    token = _reading_trees.set(True)
    try:
        packed = input_ids.flatten()[plan.packed][None]
        changed = {**kwargs, "use_cache": False, "layout": plan.layout}
        output = plain(packed, None, plan.position_ids[None], **changed)
    finally:
        _reading_trees.reset(token)
    states = output.last_hidden_state[0]
    output.last_hidden_state = states.index_select(0, plan.rows.flatten()).view(*plan.rows.shape, -1)
    return output


def _plain_because(
    body: Any, input_ids: Tensor | None, mask: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Why a call cannot share, by its arguments; None if it can."""
    if input_ids is None or input_ids.ndim != 2:
        return "no batch of token ids"
    if len(input_ids) < 2:
        return "a batch of one row; rows share only within a micro-batch"
    if mask is not None and not (isinstance(mask, Tensor) and mask.shape == input_ids.shape):
        return "a mask that is not one value per token"
    if any(value is not None for value in args):
        return "positional arguments after position_ids"
    config = body.config
    for name in ("output_hidden_states", "output_attentions", "output_router_logits"):
        given = kwargs.get(name)
        if given or (given is None and getattr(config, name, False)):
            return name
    for name, value in kwargs.items():
        if name in body._longrm_read and value is not None and value is not False:
            return name
    if kwargs.get("use_cache"):
        return "use_cache"
    return "return_dict" if kwargs.get("return_dict") is False else None


# Which rows share


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """How the rows of a batch are packed, and where each of their tokens is in the packed sequence."""

    layout: PackedLayout
    given: int  # tokens without padding
    packed: Int[Tensor, " S"]  # of every packed token, its place in the flattened batch
    position_ids: Int[Tensor, " S"]
    rows: Int[Tensor, "B L"]  # of every token of the batch, its place in the packed sequence; padding: any


def _plan(
    ids: Tensor, mask: Tensor | None, position_ids: Tensor | None, min_tokens: int
) -> tuple["_Plan | None", str]:
    """Plans the trees of a batch; None with the reason if it cannot be packed or is not worth it."""
    rows, length = ids.shape
    device = ids.device
    columns = torch.arange(length, device=device)
    if mask is None:
        mask = torch.ones_like(ids)
    seen = mask.bool()
    sizes = seen.sum(1)
    starts = seen.to(torch.uint8).argmax(1)
    inside = (columns >= starts[:, None]) & (columns < (starts + sizes)[:, None])
    whole = (inside == seen).all()
    begin = starts  # the position of every row's first token
    if position_ids is not None:
        positions = position_ids.expand(rows, length) if position_ids.ndim == 2 else position_ids
        begin = positions.gather(1, starts[:, None])[:, 0]
        expected = begin[:, None] + columns - starts[:, None]
        whole = whole & ((positions == expected) | ~inside).all()
    # The rows, moved to the left, with what is no token of any vocabulary behind them.
    moved = ids.gather(1, (columns + starts[:, None]).clamp(max=length - 1))
    moved = torch.where(columns < sizes[:, None], moved, -1 - torch.arange(rows, device=device)[:, None])
    # A row at a time, so that no [B, B, L] is in memory. Where nothing differs, argmax is 0: rows without padding.
    common = []
    for row in moved:
        differs = moved != row
        common.append(torch.where(differs.any(1), differs.to(torch.uint8).argmax(1), length))
    # The only transfer: B (B + 3) + 1 numbers.
    table = torch.cat([torch.stack(common), starts[:, None], sizes[:, None], begin[:, None]], 1)
    *lines, (ok, *_) = torch.cat([table, whole.long().expand(1, rows + 3)]).tolist()
    if not ok:
        return None, "a mask with gaps, or positions that do not count up"
    counts = [line[rows + 1] for line in lines]
    if min(counts) < 2:
        return None, "a row of less than two tokens"
    groups = choose_groups([line[:rows] for line in lines], counts)
    if sum(shared * (len(members) - 1) for shared, members in groups) < min_tokens:
        return None, "too few tokens are equal"
    return _lay_out(groups, [line[rows:] for line in lines], length, device), ""


def choose_groups(common: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Chooses which rows share, so that the fewest tokens are computed: `(length of the prefix, rows)` of every group.

    `common[i][j]` is the length of what rows i and j have in common; every row has at least two tokens, and as a branch
    keeps one. Common beginnings form a tree whose leaves are the rows. A group at a node of depth d saves d tokens for
    each of its rows but one, so the best choice of nodes is found from the leaves up.
    """

    def shared(one: int, other: int) -> int:
        return min(common[one][other], sizes[one] - 1, sizes[other] - 1)

    @cache
    def best(rows: tuple[int, ...], above: int) -> tuple[int, list[tuple[int, list[int]]], list[int]]:
        """The most tokens saved below a node if the next group above has depth `above`: (saved, groups, rows left)."""
        if len(rows) == 1:
            return above, [], [*rows]
        depth = min(shared(rows[0], row) for row in rows[1:])
        children: list[tuple[int, ...]] = []
        left = rows
        while left:
            children.append(tuple(row for row in left if row == left[0] or shared(left[0], row) > depth))
            left = tuple(row for row in left if row not in children[-1])
        options = []
        for at in (above, depth):
            parts = [best(child, at) for child in children]
            groups = [group for _, found, _ in parts for group in found]
            options.append(
                (sum(saved for saved, _, _ in parts), groups, [row for *_, rest in parts for row in rest])
            )
        without, (saved, groups, rest) = options
        if saved - depth > without[0]:
            return saved - depth, [*groups, (depth, sorted(rest))], []
        return without

    _, groups, alone = best(tuple(range(len(sizes))), 0)
    return [*groups, *((sizes[row] - 1, [row]) for row in alone)]


def _lay_out(
    groups: Sequence[tuple[int, list[int]]], rows: Sequence[Sequence[int]], length: int, device: torch.device
) -> _Plan:
    """Packs `groups` of rows, which are given as `(first column, tokens, first position)`."""
    shapes, packed, positions = [], [], []
    place = torch.zeros(len(rows), length, dtype=torch.long)
    size = 0
    for shared, members in groups:
        first = members[0]
        start, _, begin = rows[first]
        packed.append(torch.arange(shared) + first * length + start)
        positions.append(torch.arange(shared) + begin)
        fork = size + shared
        tail = fork
        for row in members:
            own, tokens, _ = rows[row]
            rest = tokens - shared
            packed.append(torch.arange(rest) + row * length + own + shared)
            positions.append(torch.arange(rest) + begin + shared)
            place[row, own : own + shared] = torch.arange(size, fork)
            place[row, own + shared : own + tokens] = torch.arange(tail, tail + rest)
            tail += rest
        shapes.append(TreeShape(shared, tuple(rows[row][1] - shared for row in members)))
        size = tail
    index, position = (torch.cat(part).to(device, non_blocking=True) for part in (packed, positions))
    given = sum(tokens for _, tokens, _ in rows)
    return _Plan(PackedLayout(tuple(shapes)), given, index, position, place.to(device, non_blocking=True))


# Attention and masks of both kinds of calls


def _either_attention(implementation: str) -> str:
    """Registers attention over trees for calls with a layout, and `implementation` for all others; returns its name."""
    name = f"longrm_or_{implementation}".replace("/", "_")

    def attention(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("layout") is not None:
            return shared_prefix_attention(module, *args, **kwargs)
        if _reading_trees.get():
            raise ModelError(
                f"{type(module).__name__} does not pass the layout of a packed sequence on to its attention"
            )
        if implementation == "eager":  # every model file has its own
            own = sys.modules[type(module).__module__].eager_attention_forward
        else:
            own = ALL_ATTENTION_FUNCTIONS[implementation]
        return own(module, *args, **kwargs)

    def mask(*args: Any, **kwargs: Any) -> Any:
        return None if _reading_trees.get() else ALL_MASK_ATTENTION_FUNCTIONS[implementation](*args, **kwargs)

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    return name
