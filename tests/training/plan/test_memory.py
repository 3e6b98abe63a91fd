"""Memory and traffic of several devices, compared with the memory of one."""

from dataclasses import replace

import pytest
import torch

from longrm.config import parse_assignments
from longrm.modeling.shapes import PackedLayout, TreeShape
from longrm.training.plan import Device
from longrm.training.plan.memory import _NF4, moments_of, peak_memory
from longrm.training.plan.plan import Setup, suggest
from longrm.training.plan.workload import Workload, sizes_of

SHAPE = TreeShape(600, (20, 20, 20))
READING = Workload(1, 1, {SHAPE: 1}, PackedLayout((SHAPE,)), False, "")
HALF = TreeShape(300, (10, 10, 10))
HALF_READING = Workload(1, 1, {HALF: 1}, PackedLayout((HALF,)), False, "")


@pytest.mark.parametrize("objective", ["bradley_terry", "sft"])
def test_two_devices_that_share_a_sequence_keep_what_one_keeps_of_half_of_it(bases, recipe, objective):
    alone = recipe(objective, model__path=str(bases["llama"]))
    shared = recipe(objective, model__path=str(bases["llama"]), parallel__sequence_parallel_size=2)
    sizes = sizes_of(alone, "scorer" if objective == "bradley_terry" else "language_model")
    half = moments_of(alone, sizes, HALF_READING, "cuda")
    whole = moments_of(alone, sizes, READING, "cuda")
    for one, other, twice in zip(moments_of(shared, sizes, READING, "cuda", 2), half, whole, strict=True):
        assert one == other
        assert one.total < twice.total or one.activations == 0


def test_key_heads_that_several_devices_need_are_kept_by_each(bases, recipe):
    settings = recipe(
        model__path=str(bases["llama"]), parallel__sequence_parallel_size=6
    )  # six heads, two key heads
    sizes = sizes_of(settings, "scorer")
    kept = moments_of(settings, sizes, READING, "cuda", 6)[0]
    same = moments_of(settings, replace(sizes, kv_heads=6, head_dim=16), READING, "cuda", 6)[0]
    assert kept.activations == same.activations


@pytest.mark.parametrize(
    ("parallel", "share", "layers", "on_cpu", "checkpoint"),
    [
        ({}, 1, 0, 0, 1),
        ({"shard": True}, 1 / 16, 3, 0, 0.5),
        ({"shard": True, "reshard_after_forward": False}, 1 / 16, 4, 0, 0.5),
        ({"shard": True, "offload": True}, 0, 3, 16, 0),
    ],
)
def test_what_is_sharded_over_two_machines_of_eight(
    bases, recipe, parallel, share, layers, on_cpu, checkpoint
):
    model = {"path": str(bases["llama"]), "bf16": True}
    settings = recipe(model=model, parallel=parallel)
    sizes = sizes_of(settings, "scorer")
    planned = peak_memory(settings, sizes, READING, "cuda", 16)
    rest = sizes.parameters - sizes.layers * sizes.layer_parameters
    # Layers are gathered in bf16; embeddings, the last norm and the head stay fp32.
    gathered = 2 * layers * sizes.layer_parameters + 4 * rest * bool(parallel)
    assert planned.weights == pytest.approx(4 * share * sizes.parameters + gathered)
    assert planned.optimizer == pytest.approx(8 * share * sizes.parameters)
    # Weights, gradients and two moments; torch rounds pinned memory up to powers of two.
    own = on_cpu * sizes.parameters / 16
    assert own <= planned.offloaded <= 1.6 * own
    assert planned.checkpoint == 12 * sizes.parameters * checkpoint
    assert peak_memory(settings, sizes, READING, "cpu", 16).checkpoint == 0


def test_pinned_weights_and_gradients_are_rounded_up(bases, recipe):
    settings = recipe(model__path=str(bases["llama"]), parallel={"shard": True, "offload": True})
    sizes = sizes_of(settings, "scorer")
    even = replace(
        sizes, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=2**14, vocabulary=2**17
    )
    odd = replace(even, intermediate=14336)  # of Llama 8B, 7/8 of a power of two
    found = [peak_memory(settings, one, READING, "cuda", 16).offloaded for one in (even, odd)]
    of_elements = 16 / 16  # weights, gradients and two moments in fp32, on 16 devices
    assert found[0] == pytest.approx(of_elements * even.parameters, rel=1e-3)
    moments = 8 * (even.parameters - odd.parameters) / 16
    assert found[0] - found[1] == pytest.approx(moments, rel=0.02)


def test_a_base_in_four_bits_is_planned(bases, recipe):
    adapted = {"path": str(bases["llama"]), "bf16": True}
    plain, quantized = (
        recipe(model=adapted | {"lora": {"load_in_4bit": quantize}}) for quantize in (False, True)
    )
    sizes = sizes_of(plain, "scorer")
    matrices = sum(width * output for width, output in sizes.matrices.values())
    before, after = (peak_memory(settings, sizes, READING, "cuda") for settings in (plain, quantized))
    assert before.weights - after.weights == pytest.approx((2 - 0.516) * sizes.layers * matrices, rel=1e-3)
    # 70 billion weights on one device.
    llama = replace(
        sizes,
        layers=80,
        hidden=8192,
        heads=64,
        kv_heads=8,
        head_dim=128,
        intermediate=28672,
        vocabulary=128_256,
        kind="language_model",
    )
    assert peak_memory(quantized, llama, READING, "cuda").weights == pytest.approx(40e9, rel=0.05)
    # Every device quantizes all of it before it is sharded.
    sharded = recipe(model=adapted | {"lora": {"load_in_4bit": True}}, parallel={"shard": True})
    peak = peak_memory(sharded, llama, READING, "cuda", 8)
    assert (peak.when, peak.total) == ("loading the weights", pytest.approx(40e9, rel=0.05))


def test_four_bits_are_what_bitsandbytes_takes():
    functional = pytest.importorskip("bitsandbytes").functional
    weight = torch.randn(1024, 2048)
    packed, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    scales = state.absmax.nbytes + state.state2.absmax.nbytes
    assert (packed.nbytes + scales) / weight.numel() == pytest.approx(_NF4, rel=1e-3)


def test_advice_for_several_devices_fits(bases, recipe):
    settings = recipe(model__path=str(bases["llama"]), memory__gradient_checkpointing=True)
    sizes = replace(sizes_of(settings, "scorer"), hidden=8192, intermediate=32768, layers=40)
    peaks = [peak_memory(settings, sizes, READING, "cuda", 6).total]
    small = Device(int(peaks[0] / 3), None, None)
    found = suggest(Setup(settings, sizes, READING, small, 6))
    names = [switch.setting for switch in found]
    assert names[0] == "parallel.shard=true"
    assert found[-1].total <= small.memory
    group = {
        key.split(".")[1]: value for key, value in (name.split("=") for name in names if "parallel" in name)
    }
    changed = recipe(
        model__path=str(bases["llama"]),
        memory__gradient_checkpointing=True,
        model__bf16="model.bf16=true" in names,
        parallel=parse_assignments(f"{key}={value}" for key, value in group.items()),
    )
    assert peak_memory(changed, sizes, READING, "cuda", 6).total <= small.memory
