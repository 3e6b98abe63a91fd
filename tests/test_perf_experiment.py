"""perf/real_experiment.py with a tiny model, short contexts and a training of two steps."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig

from longrm.benchmarks import Probe, ProbeCell
from longrm.data.tokenizing import Tokenizer
from tests.reward_models.tiny_models import CHATML, SIZES
from tests.worlds.prose.prose_tokenizer import prose_tokenizer

PERF = Path(__file__).parents[1] / "perf"
RECIPE = """
objective = "preference"
model.lora = {rank = 2}
data.world = {names = ["single-fact"], texts = ["mail"], tokens_per_step = 300, responses_per_step = 4}
curriculum.lengths = [300]
loss.kind = "simpo"
optimizer.steps = 2
plateau_steps = 0
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PERF)
        found = importlib.import_module("real_experiment")
        (tmp_path / "recipes").mkdir()
        for arm in filter(None, (arm.recipe for arm in found.ARMS.values())):
            (tmp_path / "recipes" / f"{arm}.toml").write_text(RECIPE)
        patch.setattr(found, "RECIPES", tmp_path / "recipes")
        cell = ProbeCell(worlds=("single-fact",), lengths=(300, 600), groups=2, per_group=2)
        patch.setattr(found, "probes", lambda groups: {"trained": Probe(seed=9, cells=(cell,))})
        yield found
    for name in ("real_experiment", "measuring"):
        del sys.modules[name]


@pytest.fixture
def model(tmp_path):
    backend = prose_tokenizer().backend
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = Tokenizer.from_backend(backend, chat_template=CHATML, eos="<|im_end|>")
    sizes = SIZES | {"eos_token_id": tokenizer.eos_id, "pad_token_id": None}
    AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=tokenizer.vocab_size, **sizes)).save_pretrained(
        tmp_path / "model"
    )
    tokenizer.save(tmp_path / "model")
    return tmp_path / "model"


def test_an_arm_is_trained_from_the_one_before_and_judged(script, model, tmp_path, monkeypatch, capsys):
    out, results = tmp_path / "out", tmp_path / "results.jsonl"

    def run(arm):
        flags = ["--model", model, "--out", out, "--results", results, "--threads", "1"]
        monkeypatch.setattr(sys, "argv", ["real_experiment.py", arm, *map(str, flags)])
        script.main()

    with pytest.raises(SystemExit, match="run the arm likelihood-short first"):
        run("likelihood-long")
    for arm in ("likelihood", "likelihood-short", "likelihood-long"):
        run(arm)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["arm"] for line in lines] == ["likelihood", "likelihood-short", "likelihood-long"]
    for line in lines:
        assert line["outcomes"]["answered"] == 8
        assert {length: found["n"] for length, found in line["by_length"].items()} == {"300": 4, "600": 4}
        assert line["boundary"]["status"]
    start = json.loads((out / "likelihood-long-0/training/model/adapter_config.json").read_text())
    assert start["base_model_name_or_path"].endswith("likelihood-short-0/merged")
    merged = (out / "likelihood-long-0/merged/model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    run("likelihood-long")  # nothing is trained twice
    assert (out / "likelihood-long-0/merged/model.safetensors").stat().st_mtime_ns == merged
    assert results.read_text().splitlines() == [json.dumps(line) for line in lines]
