"""Memory and traffic of several devices, compared with the memory of one."""

from dataclasses import replace

import pytest

from longrm.errors import ConfigError
from longrm.modeling.shapes import PackedLayout, TreeShape
from longrm.training.plan import Device
from longrm.training.plan.memory import Sharding, moments_of, peak_memory
from longrm.training.plan.plan import plan_training, suggest
from longrm.training.plan.workload import Workload, sizes_of
from longrm.training.settings import ParallelSettings

SHAPE = TreeShape(600, (20, 20, 20))
READING = Workload(1, 1, {SHAPE: 1}, PackedLayout((SHAPE,)), False, "")
HALF = TreeShape(300, (10, 10, 10))
HALF_READING = Workload(1, 1, {HALF: 1}, PackedLayout((HALF,)), False, "")
T = 10**10  # trained weights, beyond every bucket


@pytest.mark.parametrize("objective", ["bradley_terry", "sft"])
def test_two_devices_that_share_a_sequence_keep_what_one_keeps_of_half_of_it(bases, recipe, objective):
    alone = recipe(objective, model__path=str(bases["llama"]))
    shared = recipe(objective, model__path=str(bases["llama"]), parallel__sequence=2)
    sizes = sizes_of(alone, "scorer" if objective == "bradley_terry" else "language_model")
    half = moments_of(alone, sizes, HALF_READING, "cuda")
    whole = moments_of(alone, sizes, READING, "cuda")
    for one, other, twice in zip(moments_of(shared, sizes, READING, "cuda", 2), half, whole, strict=True):
        assert one == other
        assert one.total < twice.total or one.activations == 0


def test_key_heads_that_several_devices_need_are_kept_by_each(bases, recipe):
    settings = recipe(model__path=str(bases["llama"]))  # six heads, two key heads
    sizes = sizes_of(settings, "scorer")
    grid = Sharding(6, ParallelSettings(sequence=6))
    assert [Sharding(n, ParallelSettings(sequence=n)).key_copies(2) for n in (1, 2, 3, 6)] == [1, 1, 3, 3]
    kept = moments_of(
        recipe(model__path=str(bases["llama"]), parallel__sequence=6), sizes, READING, "cuda", 6
    )[0]
    fewer = replace(sizes, kv_heads=6, head_dim=16)
    same = moments_of(
        recipe(model__path=str(bases["llama"]), parallel__sequence=6), fewer, READING, "cuda", 6
    )[0]
    assert kept.activations == same.activations
    assert grid.share(660) == 110


@pytest.mark.parametrize(
    ("parallel", "weights", "gradients", "optimizer", "cpu"),
    [
        # Fp32 throughout; 1/8 of what is cut. ZeRO also keeps two buckets of gradients, and 1e9 gathered weights.
        ({}, 4 * T, 4 * T, 8 * T, 0),
        ({"zero": 1}, 4 * T, 4 * T, 12 * T / 8, 0),
        ({"zero": 2}, 4 * T, 4 * T / 8 + 4e9, 12 * T / 8, 0),
        ({"zero": 3}, 4 * T / 8 + 4e9, 4 * T / 8 + 4e9, 12 * T / 8, 0),
        ({"zero": 2, "offload": "optimizer"}, 4 * T, 4e9, 0, 20 * T / 8),
        ({"zero": 3, "offload": "parameters"}, 4e9, 4e9, 0, 24 * T / 8),
    ],
)
def test_what_is_cut_over_eight_devices(parallel, weights, gradients, optimizer, cpu):
    grid = Sharding(8, ParallelSettings(**parallel))
    held = [grid.weights(T, 4.0 * T), grid.gradients(T, T), grid.optimizer(T)]
    assert [device for device, _ in held] == [weights, gradients, optimizer]
    assert sum(on_cpu for _, on_cpu in held) == cpu


def test_every_device_loads_the_model_whole_before_stage_3_cuts_it(bases, recipe):
    settings = recipe(model__path=str(bases["llama"]), parallel={"zero": 3, "offload": "parameters"})
    sizes = sizes_of(settings, "scorer")
    before = moments_of(settings, sizes, READING, "cuda", 6)[-1]
    assert (before.when, before.total) == ("loading the weights", 4 * sizes.parameters)
    # So large that stage 3 keeps a part of it at a time.
    large = replace(sizes, hidden=8192, intermediate=32768, layers=40)
    peak = peak_memory(settings, large, READING, "cuda", 6)
    assert (peak.when, peak.total) == (before.when, 4 * large.parameters)
    assert peak.offloaded == pytest.approx(6 * 4 * large.parameters / 6)
    two = recipe(model__path=str(bases["llama"]), parallel={"zero": 2, "offload": "optimizer"})
    assert before.when not in {moment.when for moment in moments_of(two, sizes, READING, "cuda", 6)}
    adapted = recipe(
        model={"path": str(bases["llama"]), "precision": "bfloat16", "lora": {}}, parallel__zero=3
    )
    # Frozen weights in bf16, and adapters of under a hundredth of them.
    assert moments_of(adapted, large, READING, "cuda", 6)[-1].total == pytest.approx(
        2 * large.parameters, rel=0.02
    )


def test_tiles_that_would_part_ways_are_refused_and_not_advised(bases, recipe):
    path = str(bases["llama"])
    settings = recipe(model__path=path, memory__tiled_mlp=True, parallel={"zero": 3, "sequence": 2})
    with pytest.raises(ConfigError, match=r"memory\.tiled_mlp"):
        plan_training(settings, "h100-80gb", devices=4)
    assert plan_training(settings, "h100-80gb", devices=2).devices == 2
    cut = recipe(model__path=path, parallel={"zero": 3, "sequence": 2}, memory__gradient_checkpointing=True)
    sizes = replace(sizes_of(cut, "scorer"), hidden=1024, intermediate=65536, layers=2)
    small, long = (
        Device(1, None, None),
        replace(READING, largest=PackedLayout((TreeShape(60_000, (500, 500)),))),
    )
    found = {
        devices: [switch.setting for switch in suggest(cut, sizes, long, small, devices)]
        for devices in (2, 4)
    }
    assert ["memory.tiled_mlp=true" in names for names in found.values()] == [True, False]


def test_advice_for_several_devices_fits(bases, recipe):
    settings = recipe(model__path=str(bases["llama"]), memory__gradient_checkpointing=True)
    sizes = replace(sizes_of(settings, "scorer"), hidden=8192, intermediate=32768, layers=40)
    peaks = [peak_memory(settings, sizes, READING, "cuda", 6).total]
    small = Device(int(peaks[0] / 3), None, None)
    found = suggest(settings, sizes, READING, small, 6)
    names = [switch.setting for switch in found]
    assert names[0] == "parallel.zero=2"
    assert found[-1].total <= small.memory
    group = {
        key.split(".")[1]: value for key, value in (name.split("=") for name in names if "parallel" in name)
    }
    changed = recipe(
        model__path=str(bases["llama"]),
        memory__gradient_checkpointing=True,
        model__precision="bfloat16" if "model.precision=bfloat16" in names else "float32",
        parallel={key: value if key == "offload" else int(value) for key, value in group.items()},
    )
    assert peak_memory(changed, sizes, READING, "cuda", 6).total <= small.memory
