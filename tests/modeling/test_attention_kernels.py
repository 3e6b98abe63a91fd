"""The kernels of a GPU, as far as a CPU can tell: bounds, two softmaxes put together, the choice."""

import logging
import weakref
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import _registry
from torch.nn.functional import scaled_dot_product_attention

from longrm.modeling import attention, attention_cuda, attention_varlen
from longrm.modeling.attention_cuda import (
    CANDIDATES,
    ONE_TOKEN,
    TRIAL,
    AttentionHeads,
    TorchKernel,
    choose_kernel,
    deviation,
    sees_of,
)
from longrm.modeling.attention_varlen import (
    Attended,
    AttentionSpec,
    PlainKernel,
    SequenceBounds,
    plan_calls,
    varlen_attention,
)
from longrm.modeling.device_memory import checkpoint_activations
from longrm.modeling.shapes import PackedLayout, TreeShape
from longrm.modeling.shared_prefix import pack
from tests.modeling.test_shared_prefix import TOLERANCE, make_trees, separate, shared, values_and_gradients
from tests.modeling.test_shared_prefix import deviation as apart

from .conftest import CONFIGS, SCORERS, make_pair

CPU = torch.device("cpu")
HEADS = AttentionHeads(CPU, torch.float32, 4, 2, 16)
KINDS = {
    "window": {"window": True},
    "soft cap": {"softcap": True},
    "sinks": {"sinks": True},
    "window and sinks": {"window": True, "sinks": True},
    "all": {"window": True, "softcap": True, "sinks": True},
}
"""Layers that are more than a softmax of scores."""

LAYOUTS = {
    "one": PackedLayout((TreeShape(501, (61, 37, 90, 5)),)),
    "several": TRIAL,
    "aligned": PackedLayout((TreeShape(256, (128, 128)), TreeShape(128, (128,)))),
    "one token": ONE_TOKEN,
    "tiny": PackedLayout((TreeShape(1, (1, 1)), TreeShape(2, (1,)))),
    "deep": PackedLayout(
        (
            TreeShape(130, (70, 200, 3, 90, 1, 40, 128, 5), parents=(0, 1, 2, 2, 0, 5, 6, 6)),
            TreeShape(9, (1, 1, 1, 1), parents=(0, 1, 2, 2)),
        )
    ),
    "blocks between": PackedLayout(
        (TreeShape(700, (300, 400)), TreeShape(10, (3,)), TreeShape(129, (200, 1)))
    ),
}


class WrittenOut:
    """What a flash kernel computes, by its definition: output, log-sum-exp, and gradients from what is given."""

    faulty = ""

    def __init__(self):
        self.keys = []

    def forward(self, query, key, value, bounds, spec):
        self.keys.append(key)
        output, lse = torch.zeros_like(query), query.new_zeros(query.shape[1], len(query))
        for (q, rows), (k, _), (v, _) in self._parts(query, key, value, bounds):
            logits = self._logits(q, k, bounds, spec)
            lse[:, rows] = logits.logsumexp(-1)
            output[rows] = torch.einsum("hqk,khd->qhd", logits.softmax(-1), v)
        return output, lse

    def backward(self, grad, known, bounds, spec):
        query, key, value, output, lse = known
        found = [torch.zeros_like(states) for states in (query, key, value)]
        for (q, rows), (k, own), (v, _) in self._parts(query, key, value, bounds):
            logits = self._logits(q, k, bounds, spec)
            shares = (logits - lse[:, rows, None]).exp()
            delta = torch.einsum("qhd,qhd->hq", grad[rows], output[rows])
            of_logits = shares * (torch.einsum("qhd,khd->hqk", grad[rows], v) - delta[..., None])
            of_logits = (
                of_logits * spec.scale * (1 if spec.softcap is None else 1 - (logits / spec.softcap) ** 2)
            )
            of_logits = of_logits.masked_fill(shares == 0, 0.0)
            found[0][rows] += torch.einsum("hqk,khd->qhd", of_logits, k)
            of_k = torch.einsum("hqk,qhd->khd", of_logits, q)
            of_v = torch.einsum("hqk,qhd->khd", shares, grad[rows])
            for target, full in ((found[1], of_k), (found[2], of_v)):
                target[own] += full.unflatten(1, (key.shape[1], -1)).sum(2)
        return tuple(found)

    def _parts(self, query, key, value, bounds):
        group = query.shape[1] // key.shape[1]
        for index in range(len(bounds.queries) - 1):
            rows = slice(*bounds.queries[index : index + 2].tolist())
            own = slice(*bounds.keys[index : index + 2].tolist())
            yield (
                (query[rows], rows),
                (key[own].repeat_interleave(group, 1), own),
                (value[own].repeat_interleave(group, 1), own),
            )

    def _logits(self, q, k, bounds, spec):
        logits = torch.einsum("qhd,khd->hqk", q, k) * spec.scale
        if spec.softcap is not None:
            logits = spec.softcap * torch.tanh(logits / spec.softcap)
        if not bounds.causal or self.faulty == "sees all":
            return logits
        assert len(q) == len(k) or bounds.window, (
            "without a window, a causal call has as many keys as queries"
        )
        # As in flash-attn, causality and window are counted from the last query and the last key.
        last = len(k) - len(q)
        sees = torch.ones(len(q), len(k), dtype=torch.bool).tril(last)
        if bounds.window is not None:
            sees = sees.triu(last - bounds.window + 1)
        return logits.masked_fill(~sees, -torch.inf)


class OwnGradientsOnly(WrittenOut):
    """What autograd makes of two calls whose log-sum-exps have no gradient: each call's own softmax."""

    def backward(self, grad, known, bounds, spec):
        own = Attended(*known[:3], *self.forward(*known[:3], bounds, spec))
        return super().backward(grad, own, bounds, spec)


class SeesAll(WrittenOut):
    faulty = "sees all"


def masked(change):
    """Attention with the mask that `change` makes of the right one, rounded where a kernel rounds: P and the output."""

    def attend(query, key, value, layout, spec):
        dtype, group = query.dtype, query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(group, 1).float() for states in (key, value))
        tokens = torch.arange(layout.tokens)
        right = sees_of(layout, CPU)(tokens, tokens, tokens[:, None], tokens)
        nodes, starts = layout.nodes(), [*layout.roots()]
        rows = [
            (
                node.begin,
                max(start for start in starts if start <= node.begin),
                layout.tokens if node.parent is None else nodes[node.parent].end,
            )
            for node in nodes
            for _ in range(node.begin, node.end)
        ]
        own, root, fork = torch.tensor(rows).T[:, :, None]
        sees = change(own, root, fork, tokens[:, None], tokens, right)
        logits = query.float() @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        shares = logits.masked_fill(~sees, -torch.inf).softmax(-1).to(dtype).float()
        return (shares @ value).transpose(1, 2).to(dtype)

    return attend


def branch_before(own, root, fork, query, key, right):
    return (key <= query) & (key >= root)


def one_future_token(own, root, fork, query, key, right):
    return right | (query >= fork) & (own == own.T) & (key == query + 1)


def one_key_missing(own, root, fork, query, key, right):
    return right & ~((query >= fork) & (key == fork - 1))


FAULTS = {TRIAL: [branch_before, one_future_token, one_key_missing], ONE_TOKEN: [one_key_missing]}
"""By layout: a branch of one token has no future, and these no branch before."""


def path_a(query, key, value, layout, spec):
    """One attention per node, over a copy of all that it sees."""
    parts, places = [], []
    for begin, end, parent, *_ in layout.nodes():
        places.append([*(() if parent is None else places[parent]), *range(begin, end)])
        k, v = (part[:, :, places[-1]] for part in (key, value))
        sees = torch.ones(end - begin, k.shape[2], dtype=torch.bool, device=k.device)
        sees = sees.tril(k.shape[2] - (end - begin))
        parts.append(
            scaled_dot_product_attention(
                query[:, :, begin:end], k, v, attn_mask=sees, scale=spec.scale, enable_gqa=True
            )
        )
    return torch.cat(parts, dim=2).transpose(1, 2)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_attention_written_out_is_path_a(layout):
    assert deviation(path_a, HEADS, layout) < 1e-5


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_two_calls_are_one_attention(layout):
    assert deviation(partial(varlen_attention, WrittenOut()), HEADS, layout) < 1e-5


@pytest.mark.parametrize("size", [16, 80])
@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_kernel_of_a_cpu_computes_what_is_written_out(layout, queries, keys, size):
    heads = AttentionHeads(CPU, torch.float32, queries, keys, size)
    assert deviation(partial(varlen_attention, PlainKernel()), heads, layout) < 1e-5


SOME = {name: LAYOUTS[name] for name in ("several", "tiny")}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("kernel", [WrittenOut, PlainKernel])
@pytest.mark.parametrize("layout", SOME.values(), ids=SOME)
def test_windows_soft_caps_and_sinks_are_those_written_out(layout, kernel, kind, monkeypatch):
    monkeypatch.setattr(attention_varlen, "_SCORES_AT_ONCE", 100_000)  # written out in parts, too
    assert deviation(partial(varlen_attention, kernel()), replace(HEADS, **kind), layout) < 1e-5


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("window", lambda spec: {"window": spec.window + 1}),
        ("window", lambda spec: {"window": spec.window - 1}),
        ("all", lambda spec: {"softcap": None}),
        ("all", lambda spec: {"sinks": spec.sinks + 0.05}),
    ],
)
def test_another_window_soft_cap_or_sink_is_a_hundred_times_off(kind, change):
    def faulty(q, k, v, layout, spec):
        return varlen_attention(PlainKernel(), q, k, v, layout, replace(spec, **change(spec)))

    assert deviation(faulty, replace(HEADS, **KINDS[kind]), LAYOUTS["several"]) > 1e-3


def test_autocast_does_not_round_scores_that_are_written_out():
    spec, layout = replace(HEADS, **KINDS["all"]).trial_spec(), LAYOUTS["tiny"]
    states = [torch.randn(1, n, layout.tokens, 16, requires_grad=True) for n in (4, 2, 2)]
    found = []
    for enabled in (True, False):  # backward, too: a checkpointed layer is computed within autocast
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            output = varlen_attention(PlainKernel(), *states, layout, spec)
            found.append([output, *torch.autograd.grad(output.square().sum(), states)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_values_of_another_size_than_keys_have_the_attention_of_plain_torch():
    layout, generator = LAYOUTS["one"], torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, layout.tokens, size, generator=generator)
        for heads, size in ((4, 24), (2, 24), (2, 16))
    )
    found = attention.packed_attention(q, k, v, layout, AttentionSpec(0.2))
    torch.testing.assert_close(found, path_a(q, k, v, layout, AttentionSpec(0.2)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("layout", "kind"),
    [*((layout, {}) for layout in LAYOUTS.values()), *((TRIAL, kind) for kind in KINDS.values())],
    ids=[*LAYOUTS, *KINDS],
)
def test_where_only_ends_ask_they_get_what_all_get(layout, kind):
    """Outputs at the ends, and the gradients of all that they see; elsewhere nothing."""
    states = [
        torch.randn(1, n, layout.tokens, 16, dtype=torch.float64, requires_grad=True) for n in (4, 2, 2)
    ]
    ends = layout.branch_ends()
    weights = torch.randn(len(ends), 4, 16, dtype=torch.float64)
    found = []
    for only_ends in (False, True):
        spec = replace(HEADS, **kind).trial_spec()
        output = varlen_attention(PlainKernel(), *states, layout, spec, only_ends)
        found.append([output[0, ends], *torch.autograd.grad((output[0, ends] * weights).sum(), states)])
    for whole, part in zip(*found, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-9, atol=1e-12)
    assert not output[0, [index for index in range(layout.tokens) if index not in ends]].any()


def test_gradients_of_the_kernel_of_a_cpu_are_finite_differences():
    layout = PackedLayout((TreeShape(5, (2, 3)), TreeShape(4, (1, 2))))
    states = [torch.randn(1, n, layout.tokens, 4, dtype=torch.float64, requires_grad=True) for n in (4, 2, 2)]
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    for only_ends in (False, True):
        for spec in (AttentionSpec(0.3), AttentionSpec(0.3, 3), AttentionSpec(0.3, 4, 1.5, sinks)):

            def attend(*given, spec=spec, ends=only_ends):
                return varlen_attention(PlainKernel(), *given[:3], layout, spec, ends)

            assert torch.autograd.gradcheck(attend, [*states, sinks][: 3 + (spec.sinks is not None)])


@pytest.mark.parametrize("kind", [{}, KINDS["window"], KINDS["all"]], ids=["plain", "window", "all"])
@pytest.mark.parametrize("tokens", [37, 1100], ids=["fp32 kernel", "bf16 kernel"])
def test_bf16_gradients_of_the_kernel_of_a_cpu_are_those_of_fp64_but_for_rounding(tokens, kind):
    layout = PackedLayout((TreeShape(tokens, (29, 13)),))
    generator = torch.Generator().manual_seed(0)
    states = [
        torch.randn(1, n, layout.tokens, 16, generator=generator, dtype=torch.float64) for n in (4, 2, 2)
    ]

    def gradients(dtype):
        given = [one.to(dtype).requires_grad_() for one in states]
        output = varlen_attention(PlainKernel(), *given, layout, replace(HEADS, **kind).trial_spec())
        return torch.autograd.grad(output.double().square().sum(), given)

    for found, truth in zip(gradients(torch.bfloat16), gradients(torch.float64), strict=True):
        assert found.dtype == torch.bfloat16
        assert (found.double() - truth).norm() < 0.02 * truth.norm()


@pytest.mark.parametrize("wrong", [OwnGradientsOnly, SeesAll])
def test_a_wrong_kernel_is_a_hundred_times_off(wrong):
    assert deviation(partial(varlen_attention, wrong()), HEADS) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", [TRIAL, ONE_TOKEN], ids=["several", "one token"])
def test_rounding_in_half_precision_differs_from_a_wrong_mask(dtype, layout):
    heads = AttentionHeads(CPU, dtype, 4, 2, 64)
    tolerance = attention_cuda.TOLERANCE[dtype]
    assert deviation(masked(lambda own, root, fork, query, key, right: right), heads, layout) < tolerance / 2
    for fault in FAULTS[layout]:
        assert deviation(masked(fault), heads, layout) > 2 * tolerance, fault.__name__


@pytest.mark.parametrize("family", SCORERS)
def test_a_model_with_a_kernel_computes_what_separate_sequences_do(family, monkeypatch):
    stock, ours = make_pair(family, "scores")
    trees = make_trees()
    truth = values_and_gradients(stock, separate(stock, "scores", trees))
    attend = partial(varlen_attention, WrittenOut())
    monkeypatch.setattr(attention, "kernel_for", lambda query, key, spec: attend)
    with torch.inference_mode():  # what is cached here must serve training
        shared(ours, "scores", pack(trees))
    found = values_and_gradients(ours, shared(ours, "scores", pack(trees)))
    assert apart(found, truth) < TOLERANCE
    ours.train()
    ours.activation_checkpointing_enable()
    again = values_and_gradients(ours, shared(ours, "scores", pack(trees)))
    assert apart(again, found) < 1e-6


class Remembering(WrittenOut):
    """Keeps weak references to its results."""

    def __init__(self):
        super().__init__()
        self.returned = []

    def forward(self, *arguments):
        results = super().forward(*arguments)
        self.returned += [weakref.ref(part.untyped_storage()) for part in results]
        return results


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("family", SCORERS)
def test_attention_that_checkpoints_keep_is_computed_once(family, keep, monkeypatch):
    _, ours = make_pair(family, "scores")
    trees = make_trees()
    kernel = Remembering()
    monkeypatch.setattr(attention, "kernel_for", lambda *_: partial(varlen_attention, kernel))
    truth = values_and_gradients(ours, shared(ours, "scores", pack(trees)))
    calls = len(kernel.keys)
    checkpoint_activations(ours.train(), offload=False, keep_attention=keep)
    found = values_and_gradients(ours, shared(ours, "scores", pack(trees)))
    assert apart(found, truth) < 1e-6
    assert len(kernel.keys) == calls * (2 if keep else 3)
    assert not any(part() for part in kernel.returned)  # nothing outlives its backward pass


def test_keys_of_one_prefix_are_copied_for_no_branch():
    kernel = WrittenOut()
    key = torch.randn(1, 2, 694, 16)
    varlen_attention(kernel, torch.randn(1, 4, 694, 16), key, key, LAYOUTS["one"], AttentionSpec(0.25))
    own, before = kernel.keys
    assert own.data_ptr() == before.data_ptr() == key.data_ptr()
    assert len(before) == 501


FOUR_THOUSAND = attention_cuda.LONG


@pytest.fixture(autouse=True)
def short_trials(monkeypatch):
    """The long trial takes seconds where scores are written out."""
    monkeypatch.setattr(attention_cuda, "LONG", ONE_TOKEN)


def fails(*_):
    raise RuntimeError("no kernel image is available\nfor this device")


def test_the_first_kernel_that_computes_what_it_should_is_chosen(caplog):
    right, wrong = partial(varlen_attention, WrittenOut()), partial(varlen_attention, SeesAll())
    candidates = {
        "one": lambda heads: "not installed",
        "two": lambda heads: fails,
        "three": lambda heads: wrong,
        "four": lambda heads: right,
        "five": lambda heads: right,
    }
    with caplog.at_level(logging.INFO), torch.inference_mode():  # as where the first thing done is scoring
        assert choose_kernel(HEADS, candidates) is right
        assert choose_kernel(replace(HEADS, window=True, sinks=True), candidates) is right
    line, windowed = caplog.messages
    assert "prefix with a window and sinks: four" in windowed
    assert all(reason in line for reason in ("four", "not installed", "no kernel image", "off by"))


@pytest.fixture
def tried_late(monkeypatch):
    """A model's attention tries a kernel when it is first computed, as on a GPU."""
    right = partial(varlen_attention, WrittenOut())

    @lru_cache
    def chosen(heads):
        return choose_kernel(heads, {"right": lambda heads: right})

    monkeypatch.setattr(
        attention,
        "kernel_for",
        lambda q, k, spec: chosen(AttentionHeads(CPU, q.dtype, q.shape[1], k.shape[1], q.shape[3])),
    )


@pytest.mark.usefixtures("tried_late")
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_kernel_may_be_tried_within_a_checkpointed_layer(family, keep, caplog):
    stock, ours = make_pair(family, "scores")
    trees = make_trees()
    truth = values_and_gradients(stock, separate(stock, "scores", trees))
    checkpoint_activations(ours.train(), offload=False, keep_attention=keep)
    with caplog.at_level(logging.INFO, "longrm"):  # the first that is computed is training
        found = values_and_gradients(ours, shared(ours, "scores", pack(trees)))
    assert caplog.messages == ["attention over a shared prefix: right"]
    assert apart(found, truth) < TOLERANCE


def test_a_kernel_is_not_rejected_because_memory_ran_out():
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    right = partial(varlen_attention, WrittenOut())
    with pytest.raises(torch.OutOfMemoryError):
        choose_kernel(HEADS, {"one": lambda heads: full, "two": lambda heads: right})


class GradientsOfNothing(WrittenOut):
    """The output is right."""

    def backward(self, grad, known, *_):
        return tuple(torch.full_like(states, torch.nan) for states in known[:3])


def test_without_any_kernel_there_is_one_warning(caplog):
    nothing = partial(varlen_attention, GradientsOfNothing())
    assert choose_kernel(HEADS, {"one": lambda heads: fails, "two": lambda heads: nothing}) is None
    assert "two: it was off by nan" in caplog.text
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "a part at a time" in caplog.text


def test_torch_s_kernel_takes_what_it_is_handed():
    """By its shapes alone: an argument that another torch renames is seen without a GPU."""
    q, k, v = (torch.empty(TRIAL.tokens, n, 64, device="meta", dtype=torch.bfloat16) for n in (8, 2, 2))
    own = plan_calls(TRIAL, CPU).own
    output, lse = TorchKernel().forward(q, k, v, own, AttentionSpec(0.1))
    assert (output.shape, lse.shape, lse.dtype) == (q.shape, (8, TRIAL.tokens), torch.float32)
    found = TorchKernel().backward(output, Attended(q, k, v, output, lse), own, AttentionSpec(0.1))
    assert [part.shape for part in found] == [q.shape, k.shape, v.shape]


def test_the_window_of_torch_s_kernel_is_that_of_flash_attention(monkeypatch):
    """Its queries see `window_size_left` keys before their own and none after it, counted from the last key."""
    q, k, v = (torch.randn(TRIAL.tokens, n, 16) for n in (4, 2, 2))
    calls, spec = plan_calls(TRIAL, CPU, False, 40), AttentionSpec(0.1, 40)
    k, v = (torch.cat([states[part.start : part.stop] for part in calls.keys]) for states in (k, v))
    truth = WrittenOut().forward(q, k, v, calls.own, spec)
    given = []

    def forward(query, key, value, begins, key_begins, *_, scale, window_size_left, window_size_right):
        given.append(("forward", window_size_left, window_size_right))
        output = torch.empty_like(query)
        for (first, last), (begin, end) in zip(
            pairwise(begins.tolist()), pairwise(key_begins.tolist()), strict=True
        ):
            rows, seen = torch.arange(first, last)[:, None], torch.arange(begin, end)
            diagonal = rows - last + end  # flash-attn: seqlen_k - seqlen_q is added to the query's index
            sees = (seen >= diagonal - window_size_left) & (seen <= diagonal + window_size_right)
            own = [states[begin:end].repeat_interleave(2, 1).transpose(0, 1) for states in (key, value)]
            attended = scaled_dot_product_attention(
                query[first:last].transpose(0, 1), *own, attn_mask=sees, scale=scale
            )
            output[first:last] = attended.transpose(0, 1)
        return output, None

    def backward(*_, window_size_left, window_size_right, **__):
        given.append(("backward", window_size_left, window_size_right))
        return q, k, v

    monkeypatch.setattr(
        attention_cuda.torch.ops,
        "aten",
        SimpleNamespace(_flash_attention_forward=forward, _flash_attention_backward=backward),
    )
    output, _ = TorchKernel().forward(q, k, v, calls.own, spec)
    torch.testing.assert_close(output, truth[0], rtol=1e-5, atol=1e-5)
    TorchKernel().backward(q, Attended(q, k, v, q, q), calls.own, spec)
    assert given == [("forward", 39, 0), ("backward", 39, 0)]


def test_a_soft_cap_has_no_flash_kernel_of_torch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    half = replace(HEADS, dtype=torch.bfloat16)
    flash = CANDIDATES["the varlen kernel of torch"]
    assert not isinstance(flash(replace(half, window=True, sinks=True)), str)
    assert "soft cap" in flash(replace(half, softcap=True))


@pytest.fixture
def flash_of_torch(monkeypatch):
    """Simulates a GPU with torch's flash kernel; returns a function that installs a replacement of it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(attention_cuda, "find_spec", lambda name: name == "flash_attn_interface" or None)

    def install(kernel):
        library = torch.library.Library("aten", "IMPL", "CPU")

        def bounds(begins, key_begins, longest, longest_keys, dropout, causal, left=None):
            window = None if left in (None, -1) else left + 1
            return SequenceBounds(begins, key_begins, longest, longest_keys, causal, window)

        def forward(q, k, v, *rest, scale=None, window_size_left=None, **_):
            output, lse = kernel.forward(
                q.float(), k.float(), v.float(), bounds(*rest[:6], window_size_left), AttentionSpec(scale)
            )
            nothing = q.new_empty(0)
            return output.to(q.dtype), lse, nothing, nothing, nothing

        def backward(grad, q, k, v, output, lse, *rest, scale=None, window_size_left=None, **_):
            known = Attended(*(part.float() for part in (q, k, v, output, lse)))
            of_call = bounds(*rest[:6], window_size_left)
            return tuple(
                part.to(q.dtype)
                for part in kernel.backward(grad.float(), known, of_call, AttentionSpec(scale))
            )

        library.impl("_flash_attention_forward", forward, "CPU")
        library.impl("_flash_attention_backward", backward, "CPU")
        return SimpleNamespace(remove=library._destroy)

    own, registered = install(WrittenOut()), dict(_registry._FLASH_ATTENTION_IMPLS)
    yield lambda kernel: _registry._FLASH_ATTENTION_IMPLS.update(FA3=lambda: install(kernel))
    attention_cuda.restore_flash_attention_impl(_raise_warn=False)
    own.remove()
    _registry._FLASH_ATTENTION_IMPLS.update(registered)


HALF = AttentionHeads(CPU, torch.bfloat16, 4, 2, 16)


def test_a_newer_flash_kernel_is_preferred(flash_of_torch, caplog):
    flash_of_torch(WrittenOut())
    with caplog.at_level(logging.INFO):
        attend = choose_kernel(HALF, CANDIDATES)
    assert caplog.messages == ["attention over a shared prefix: FlashAttention-3"]
    assert attention_cuda.current_flash_attention_impl() == "FA3"
    older = CANDIDATES["the varlen kernel of torch"](HALF)
    assert deviation(older, HALF, TRIAL) < attention_cuda.TOLERANCE[HALF.dtype]
    assert attention_cuda.current_flash_attention_impl() is None
    assert deviation(attend, HALF, TRIAL) < attention_cuda.TOLERANCE[HALF.dtype]
    assert attention_cuda.current_flash_attention_impl() == "FA3"  # each uses what was tried


@pytest.mark.parametrize("wrong", [OwnGradientsOnly, SeesAll])
def test_a_newer_flash_kernel_that_is_wrong_is_replaced_by_torch_s(wrong, flash_of_torch, caplog):
    flash_of_torch(wrong())
    with caplog.at_level(logging.INFO):
        attend = choose_kernel(HALF, CANDIDATES)
    (line,) = caplog.messages
    assert line.startswith(
        "attention over a shared prefix: the varlen kernel of torch (not FlashAttention-3: it was off"
    )
    assert "flash_attn.cute is not installed" in line
    assert deviation(attend, HALF, TRIAL) < attention_cuda.TOLERANCE[HALF.dtype]


class LongOnly(WrittenOut):
    """Computes nothing for keys beyond the 4,096th of a sequence."""

    def _parts(self, query, key, value, bounds):
        for (q, rows), (k, own), (v, _) in super()._parts(query, key, value, bounds):
            k = torch.cat([k[:4096], torch.zeros_like(k[4096:])])
            yield (q, rows), (k, own), (v, own)


def test_a_kernel_that_fails_on_long_sequences_only_is_rejected(monkeypatch):
    monkeypatch.setattr(attention_cuda, "LONG", FOUR_THOUSAND)
    wrong = partial(varlen_attention, LongOnly())
    assert choose_kernel(HEADS, {"one": lambda heads: wrong}) is None
    monkeypatch.setattr(attention_cuda, "LONG", ONE_TOKEN)
    assert choose_kernel(HEADS, {"one": lambda heads: wrong}) is wrong


@pytest.mark.gpu
@pytest.mark.parametrize("candidate", CANDIDATES.values(), ids=CANDIDATES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("size", [64, 128])
def test_every_kernel_of_a_gpu_is_path_a(candidate, layout, size):
    heads = AttentionHeads(torch.device("cuda", 0), torch.bfloat16, 8, 2, size)
    attend = candidate(heads)
    if isinstance(attend, str):
        pytest.skip(attend)
    tolerance = attention_cuda.TOLERANCE[torch.bfloat16]
    assert deviation(path_a, heads, layout) < tolerance
    assert deviation(attend, heads, layout) < tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("queries", "keys", "size"),
    [(8, 2, 64), (8, 1, 64), (4, 4, 64), (8, 2, 80), (8, 2, 96), (8, 2, 256), (8, 2, 36)],
    ids=str,
)
def test_heads_of_every_kind_have_a_kernel_of_a_gpu(dtype, queries, keys, size):
    heads = AttentionHeads(torch.device("cuda", 0), dtype, queries, keys, size)
    attend = choose_kernel(heads, CANDIDATES)
    if attend is None and (dtype == torch.float32 or size % 8):
        pytest.skip("no flash kernel takes these heads, and FlexAttention does not have to")
    assert attend is not None
    for layout in LAYOUTS.values():
        assert deviation(attend, heads, layout) < attention_cuda.TOLERANCE[dtype]
