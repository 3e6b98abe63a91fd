"""Shared prefixes in any trainer: `share_prefixes(model)` makes a transformers model read equal beginnings once.

    model = longrm.share_prefixes(AutoModelForCausalLM.from_pretrained(...))
    GRPOTrainer(model, ...)  # unchanged, and each prompt is encoded once for all of its completions

Every trainer calls the body of the model (`model.base_model`, below all heads); TRL replaces `model.forward`. The
body's forward finds rows of the batch with a common prefix, packs them into trees, reads these in one pass with
`longrm_shared_prefix` attention and recurrent layers that continue the states of a node in its branches, and gathers
the last hidden states back to `[B, L, C]`. Heads, losses and gradients are computed from these as before. Calls with
anything but a plain batch of token ids (a cache, embeddings, hidden states of all layers, ...) use the original
forward.

Shapes: B rows of L tokens, padding included; S tokens of the packed sequence, C hidden size.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.func import functional_call
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from longrm.errors import ModelError
from longrm.modeling.attention import SHARED_PREFIX, shared_prefix_attention
from longrm.modeling.folders import check_config, layer_kinds, recurrent_layers
from longrm.modeling.recurrent import MIXING, called_modules, check_mixers, mixers, pack_states
from longrm.modeling.shapes import PackedLayout, TreeShape
from longrm.modeling.shared_prefix import evaluation_mode

_logger = logging.getLogger(__name__)

_Model = TypeVar("_Model", bound=nn.Module)

_ATTRIBUTE = "_longrm_sharing"  # of a body that shares; a plain object, so it is in no checkpoint

# Arguments of attention that are not parameters of the body. Others, such as the columns that trainers pass on, change
# no hidden state.
_ATTENTION = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}
_REPLACED = ("input_ids", "attention_mask", "position_ids")
_HARMLESS = {"use_cache", "cache_position"}
_WITHOUT_ATTENTION = {"linear_attention", "conv", "mlp", "moe"}


class SharedTokens(NamedTuple):
    """What `share_prefixes` saved.

    Attributes:
        given: Tokens of the calls that shared, without padding.
        computed: Tokens that were computed for these calls.
        plain: How many other calls there were, by the reason why they did not share.
    """

    given: int
    computed: int
    plain: dict[str, int]


@dataclass(slots=True)
class _Sharing:
    """The state of a body that shares."""

    min_tokens: int
    attention: str  # the implementation before
    scored_at: int | None  # the padding id by which a classifier finds the last token of a row
    layers: int  # how many modules of attention and recurrences a packed pass calls
    given: int = 0
    computed: int = 0
    plain: Counter[str] = field(default_factory=Counter)
    absolute: bool | None = None  # whether it reads more than distances of positions; None if not tried
    checked: bool = False  # a packed pass called them all
    logged: set[str] = field(default_factory=set)

    def log_once(self, message: str, *values: object) -> None:
        if message not in self.logged:
            self.logged.add(message)
            _logger.info(message, *values)


class _NoCache:
    """Returned in place of a cache, because a call with `past_key_values=None` would begin a new text."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_NO_CACHE)


_LEAST = 16
"""Tokens that a fork of rows must save."""

_LEVELS = 100
"""Forks in a row, below which rows share nothing more: within Python's limit of recursions."""

_NO_CACHE = "a call that shares prefixes returns no cache: pass use_cache=True to get one"


def share_prefixes(model: _Model, *, min_tokens: int = 64) -> _Model:
    """Makes a transformers decoder encode the common prefixes of a batch's rows once; changes it in place, returns it.

    Outputs and gradients are those of separate rows, up to rounding. Rows may be in any order, padded on either side;
    where a model reads more than distances of positions, rows share only if they begin at the same one. PEFT,
    DistributedDataParallel and FSDP2 may wrap the model before or after. Calls with a cache, `use_cache=True`,
    `inputs_embeds`, hidden states or attentions of all layers, a 4D mask or packed sequences are computed as before. A
    call that shares returns no cache. Its states of padding are those of another token, and dropout and hooks on layers
    see a shared token once.

    Args:
        model: A causal language model, a sequence or token classifier, or a body alone.
        min_tokens: A batch in which sharing saves fewer tokens is computed as before.

    Raises:
        ModelError: A part of the architecture cannot be computed over a shared prefix.
    """
    owner = _owner(model)
    body = owner.base_model
    unshare(model)
    config = body.config
    where = type(model).__name__
    check_config(config, where)
    recurrent = recurrent_layers(config)
    for name, module in body.named_modules():
        if getattr(module, "is_causal", True) is False:
            raise ModelError(f"{where}: {name} is not causal: later tokens would change earlier ones")
        if isinstance(module, MIXING) and not recurrent:
            raise ModelError(f"{where}: {name} mixes tokens, and its config names no recurrent layers")
    if recurrent:
        check_mixers(body, where)
    if not {*_REPLACED} <= signature(body.forward).parameters.keys():
        raise ModelError(f"{where}: its {type(body).__name__} takes no positions")
    if "forward" in vars(body):  # by accelerate, for a device_map of several devices
        raise ModelError(f"{where}: the forward of its {type(body).__name__} was replaced: not supported")
    # Most families with recurrent layers lack the mark of those that pass keyword arguments on to attention, and do it.
    if not (body._supports_attention_backend or (recurrent and body._can_set_attn_implementation())):
        raise ModelError(f"{where}: its attention cannot be replaced by one for a shared prefix")
    if getattr(config, "attention_dropout", 0.0):
        raise ModelError(f"{where}: attention dropout is not supported: set attention_dropout to 0")
    before = config._attn_implementation
    # A language model's loss has labels; all other heads may choose the token that they read by its id.
    writes = owner is not body and owner.get_output_embeddings() is not None
    pack_states(body)
    body.set_attn_implementation(_either_attention(before))
    kinds = layer_kinds(config)[: config.num_hidden_layers]
    layers = len(mixers(body, where)) + sum(kind not in _WITHOUT_ATTENTION for kind in kinds)
    sharing = _Sharing(min_tokens, before, None if writes else config.pad_token_id, layers)
    if "llama_4_scaling_beta" in (getattr(config, "rope_parameters", None) or {}):
        sharing.absolute = True
    setattr(body, _ATTRIBUTE, sharing)
    # A class, because a deep copy of an instance's `forward` would call the original instance.
    if not hasattr(type(body), "_longrm_plain"):
        body.__class__ = _sharing_class(type(body))
    return model


def unshare(model: _Model) -> _Model:
    """Undoes `share_prefixes`, in place; returns the model."""
    body = _owner(model).base_model
    if _ATTRIBUTE in vars(body):
        sharing = vars(body).pop(_ATTRIBUTE)
        if body.config._attn_implementation == _name(sharing.attention):
            body.set_attn_implementation(sharing.attention)
        pack_states(body, sharing.attention == SHARED_PREFIX)
        # FSDP2 made a subclass if it came later; its forward is plain from now on.
        if "_longrm_plain" in vars(type(body)):
            body.__class__ = type(body)._longrm_plain
    return model


def shared_tokens(model: nn.Module) -> SharedTokens:
    """Returns the counts of tokens since the last call of this function, and resets them."""
    sharing = vars(_owner(model).base_model).get(_ATTRIBUTE)
    if sharing is None:
        raise ModelError("the model does not share prefixes: call longrm.share_prefixes(model)")
    found = SharedTokens(sharing.given, sharing.computed, dict(sharing.plain))
    sharing.given = sharing.computed = 0
    sharing.plain.clear()
    return found


def _owner(model: Any) -> Any:
    """The transformers model, also within PEFT's or DistributedDataParallel's wrapper; `base_model` is its body."""
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
    return inner


def _sharing_class(plain: type) -> type:
    """A subclass of a body's class that shares."""
    _, *names = signature(plain.forward).parameters  # type: ignore[attr-defined]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        return _forward(self, partial(plain.forward, self), given)  # type: ignore[attr-defined]

    forward.__wrapped__ = plain.forward  # type: ignore[attr-defined]  # transformers and trainers read the signature

    def reduce(self: Any, protocol: Any) -> Any:
        # Pickle finds no class of this name, so that it stores the plain one.
        rest = object.__reduce_ex__(self, protocol)[2:]
        return _restored, (plain, vars(self)[_ATTRIBUTE].attention), *rest

    read = _ATTENTION | {*names}.difference(_REPLACED, _HARMLESS)
    added = {"forward": forward, "_longrm_plain": plain, "_longrm_read": read, "__module__": plain.__module__}
    return type(plain.__name__, (plain,), {**added, "__reduce_ex__": reduce})


def _restored(plain: type, attention: str) -> Any:
    """A body that shares, without its state: for pickle and deep copies."""
    _either_attention(attention)
    return object.__new__(_sharing_class(plain))


def _forward(body: Any, plain: Callable[..., Any], given: dict[str, Any]) -> Any:
    sharing: _Sharing | None = vars(body).get(_ATTRIBUTE)
    if sharing is None:
        return plain(**given)
    if isinstance(given.get("past_key_values"), _NoCache):
        raise ModelError(_NO_CACHE)
    plan = _plain_because(body, sharing, given) or _plan(body, sharing, given)
    if isinstance(plan, str):
        sharing.plain[plan] += 1
        sharing.log_once(f"prefixes are not shared: {plan}")
        return plain(**given)
    sharing.given, sharing.computed = sharing.given + plan.given, sharing.computed + plan.layout.tokens
    sharing.log_once("prefixes are shared: %d of %d tokens are computed", plan.layout.tokens, plan.given)
    called: set[int] = set()
    token = called_modules.set(called)
    try:
        replaced = {"input_ids": plan.input_ids, "attention_mask": None, "position_ids": plan.position_ids}
        output = plain(**{**given, **replaced, "use_cache": False, "layout": plan.layout})
    finally:
        called_modules.reset(token)
    if not sharing.checked:
        if len(called) < sharing.layers:
            raise ModelError(f"{type(body).__name__} has layers without attention: prefixes cannot be shared")
        sharing.checked = True
    states = output.last_hidden_state[0]
    output.last_hidden_state = states.index_select(0, plan.rows.flatten()).view(*plan.rows.shape, -1)
    if given.get("use_cache") is None and body.config.use_cache and not torch.is_grad_enabled():
        output["past_key_values"] = _NoCache()
    return output


def _plain_because(body: Any, sharing: _Sharing, given: Mapping[str, Any]) -> str | None:
    """Why a call cannot share, by its arguments; None if it can."""
    input_ids, mask, position_ids = (given.get(name) for name in _REPLACED)
    if input_ids is None or input_ids.ndim != 2:
        return "no batch of token ids"
    if given.get("past_key_values") is not None:
        return "past_key_values"
    if len(input_ids) < 2:
        return "a micro-batch of one row"
    if mask is not None and not (isinstance(mask, Tensor) and mask.shape == input_ids.shape):
        return "a mask that is not one value per token"
    if position_ids is not None and position_ids.ndim != 2:
        return "positions of several dimensions"
    config = body.config
    if config._attn_implementation != _name(sharing.attention):
        return "another attention implementation was set: call share_prefixes again"
    if body.training and hasattr(body.get_input_embeddings(), "neftune_noise_alpha"):
        return "NEFTune noise, whose size depends on the length of rows"
    for name in ("output_hidden_states", "output_attentions", "output_router_logits"):
        asked = given.get(name)
        if asked or (asked is None and getattr(config, name, False)):
            return name
    if given.get("is_causal") is False:
        return "is_causal"
    for name, value in given.items():
        # 0 is what heads pass as `logits_to_keep` for all tokens.
        if name in body._longrm_read and not (value is None or (isinstance(value, int) and not value)):
            return name
    if given.get("use_cache"):
        return "use_cache"
    dicts = given.get("return_dict")
    return "return_dict" if (config.return_dict if dicts is None else dicts) is False else None


# Which rows share


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """How the rows of a batch are packed, and where each of their tokens is in the packed sequence."""

    layout: PackedLayout
    given: int  # tokens without padding
    input_ids: Int[Tensor, "1 S"]
    position_ids: Int[Tensor, "1 S"]
    rows: Int[
        Tensor, "B L"
    ]  # where each token of the batch is in the packed sequence; for padding, the row's last


def _plan(body: Any, sharing: _Sharing, given: Mapping[str, Any]) -> "_Plan | str":
    """Plans the trees of a batch; the reason if it cannot be packed or is not worth it."""
    ids, mask, position_ids = (given.get(name) for name in _REPLACED)
    assert ids is not None
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
    if sharing.scored_at is not None:  # a classifier whose last token is padding of another id
        text = ids != sharing.scored_at
        whole = whole & ~(text & (columns >= (starts + sizes)[:, None])).any() & (text & inside).any(1).all()
    begin = starts  # the position of every row's first token
    if position_ids is not None:
        positions = position_ids.expand(rows, length)
        begin = positions.gather(1, starts[:, None])[:, 0]
        expected = begin[:, None] + columns - starts[:, None]
        whole = whole & ((positions == expected) | ~inside).all()
        # Later positions are those of a part of a sequence that several processes hold.
        whole = whole & (begin <= starts).all()
    # The rows, moved to the left, with what is no token of any vocabulary behind them.
    moved = ids.gather(1, (columns + starts[:, None]).clamp(max=length - 1))
    moved = torch.where(columns < sizes[:, None], moved, -1 - torch.arange(rows, device=device)[:, None])
    if sharing.absolute:  # rows that begin at different positions have nothing in common
        moved[:, 0] += begin << 32
    # A row at a time, so that no [B, B, L] is in memory. Where nothing differs, argmax is 0: rows without padding.
    common = []
    for row in moved:
        differs = moved != row
        common.append(torch.where(differs.any(1), differs.to(torch.uint8).argmax(1), length))
    # The only transfer: (B + 1) (B + 3) numbers.
    table = torch.cat([torch.stack(common), starts[:, None], sizes[:, None], begin[:, None]], 1)
    *lines, (ok, *_) = torch.cat([table, whole.long().expand(1, rows + 3)]).tolist()
    if not ok:
        return "a mask with gaps, positions that do not count up, or scores read at padding"
    apart = len({line[-1] for line in lines}) > 1
    if apart and sharing.absolute is None:
        sharing.absolute = _reads_absolute_positions(body)
        return _plan(body, sharing, given)
    counts = [line[rows + 1] for line in lines]
    if min(counts) < 2:
        return "a row of less than two tokens"
    trees = choose_trees([line[:rows] for line in lines], counts, _LEAST)
    if sum(counts) - sum(_computed(tree, counts) for tree in trees) < sharing.min_tokens:
        if apart and sharing.absolute:
            return "rows begin at different positions: pass position_ids, or pad on the right"
        return "rows of a micro-batch have too little in common"
    return _lay_out(trees, [line[rows:] for line in lines], ids)


@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.no_grad()
def _reads_absolute_positions(body: Any) -> bool:
    """Whether states change if all positions grow by the same number, or whether that cannot be tried.

    With rotary embeddings only distances matter, except in families that normalize keys after the rotation (HunYuan)
    or scale queries by position (Beam). Weights of norms are drawn, as in a new model they are all 1.
    """
    draw = torch.Generator().manual_seed(0)
    changed: dict[str, Tensor] = {}
    for name, weight in body.named_parameters():
        if (
            type(weight) is not nn.Parameter or weight.is_meta or not weight.numel()
        ):  # held by several processes
            return True
        if weight.ndim == 1:
            changed[name] = weight * (0.5 + torch.rand(weight.shape, generator=draw)).to(weight)
    device = body.get_input_embeddings().weight.device
    ids = torch.randint(body.get_input_embeddings().num_embeddings, (1, 16), generator=draw).to(device)
    same, counted = {"input_ids": ids, "use_cache": False}, torch.arange(16, device=device)[None]
    sharing = vars(body).pop(_ATTRIBUTE)
    try:
        with evaluation_mode(body):
            near, far = (
                functional_call(
                    body, changed, kwargs={**same, "position_ids": counted + start}
                ).last_hidden_state
                for start in (0, 1 << 14)
            )
    finally:
        setattr(body, _ATTRIBUTE, sharing)
    # Angles of position 2^14 have errors of 1e-3 in fp32.
    most = 0.005 if body.dtype in (torch.float32, torch.float64) else 0.05
    return bool((far.float() - near.float()).norm() > most * near.float().norm())


class Fork(NamedTuple):
    """Where rows part: they have the first `depth` tokens in common, and each branch is a row or another fork."""

    depth: int
    branches: "list[Fork | int]"


def choose_trees(common: Sequence[Sequence[int]], sizes: Sequence[int], least: int) -> list[Fork | int]:
    """The rows of a batch as trees of what they have in common, each a fork or a row that shares nothing.

    `common[i][j]` is the length of what rows i and j have in common; every row has at least two tokens, and keeps one
    for itself. Rows share nothing more at a fork that would save less than `least` tokens: each costs attention a call.
    """

    def shared(one: int, other: int) -> int:
        return min(common[one][other], sizes[one] - 1, sizes[other] - 1)

    def grow(rows: list[int], above: int, levels: int) -> list[Fork | int]:
        if len(rows) == 1 or not levels:
            return [*rows]
        depth = min(shared(rows[0], row) for row in rows[1:])
        children: list[list[int]] = []
        left = rows
        while left:
            children.append([row for row in left if row == left[0] or shared(left[0], row) > depth])
            left = [row for row in left if row not in children[-1]]
        worth = (depth - above) * (len(children) - 1) >= max(1, least)
        above = depth if worth else above
        branches = [branch for child in children for branch in grow(child, above, levels - 1)]
        return [Fork(depth, branches)] if worth else branches

    return grow([*range(len(sizes))], 0, _LEVELS)


def _computed(tree: Fork | int, sizes: Sequence[int], above: int = 0) -> int:
    """Tokens of a tree without the first `above`."""
    if not isinstance(tree, Fork):
        return sizes[tree] - above
    return tree.depth - above + sum(_computed(branch, sizes, tree.depth) for branch in tree.branches)


def _lay_out(trees: Sequence[Fork | int], rows: Sequence[Sequence[int]], ids: Int[Tensor, "B L"]) -> _Plan:
    """Packs trees of rows, which are given as `(first column, tokens, first position)`."""
    shapes, packed, positions = [], [], []
    length = ids.shape[1]
    count = partial(torch.arange, device=ids.device)  # made there, so that nothing is sent
    place = torch.zeros_like(ids, dtype=torch.long)
    size = 0

    def write(
        branch: Fork | int, path: list[tuple[int, int]], nodes: list[tuple[int, int, int]], parent: int
    ) -> None:
        """Packs a node and all below it; `path` has the ends of the nodes above, in a row and in the packed one."""
        nonlocal size
        row = branch
        while isinstance(row, Fork):
            row = row.branches[0]
        own, tokens, first = rows[row]
        begin = nodes[0][2] if nodes else first  # only distances matter where rows begin apart
        above, _ = path[-1]
        end = branch.depth if isinstance(branch, Fork) else tokens
        packed.append(count(above, end) + row * length + own)
        positions.append(count(above, end) + begin)
        size += end - above
        nodes.append((end - above, parent, begin))
        number, path = len(nodes) - 1, [*path, (end, size)]
        if isinstance(branch, Fork):
            for below in branch.branches:
                write(below, path, nodes, number)
            return
        for (before, _), (last, reach) in pairwise(path):
            place[row, own + before : own + last] = count(reach - (last - before), reach)
        place[row, :own] = place[row, own + tokens :] = size - 1

    for tree in trees:
        nodes: list[tuple[int, int, int]] = []
        write(tree, [(0, size)], nodes, -1)
        lengths, parents, _ = zip(*nodes, strict=True)
        shapes.append(TreeShape(lengths[0], lengths[1:], 0, parents[1:]))
    given = sum(tokens for _, tokens, _ in rows)
    packed_ids = ids.flatten()[torch.cat(packed)][None]
    return _Plan(PackedLayout(tuple(shapes)), given, packed_ids, torch.cat(positions)[None], place)


# Attention and masks of both kinds of calls


def _name(implementation: str) -> str:
    return f"longrm_or_{implementation}".replace("/", "_")


def _either_attention(implementation: str) -> str:
    """Registers attention over trees for calls with a layout, and `implementation` for all others; returns its name."""
    name = _name(implementation)

    def attention(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        called = called_modules.get()
        if kwargs.get("layout") is not None:
            if getattr(module, "is_causal", True) is False:
                raise ModelError(
                    f"{type(module).__name__} is not causal: later tokens would change earlier ones"
                )
            if called is not None:
                called.add(id(module))
            return shared_prefix_attention(module, *args, **kwargs)
        if called is not None:
            raise ModelError(
                f"{type(module).__name__} does not pass the layout of a packed sequence on to its attention"
            )
        if implementation == "eager":  # every model file has its own
            own = sys.modules[type(module).__module__].eager_attention_forward
        else:
            own = ALL_ATTENTION_FUNCTIONS[implementation]
        return own(module, *args, **kwargs)

    def mask(*args: Any, **kwargs: Any) -> Any:
        return (
            None
            if called_modules.get() is not None
            else ALL_MASK_ATTENTION_FUNCTIONS[implementation](*args, **kwargs)
        )

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    return name
