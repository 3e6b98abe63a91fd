"""The scripts of perf/ with tiny models: each prints its measurements as JSON."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from longrm.modeling import group_sampling
from longrm.worlds import words_tokenizer
from tests.clients import conftest as peer
from tests.perf.scripts import run_script
from tests.reward_models.tiny_models import make_scorer

pytestmark = pytest.mark.full
server = peer.server

PERF = Path(__file__).parents[2] / "perf"
TINY = "--prompt 64 --response 8 --layers 1 --hidden 32 --heads 2 --kv-heads 2 --intermediate 48 --vocabulary 128"
LONGER = [*TINY.split(), "--prompt", "2048"]
"""Enough tokens that the resident set grows in every arm."""


def run(script, *arguments):
    return run_script("perf", script, *arguments, "--json")


@pytest.fixture(scope="module")
def measuring():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PERF)
        yield importlib.import_module("measuring")
    del sys.modules["measuring"]


def test_a_result_is_read_between_the_output_of_libraries(measuring, tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("from measuring import hand_over\nprint('12')\nhand_over(7)\nprint('13')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PERF), *sys.path]))
    assert measuring.figure_of([str(script)]) == 7
    script.write_text("raise SystemExit(3)")
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        measuring.figure_of([str(script)])


@pytest.mark.parametrize("against", ["separate", "trl"])
def test_train_step(against):
    (found,) = run("train_step.py", *LONGER, "--repeats", "1", "--against", against)
    assert found["memory_bytes"].keys() >= {"shared", found["baseline"]}
    assert found["seconds"]["shared"] > 0


def test_the_memory_of_a_train_step_is_compared_with_the_way_that_needs_least():
    (found,) = run("train_step.py", *LONGER, "--repeats", "1", "--memory")
    memory = found["memory_bytes"]
    assert memory.keys() == {"shared", "one_by_one", "batched"}
    least = min(memory["one_by_one"], memory["batched"])
    assert found["memory_ratio"] == pytest.approx(memory["shared"] / least, abs=5e-4)


def test_grpo_update():
    update, orders, rollouts = run("grpo_update.py", "--quick", "--threads", "1")
    assert max(update["loss_difference"], update["gradient_norm_difference"]) < 1e-4
    # 4 completions of 12 tokens after a prompt of 640
    assert update["ideal_linear"] == pytest.approx(4 * 652 / (640 + 4 * 12), abs=1e-4)
    assert update["memory_ratio"].keys() == {"trl", "trl_batched"}
    assert all(seconds > 0 for seconds in update["seconds"]["1"].values())
    assert max(orders["loss_difference"], orders["gradient_norm_difference"]) < 1e-4
    assert 1.5 < orders["ideal_apart"] < 2 < orders["ideal"] < 8
    assert 4 <= rollouts["tokens"] <= 4 * 6
    assert rollouts["seconds_per_token"].keys() == rollouts["memory_bytes"].keys()


def test_drop_in():
    found = run("drop_in.py", "--quick")
    kinds = ["grpo", "grpo-questions", "grpo-hybrid", "grpo-step"]
    assert [line["case"] for line in found] == ["reward", "reward-unequal", "dpo", *kinds]
    for line in found:
        assert line["tokens_computed"] < line["tokens_given"]
        assert line["seconds"]["gpu"].keys() == {"plain", "shared"}
    assert found[0]["tokens_given"] == 2 * (160 + 12)
    assert found[3]["tokens_computed"] == found[5]["tokens_computed"] == 160 + 4 * 12
    assert found[4]["tokens_computed"] == 160 + 16 + 4 * 12  # the second prompt's last 16
    (cost,) = run("drop_in.py", "--quick", "--grouping")
    assert 0 < cost["seconds"] < cost["step_measured_seconds"]


def test_checkpoints(monkeypatch):
    launched = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    in_turn, copied = run("checkpoints.py", "--layers", "1", "--hidden", "32")
    assert (in_turn["way"], copied["way"]) == ("in turn", "copied")
    assert in_turn["bytes"] == pytest.approx(copied["bytes"], rel=0.01)
    assert min(in_turn["stall_seconds"], copied["stall_seconds"]) > 0


def test_writing():
    (found,) = run("writing.py", *TINY.split(), "--repeats", "1", "--requests", "3")
    assert (found["texts"], found["differing_texts"]) == (3, 0)
    assert found["seconds"].keys() == {"together", "singly"}


def test_writing_rejects_texts_that_part_where_one_token_is_better(measuring, monkeypatch):
    writing, attend = importlib.import_module("writing"), group_sampling.range_attention
    # Every request of a batch reads what another one attends to; one request alone is computed correctly.
    monkeypatch.setattr(group_sampling, "range_attention", lambda *given: attend(*given).roll(1, dims=1))
    arguments = ["writing.py", *TINY.split(), "--repeats", "1", "--requests", "3", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.delitem(sys.modules, "writing")
    with pytest.raises(SystemExit):
        writing.main()


def test_trees():
    (found,) = run("trees.py", *TINY.split(), "--repeats", "1", "--steps", "5")
    assert all(found[name]["ideal"] > 1 for name in ("levels3", "chain", "one_level", "hybrid"))
    assert found["chain"]["tokens"] == {"tree": 60, "one_level": 108}


def test_attention_scores():
    (found,) = run("attention_scores.py", *TINY.split(), "--longest", "1024")
    memory = found["memory_bytes"]
    assert 0 < memory["rows"]["1024"] < memory["full"]["1024"]
    assert memory["embeddings"].keys() == {"1024"}


def test_judge_kinds(tmp_path):
    tokenizer = words_tokenizer(verdicts=True)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=4096, **sizes)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    arms = ["likelihood", "likelihood, mean", "writing, pointwise"]
    given = ["--model", tmp_path, "--length", "64", "--pairs", "3", "--max-tokens", "4", "--arms", *arms]
    found = run("judge_kinds.py", *given)
    assert [line["arm"] for line in found] == arms
    assert (found[0]["without_verdict"], found[2]["without_verdict"]) == (0.0, 1.0)


def test_judge_prompt(server, tmp_path):
    server.script = lambda seen, number: peer.said("It says so.\n[[A]]")
    given = [
        "--model",
        f"openai:{server.url}/v1#tiny",
        "--tokenizer",
        "approximate",
        "--name",
        "tiny",
        "--n",
        "4",
    ]
    (found,) = run("judge_prompt.py", *given, "--bench", "probe", "--out", tmp_path, flags=())
    assert (found["verdicts"], found["for_the_first"], found["right"], found["consistent"]) == (8, 8, 4, 0)


SMALL = ["--prompt", "200", "--response", "8", "--candidates", "3", "--trainer", "100", "--prompts", "1"]


@pytest.mark.parametrize("against", ["plain", "vllm"])
def test_serve(against, tmp_path):
    more = []
    if against == "vllm":
        venv = os.environ.get("LONGRM_VLLM_VENV")
        if not venv:
            pytest.skip("needs an environment with vLLM: LONGRM_VLLM_VENV")
        more = [
            "--against",
            "vllm",
            "--vllm",
            venv,
            "--model",
            make_scorer(tmp_path / "tiny"),
            "--world",
            "records",
        ]
    found = run("serve.py", "--short", "40", "--singles", "3", "--repeats", "2", *SMALL, *more)[-1]
    assert 0 < found["largest_score_difference"] < 1e-4
    rows = found["rows"]
    assert list(rows) == [
        "3 responses, cold",
        "3 responses, warm",
        "8 single requests, 8 a prompt",
        "3 short requests",
    ]
    for row in rows.values():
        assert row["cpu_seconds"].keys() == row["seconds"].keys() == {"longrm", against}
        ratio = row["cpu_seconds_ratio"]
        assert 0 < ratio["least"] <= ratio["median"] <= ratio["most"]
        for times in row["latency_ms"].values():
            assert 0 < times["p50"] <= times["p99"]
    assert found["memory_mib"].keys() == {"longrm", against}


def test_memory_of_a_server():
    found = run("serve.py", "--short", "40", "--requests", "40")[-1]
    assert list(found["resident_mib"]) == ["4", "8", "16", "24", "32", "40"]


def test_real_step(tmp_path):
    folder = make_scorer(tmp_path / "tiny")
    flags = ["--model", folder, "--pairs", 2, "--prompt", 20, "--response", 9, "--repeats", 1, "--tokens", 40]
    (found,) = run("real_step.py", *flags, "--variants", "all weights", "all weights, bf16")
    variants = found["variants"]
    assert variants["all weights"]["speedup"] == 1
    for variant in variants.values():
        assert variant["tokens_per_second"] > 0
        assert 0 < variant["matrix_products"] + variant["attention"] + variant["copies_and_casts"] <= 1


def test_roofline():
    (found,) = run("roofline.py", "--layers", 2, "--prompt", 30, "--response", 5, "--trained-prompt", 20)
    matrices = 2 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
    for kind, products in (("scoring", 2 * (30 + 4 * 5)), ("training", 6 * (20 + 2 * 100))):
        parts = found[kind]["parts"]
        assert sum(part["share"] for part in parts.values()) == pytest.approx(1, abs=0.01)
        assert parts["products"]["gflop"] == pytest.approx(products * matrices / 1e9, abs=1e-3)
        assert {"attention", "norms", "activation", "rotary, copies", "head and loss"} <= parts.keys()
    # Ends of two branches of 100 tokens in the last layer; backward is 2.5 times as much.
    pairs = 20 * 21 / 2 + 2 * (100 * 101 / 2 + 100 * 20) + 2 * 120
    attention = found["training"]["parts"]["attention"]["gflop"]
    assert attention == pytest.approx(3.5 * 4 * 9 * 64 * pairs / 1e9, abs=1e-3)
    assert "optimizer" in found["training"]["parts"]


def test_bulk():
    found = run("bulk.py", "--comparisons", 64, flags=())
    assert [line["step"] for line in found] == ["evaluate first", "evaluate second", "report", "compare"]
    assert all(0 < line["peak_gb"] < 2 for line in found)
