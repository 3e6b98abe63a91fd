"""perf/gpu on a CPU with a tiny model, so that no GPU time is lost to a typo."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from longrm.modeling.shapes import PINNED_PIECE
from longrm.modeling.shared_prefix import scores
from longrm.training.plan import ModelSizes
from longrm.training.plan.plan import forward_flops, training_flops
from longrm.training.plan.workload import TrainedPart, Workload

pytestmark = pytest.mark.full

TINY = ["--model", "tiny", "--device", "cpu"]


@pytest.fixture(scope="module")
def perf():
    """The modules of the script, which imports them from its own folder."""
    names = ("step", "arms", "models", "fake")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "perf" / "gpu")
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        del sys.modules[name]


@pytest.fixture
def measured(perf, tmp_path, capsys, monkeypatch):
    """Runs the script; its lines by part, and what it prints."""
    monkeypatch.setattr(perf.step, "LENGTHS", ((16, 4), (32, 4), (48, 4), (64, 4)))
    monkeypatch.setattr(perf.step, "_WARM", perf.arms.Work("", 8, 4, 4))

    def run(*arguments, code=0):
        out = tmp_path / "lines.jsonl"
        assert perf.step.main([*TINY, "--layers", "1", "--json", str(out), *arguments]) == code
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        parts = ("ratio", "whole", "end")
        assert lines[0]["part"] == "circumstances"
        return lines[0], *[[one for one in lines if one["part"] == p] for p in parts], capsys.readouterr().out

    return run


def test_every_kind_of_cell_is_measured(measured, perf, tmp_path):
    around, ratios, wholes, (end,), text = measured()
    assert len(ratios) == 2 * 2 * 4 + 1
    assert len({(row["mode"], row["prompt"], row["responses"]) for row in ratios}) == len(ratios)
    assert all(
        row["speedup"] > 0 and row["ideal"] > 1 and row["baseline"] in perf.arms.SEPARATE for row in ratios
    )
    assert [(row["mode"], row["responses"]) for row in wholes] == [
        ("lora", 4),
        ("scoring", 4),
        ("lora", 4),
        ("full", 2),
    ]
    assert all(row["tokens_per_second"] > 0 for row in wholes)
    assert end["not_measured"] == []
    assert around["versions"]["torch"] == torch.__version__
    assert {"peft", "triton", "flash-attn", "cuda", "driver"} <= around["versions"].keys()
    assert text.count("| tiny |") == len(ratios) + len(wholes)
    lines = (tmp_path / "lines.jsonl").read_text()
    assert "null" not in lines
    assert json.loads(lines.splitlines()[-2])["failed"] == "the memory of this device is not known"
    assert "not run: unknown: the memory of this device is not known." in text
    assert "None" not in text


def test_one_long_step(measured):
    _, _, (only,), _, text = measured("--longest", "900", "--shrink", "16", "--tiled")
    assert (only["prompt"], only["responses"], only["tokens"]) == (900 - 4 * 32, 4, 900)
    assert "| lora, tiles |" in text


def test_memory_is_compared_with_the_separate_arm_that_needs_least(perf, monkeypatch):
    found = {
        "shared": perf.arms.Measured([1.0], 0, 50),
        "packed": perf.arms.Measured([2.0], 0, 200),
        "one by one": perf.arms.Measured([4.0], 0, 40),
        "one causal call": perf.arms.Measured([3.0], 0, 60),
    }
    each = iter(found.values())
    monkeypatch.setattr(perf.step, "measure", lambda *arguments: next(each))
    options = perf.step.options_of(TINY)
    row = perf.step.ratio_of(perf.arms.Work("lora", 16, 4, 2), options)
    assert (row["baseline"], row["speedup"]) == ("packed", 2.0)
    assert (row["memory_baseline"], row["memory"]) == ("one by one", 1.25)


def test_separate_sequences_compute_the_same_scores(perf):
    model = perf.models.build("tiny", "scoring", "cpu", layers=None).float()
    perf.models.set_precision(model, "float32")
    found = {}
    with torch.inference_mode():
        for name, arm in perf.arms.arms_of(perf.arms.Work("scoring", 40, 7, 3), 512, "cpu").items():
            model.set_attn_implementation(arm.attention)
            found[name] = torch.cat([scores(model, part) for part in arm.parts])
    assert found["shared"].std() > 1e-3
    for name in perf.arms.SEPARATE:
        torch.testing.assert_close(found[name], found["shared"], rtol=1e-4, atol=1e-6)


def test_one_causal_call_is_one_call_without_a_mask(perf, monkeypatch):
    right, calls = functional.scaled_dot_product_attention, []

    def attend(*arguments, **keywords):
        calls.append(keywords)
        return right(*arguments, **keywords)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    model = perf.models.build("tiny", "lora", "cpu", layers=None)
    arm = perf.arms.arms_of(perf.arms.Work("lora", 40, 7, 2), 512, "cpu")["one causal call"]
    model.set_attn_implementation(arm.attention)
    perf.arms.step(model, arm.parts, "lora")
    assert len(calls) == 2 * 2 * 3  # sequences, forward and again on the way back, layers
    assert all(one["attn_mask"] is None and one["is_causal"] and one["enable_gqa"] for one in calls)


@pytest.mark.parametrize(("name", "parameters"), [("llama-3.1-8b", 8.03e9), ("qwen3-8b", 8.19e9)])
def test_the_shapes_are_the_real_ones(perf, name, parameters):
    model = perf.models.build(name, "scoring", "meta", layers=None)
    head = model.config.vocab_size * 4096  # the language model's, which a scorer has not
    assert sum(p.numel() for p in model.parameters()) + head == pytest.approx(parameters, rel=0.002)


@pytest.mark.parametrize(
    ("mode", "tiled"), [("lora", False), ("lora", True), ("full", False), ("full", True), ("scoring", False)]
)
def test_operations_are_those_of_the_plan(perf, mode, tiled):
    model = perf.models.build("tiny", mode, "cpu", layers=None)
    work = perf.arms.Work(mode, 50, 6, 3)
    (packed,) = perf.arms.arms_of(work, 512, "cpu")["shared"].parts
    sizes = ModelSizes(3, 64, 4, 2, 16, 96, 512, tied=True, kind="scorer")
    (shape,) = packed.layout.trees
    reading = Workload(1, 1, {shape: 1}, packed.layout, False, "")
    forward = forward_flops(sizes, reading)
    part = TrainedPart(sizes, perf.models.RANK if mode == "lora" else 0)
    trained = training_flops(forward, part, reading, checkpointing=True, reference=False, tiled=tiled)
    truth = forward if mode == "scoring" else trained
    assert perf.models.operations(model, work, [packed], tiled=tiled) == pytest.approx(
        truth.linear + truth.attention
    )


def test_the_longest_is_where_the_line_meets_what_tensors_get_of_the_memory(perf):
    alike = {"part": "whole", "mode": "lora", "tiled": True, "offload": False}
    steps = [alike | {"tokens": n, "peak_bytes": 10 + 2 * n} for n in (100, 300)]
    found = perf.step.longest_of(steps, 2000)
    assert (found["tokens"], found["tiled"]) == ((0.95 * 2000 - 10) / 2, True)
    assert "two adapter steps" in perf.step.longest_of(steps[:1], 2000)["failed"]
    assert (
        "two adapter steps" in perf.step.longest_of([steps[0], steps[1] | {"tiled": False}], 2000)["failed"]
    )
    assert "is not known" in perf.step.longest_of(steps, 0)["failed"]


@pytest.fixture
def small(perf, monkeypatch):
    """A model whose layers outweigh its embedding, as those of the real ones do."""
    sizes = perf.models._TINY | {
        "hidden_size": 512,
        "num_attention_heads": 8,
        "head_dim": 64,
        "intermediate_size": 1792,
        "num_hidden_layers": 3,
    }
    monkeypatch.setitem(perf.models.SHAPES, "tiny", (perf.models.LlamaConfig, sizes))
    return "tiny"


SWITCHES = [{}, {"tiled": True}, {"tiled": True, "offload": True}]


@pytest.mark.parametrize(("mode", "prompt"), [("lora", 3_500), ("full", 9_000)])
def test_fake_steps_peak_where_the_plan_says(perf, small, mode, prompt):
    work = perf.arms.Work(mode, prompt, 60, 4)
    lines = [perf.fake.line_of(small, work, switches) for switches in SWITCHES]
    plain, tiled, offloaded = (line["peak_bytes"] for line in lines)
    assert all(0.95 < line["planned_over_peak"] < 1.15 for line in lines), [
        x["planned_over_peak"] for x in lines
    ]
    assert offloaded <= tiled < plain
    # Every layer's input, which is smaller than a piece of pinned memory, and nothing else.
    assert [line["host_bytes"] for line in lines] == [0, 0, 3 * PINNED_PIECE]
    assert lines[2]["host_bytes"] == lines[2]["planned_host_bytes"]


def test_a_fake_step_calls_the_kernel_of_a_gpu_with_what_it_takes(perf, small):
    found = perf.fake.peak_of(small, perf.arms.Work("lora", 300, 20, 3))
    own, before = "q [360, 8, 64], k [360, 2, 64]", "q [60, 8, 64], k [300, 2, 64]"
    # Three layers, forward and again on the way back.
    assert found.calls == {f"torch.bfloat16, {own}": 6, f"torch.bfloat16, {before}": 6}


def test_storages_are_counted_once_and_until_their_end(perf):
    with perf.fake.Storages() as storages:
        first = torch.empty(2**20, dtype=torch.uint8)
        second = first.view(torch.float32) + 1.0  # a view holds nothing of its own
        del first
        third = second * 2.0
        del second
    assert (storages.peak["cpu"], storages.held["cpu"]) == (2 * 2**20, 2**20)
    del third
    assert storages.held["cpu"] == 0
