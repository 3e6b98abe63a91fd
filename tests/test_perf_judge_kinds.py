"""`perf/judge_kinds.py` measures every way of judging on the same pairs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from longrm.worlds import words_tokenizer

SCRIPT = Path(__file__).parents[1] / "perf" / "judge_kinds.py"


@pytest.mark.full
def test_every_way_is_measured(tmp_path):
    tokenizer = words_tokenizer(verdicts=True)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=4096, **sizes)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    arms = ["likelihood", "likelihood, mean", "writing, pointwise"]
    given = ["--model", str(tmp_path), "--length", "64", "--pairs", "3", "--max-tokens", "4", "--json"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *given, "--arms", *arms], capture_output=True, text=True, timeout=300
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["arm"] for line in found] == arms, done.stderr
    assert found[0]["without_verdict"] == 0.0
    assert found[2]["without_verdict"] == 1.0
    assert all(line["seconds_an_item"] > 0 for line in found)
