"""The script of perf/gpu, on a CPU with a tiny shape: a GPU's minutes are too dear for a typing error."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from longrm.modeling.heads import scores
from longrm.training.planning.flops import forward_flops, training_flops
from longrm.training.planning.rows import Reading
from longrm.training.planning.sizes import ModelSizes

TINY = ["--model", "tiny", "--device", "cpu"]


@pytest.fixture(scope="module")
def perf():
    """The modules of the script, which finds them beside itself."""
    names = ("step", "arms", "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "perf" / "gpu")
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


def test_every_kind_of_cell_is_measured(measured, perf):
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


def test_what_no_time_was_left_for_is_told(measured):
    *_, (end,), text = measured("--seconds", "-1")
    assert len(end["not_measured"]) == 21
    assert "Not measured, as no time was left: ratio: lora, 16 / 4 x 2; ratio: lora, 16 / 4 x 4;" in text


def test_what_fails_is_a_line_and_the_rest_is_measured(measured, perf, monkeypatch):
    right = perf.arms.step

    def step(model, parts, mode):
        if mode == "full":
            raise torch.OutOfMemoryError("as torch says it")
        if mode == "scoring" and len(parts[0].layout.trees) > 1:
            raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED\nand much more")
        right(model, parts, mode)

    def build(name, mode, *arguments, **keywords):
        if mode == "lora" and keywords["layers"] is None:
            raise RuntimeError("pinned memory")
        return whole(name, mode, *arguments, **keywords)

    whole, all_cells = perf.step.build, perf.step.cells
    monkeypatch.setattr(
        perf.step,
        "cells",
        lambda options: list({(one.part, one.work.mode): one for one in all_cells(options)}.values()),
    )
    monkeypatch.setattr(perf.arms, "step", step)
    monkeypatch.setattr(perf.step, "build", build)
    _, ratios, wholes, _, text = measured(code=1)
    failed = {row["mode"]: row.get("failed") for row in wholes}
    assert failed == {"lora": "error: RuntimeError: pinned memory", "scoring": None, "full": "out of memory"}
    assert all(("failed" in row) == (row["mode"] == "full") for row in ratios)
    (scoring,) = (row for row in ratios if row["mode"] == "scoring")
    assert scoring["packed"] == "error: RuntimeError: CUBLAS_STATUS_ALLOC_FAILED"
    assert scoring["baseline"] in perf.arms.SEPARATE[1:]
    assert "| shared: out of memory |" in text
    assert "x 4 without packed: error: RuntimeError: CUBLAS_STATUS_ALLOC_FAILED." in text


def test_lines_are_written_as_they_are_measured(measured, perf, tmp_path, monkeypatch):
    right, seen = perf.step.figures_of, []

    def figures_of(cell, options):
        seen.append(len((tmp_path / "lines.jsonl").read_text().splitlines()))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return right(cell, options)

    monkeypatch.setattr(perf.step, "figures_of", figures_of)
    with pytest.raises(KeyboardInterrupt):
        measured()
    assert seen == [1, 2, 3]


def test_one_long_step(measured):
    _, _, (only,), _, text = measured("--longest", "900", "--shrink", "16", "--tiled")
    assert (only["prompt"], only["responses"], only["tokens"]) == (900 - 4 * 32, 4, 900)
    assert "| lora, tiles |" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--longest", "2050"], "--longest 2050 has no room for four responses"),
        (["--tiled"], "--offload and --tiled go with --longest N"),
        (["--device", "cuda"], "torch sees no GPU here: try --device cpu"),
    ],
)
def test_wrong_input_is_told(perf, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        perf.step.main([*TINY, *arguments])
    assert message in capsys.readouterr().err


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
    sizes = ModelSizes("scorer", 3, 64, 4, 2, 16, 96, 512, tied=True)
    (shape,) = packed.layout.trees
    reading = Reading(1, 1, {shape: 1}, packed.layout, False, "")
    forward = forward_flops(sizes, reading)
    adapters = sizes.adapter_parameters(perf.models.RANK, sizes.matrices) if mode == "lora" else 0
    trained = training_flops(
        forward, sizes, reading, adapters=adapters, checkpointing=True, reference=False, tiled=tiled
    )
    truth = forward if mode == "scoring" else trained
    assert perf.models.operations(model, work, [packed], tiled=tiled) == pytest.approx(
        truth.linear + truth.attention
    )


def test_the_longest_is_where_the_line_meets_what_tensors_get_of_the_memory(perf):
    steps = [{"mode": "lora", "tokens": n, "peak_bytes": 10 + 2 * n} for n in (100, 300)]
    assert perf.step.longest_of(steps, 2000)["tokens"] == (0.95 * 2000 - 10) / 2
    assert perf.step.longest_of(steps[:1], 2000) is None


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA L4", None),
    ],
)
def test_peaks_by_name(perf, name, peak):
    assert perf.step.peak_of(name) == peak
