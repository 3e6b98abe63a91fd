"""Hours by kernel, waiting and traffic, against closed forms."""

from dataclasses import replace

import pytest

from longrm.modeling.shapes import PackedLayout, TreeShape
from longrm.training.plan import DEVICES
from longrm.training.plan.plan import plan_training
from longrm.training.plan.traffic import busy_share, traffic_seconds
from longrm.training.plan.workload import Workload, sizes_of, trained_part

SHAPE = TreeShape(600, (20, 20))
READING = Workload(10, 40, {SHAPE: 40}, PackedLayout((SHAPE,)), False, "")
H100 = DEVICES["h100-80gb"]


@pytest.fixture
def planned(bases, recipe):
    def plan(device="h100-80gb", devices=1, rows=(SHAPE,), **changes):
        stated = [
            {"rows": 320, "prompt": row.prefix, "responses": 2, "response": row.branches[0]} for row in rows
        ]
        settings = recipe(
            model={"path": str(bases["llama"]), "bf16": True},
            data={"path": "nowhere.jsonl", "per_step": 8, **changes.pop("data", {})},
            optimizer={"num_train_epochs": 1},
            plan={"rows": stated},
            **changes,
        )
        return plan_training(settings, device, devices=devices)

    return plan


def test_hours_are_those_of_the_kernels_share_of_the_peak(planned):
    hopper, ampere, other = (planned(device) for device in ("h100-80gb", "a100-80gb", "l40s"))
    assert list(hopper.utilization) == ["FA2", "FA3"]
    for plan in (hopper, ampere, other):
        for kernel, share in plan.utilization.items():
            assert plan.seconds_with[kernel] == pytest.approx(
                plan.flops.total / (share * plan.offers.bfloat16)
            )
    assert hopper.seconds_with["FA2"] / hopper.seconds_with["FA3"] == pytest.approx(0.47 / 0.31)
    assert (ampere.utilization, other.utilization) == ({"FA2": 0.5}, {"any kernel": 0.4})


def test_groups_that_wait_take_longer(planned):
    rows = [TreeShape(tokens, (20, 20)) for tokens in (100, 200, 3000)]
    memory = {"memory__max_tokens_per_microbatch": 3100}
    apart, alike = (
        planned(devices=4, rows=rows, data={"group_by_length": group}, **memory) for group in (1, 4)
    )
    assert apart.busy < 0.8 < 0.95 < alike.busy
    computing = apart.flops.total / (0.31 * H100.bfloat16) / 4
    assert apart.seconds == pytest.approx(computing / apart.busy + apart.traffic)
    assert planned(rows=rows, **memory).busy == 1.0


def test_copies_and_exchanges_are_counted(bases, recipe):
    model = {"path": str(bases["llama"]), "bf16": True, "lora": {"r": 2}}

    def seconds(devices=1, **changes):
        settings = recipe(model=model, **changes)
        trained = trained_part(settings.model, sizes_of(settings, "scorer"))
        return traffic_seconds(settings, trained, READING, H100, devices), trained

    assert seconds()[0] == (0.0, 0.0)
    memory = {"memory__gradient_checkpointing": True, "memory__activation_offloading": True}
    (added, during), trained = seconds(**memory)
    # The bf16 inputs of all layers, to the CPU and back.
    sizes = trained.sizes
    assert added == pytest.approx(2 * sizes.layers * 2 * sizes.hidden * READING.tokens / 50e9)
    assert during == 0.0
    (added, _), _ = seconds(2, parallel__sequence_parallel_size=2)
    width = 2 * sizes.queries + 2 * sizes.keys
    exchanged = 2 * sizes.layers * 2 * width * READING.tokens / 2 / 2 / 450e9
    reduced = READING.steps * 2 * 4 * trained.parameters / 2 / 450e9
    assert added == pytest.approx(exchanged + reduced)


def test_slow_links_between_machines_are_not_hidden(bases, recipe):
    settings = recipe(model__path=str(bases["llama"]), parallel__shard=True)
    trained = trained_part(settings.model, sizes_of(settings, "scorer"))
    within, between = (traffic_seconds(settings, trained, READING, H100, devices)[1] for devices in (8, 16))
    slow = replace(H100, to_machines=1e9)
    assert 0 < within < between
    assert traffic_seconds(settings, trained, READING, slow, 16)[1] == pytest.approx(50 * between)
    assert busy_share(settings, trained, READING, 1) == 1.0


def test_more_lengths_than_simulated_rows(bases, recipe):
    settings = recipe(model__path=str(bases["llama"]), parallel__shard=True)
    trained = trained_part(settings.model, sizes_of(settings, "scorer"))
    trees = {TreeShape(tokens, (5, 5)): 1 for tokens in range(100, 10_100)}
    many = Workload(1000, len(trees), trees, PackedLayout((TreeShape(10_099, (5, 5)),)), False, "")
    assert 0 < busy_share(settings, trained, many, 2) < 1
