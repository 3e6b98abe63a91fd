"""The counts against what autograd saves, tensor by tensor."""

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch

from longrm.modeling import shapes
from longrm.modeling.shapes import PackedLayout, TokenTree, TreeShape
from longrm.modeling.shared_prefix import pack, response_logprobs, scores
from longrm.training.initial_model import initial_model
from longrm.training.plan.memory import moments_of, peak_memory
from longrm.training.plan.workload import Workload, sizes_of

SHAPE = TreeShape(601, (17, 19, 30))
READING = Workload(1, 1, {SHAPE: 1}, PackedLayout((SHAPE,)), False, "")


def saved_bytes(settings, kind):
    """Bytes of all storages that autograd keeps of one forward, weights aside."""
    model = initial_model(settings, kind).model.train()
    branches = [[5 + index % 11 for index in range(length)] for length in SHAPE.branches]
    packed = pack([TokenTree([5 + index % 7 for index in range(SHAPE.prefix)], branches)])
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        # The tensor is kept, so that its address is not used again.
        kept.setdefault(storage.data_ptr(), (storage.nbytes(), tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = scores(model, packed) if kind == "scorer" else torch.cat(response_logprobs(model, packed))
        assert result.requires_grad
    return sum(size for place, (size, _) in kept.items() if place not in weights)


@pytest.mark.parametrize("lora", [None, {"rank": 8}])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_what_autograd_keeps(bases, recipe, monkeypatch, architecture, precision, lora):
    settings = recipe(model__path=str(bases[architecture]), model__precision=precision)
    if lora:
        settings = recipe(model__path=str(bases[architecture]), model__precision=precision, model__lora=lora)
    head = moments_of(settings, sizes_of(settings, "scorer"), READING, "cpu")[0]
    assert head.activations == pytest.approx(saved_bytes(settings, "scorer"), rel=0.02)


def test_what_autograd_keeps_of_log_probabilities(bases, recipe, monkeypatch):
    settings = recipe("sft", model__path=str(bases["llama"]))
    sizes = sizes_of(settings, "language_model")
    head = moments_of(settings, sizes, READING, "cpu")[0]
    logits = 4 * SHAPE.branch_tokens * sizes.vocabulary
    kept = saved_bytes(settings, "language_model")
    assert head.activations + logits == pytest.approx(kept, rel=0.01)
    assert head.logits >= 3 * logits


@pytest.mark.parametrize("lora", [None, {"rank": 8}])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_autograd_keeps_of_tiles(bases, recipe, monkeypatch, precision, lora):
    model = {"path": str(bases["qwen3"]), "precision": precision} | ({"lora": lora} if lora else {})
    heads = []
    for tiled in (False, True):
        settings = recipe(model=model, memory__tiled_mlp=tiled)
        heads.append(moments_of(settings, sizes_of(settings, "scorer"), READING, "cpu")[0].activations)
        assert heads[-1] == pytest.approx(saved_bytes(settings, "scorer"), rel=0.02)
    assert heads[1] < 0.9 * heads[0]


def allocated_at_most(settings):
    """Bytes that a forward and a backward hold at their peak, gradients of weights among them."""
    model = initial_model(settings, "scorer").model.train()
    packed = pack([TokenTree([5 + index % 7 for index in range(1500)], [[5] * 40, [6] * 40])])

    def step():
        (scores(model, packed) * torch.tensor([1.0, -2.0])).sum().backward()
        model.zero_grad(set_to_none=True)

    step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        step()
    sizes = [event.nbytes() for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(sizes))


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize(("precision", "lora"), [("float32", None), ("bfloat16", {"rank": 8})])
def test_the_peak_is_what_torch_allocates(bases, recipe, monkeypatch, precision, lora, tiled):
    monkeypatch.setattr(shapes, "SHORTEST", 96)
    model = {"path": str(bases["llama"]), "precision": precision} | ({"lora": lora} if lora else {})
    settings = recipe(model=model, memory={"gradient_checkpointing": True, "tiled_mlp": tiled})
    shape = TreeShape(1500, (40, 40))
    long = Workload(1, 1, {shape: 1}, PackedLayout((shape,)), False, "")
    moments = moments_of(settings, sizes_of(settings, "scorer"), long, "cpu")
    predicted = max(moment.total - moment.weights - moment.optimizer for moment in moments)
    assert predicted == pytest.approx(allocated_at_most(settings), rel=0.15)


def test_a_wrong_count_would_be_seen(bases, recipe, monkeypatch):
    settings = recipe(model__path=str(bases["llama"]))
    without = replace(sizes_of(settings, "scorer"), intermediate=0)
    wrong = moments_of(settings, without, READING, "cpu")[0].activations
    assert abs(wrong / saved_bytes(settings, "scorer") - 1) > 0.3


def test_every_switch_takes_less(bases, recipe):
    long = replace(READING, largest=PackedLayout((TreeShape(40_000, (100, 100)),)))
    totals = []
    for more in (
        {},
        {"memory__gradient_checkpointing": True},
        {"memory__tiled_mlp": True},
        {"model__precision": "bfloat16"},
        {"memory__activation_offloading": True},
        {"model__lora": {"rank": 4}},
    ):
        totals.append(
            {**(totals[-1] if totals else {}), **more},
        )
    peaks = [
        peak_memory(
            recipe(model__path=str(bases["llama"]), **settings),
            sizes_of(recipe(model__path=str(bases["llama"])), "scorer"),
            long,
            "cuda",
        ).total
        for settings in totals
    ]
    assert all(less < more for more, less in pairwise(peaks))


def test_parts_are_the_sum_and_offloaded_bytes_are_elsewhere(bases, recipe):
    kept = recipe(model__path=str(bases["llama"]), memory__gradient_checkpointing=True)
    moved = recipe(
        model__path=str(bases["llama"]),
        memory__gradient_checkpointing=True,
        memory__activation_offloading=True,
    )
    sizes = sizes_of(kept, "scorer")
    inputs = 4 * 96 * SHAPE.tokens
    for before, after in zip(
        moments_of(kept, sizes, READING, "cuda"), moments_of(moved, sizes, READING, "cuda"), strict=True
    ):
        assert (before.offloaded, after.offloaded) == (0, 3 * inputs)
        parts = (
            after.weights,
            after.gradients,
            after.optimizer,
            after.activations,
            after.logits,
            after.working,
        )
        assert after.total == sum(parts)
        # Of three inputs two are on the device at once: the one in use and the one on its way.
        held = 3 if before.when in ("the head's backward", "the last layer's backward") else 0
        assert before.total - after.total == inputs * max(0, held - 2)
    assert peak_memory(moved, sizes, READING, "cpu") == peak_memory(kept, sizes, READING, "cpu")
